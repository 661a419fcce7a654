import type { Phase } from "../charts/phases.ts";
import type { Move } from "../charts/strands.ts";
import { grouped, joined, plural } from "./numbers.ts";

/** A count in a narrow place: `940`, `23.5k`, `1.2M`. */
export function compact(value: number): string {
  if (value < 10_000) return grouped(value);
  return value < 1_000_000 ? `${(value / 1000).toFixed(1)}k` : `${(value / 1_000_000).toFixed(1)}M`;
}

/** A time of day by the viewer's clock: `14:12:31`. */
export function time(second: number): string {
  return new Date(second * 1000).toLocaleTimeString("en-GB");
}

/** Seconds in words of a figure: `34 s`, `6:28`. */
export function lasted(seconds: number): string {
  return seconds < 120 ? `${seconds} s` : `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

/** What a phase is, behind the name of its node. */
export function phaseWords(it: Phase): string {
  const pace = it.rate >= 1 ? ` at ${grouped(Math.round(it.rate))}/s` : "";
  if (it.kind === "away") return it.isSudden ? (it.isOpen ? `stopped ${lasted(it.to - it.from)} ago` : `stopped, away ${lasted(it.to - it.from)}`) : it.isOpen ? `away for ${lasted(it.to - it.from)}` : `away ${lasted(it.to - it.from)}`;
  if (it.isCalledOff) return `stays, ${grouped(it.left)} of ${grouped(it.had)} had left`;
  return it.isOpen ? `is leaving, ${grouped(it.left)} of ${grouped(it.had)}${pace}` : `leaves, ${grouped(it.left)}${pace}`;
}

/** The same in few words, where there is little room. */
export function phaseBrief(it: Phase): string {
  if (it.kind === "away") return lasted(it.to - it.from);
  return `${grouped(it.left)}${it.rate >= 1 ? ` at ${grouped(Math.round(it.rate))}/s` : ""}`;
}

/** Where the strands come from, so that nobody takes a guess for a count. */
export function caption(unit: number, strands: number, source: "flows" | "counts", silent: readonly string[]): string {
  const size = unit === 1 ? "Each strand is one client" : `Each strand is ${grouped(unit)} clients`;
  if (strands < 2) return `${size}.`;
  const missing = silent.length > 0 ? ` ${joined(silent)} did not answer: moves to ${silent.length === 1 ? "it" : "them"} are missing.` : "";
  if (source === "flows") return `${size}, coloured by its node. Those that cross were counted where they arrived.${missing}`;
  return `${size}, coloured by its node. Moves are derived from the nodes’ counts: this version counts no moves.`;
}

/** The length of a picture behind a figure: `45 s`, `2:13 min`, `8 min`. */
export function minutes(seconds: number): string {
  return seconds < 120 ? `${seconds} s` : `${seconds % 60 === 0 ? seconds / 60 : lasted(seconds)} min`;
}

/** The picture in a sentence, for those who don't see it. */
export function summary(names: readonly string[], counts: readonly number[], phases: readonly Phase[], span: number, moves: readonly Move[] = []): string {
  const now = names.map((name, index) => `${name} has ${plural(counts[index] ?? 0, "client")}`);
  const past = [...phases.map((it) => `${it.node} ${phaseWords(it)}`), ...leftUnknown(names, moves)];
  return `The last ${minutes(span)}: ${past.length > 0 ? past.join("; ") : "no node left"}. Now ${joined(now)}.`;
}

/** Nodes that clients left for others, and that the picture has no lane for: `n9, not known to this page, was left by two clients`. */
export function leftUnknown(names: readonly string[], moves: readonly Move[]): string[] {
  const by = new Map<string, number>();
  for (const { from, to, count } of moves) if (from && to && from !== to && !names.includes(from)) by.set(from, (by.get(from) ?? 0) + count);
  return [...by].map(([node, clients]) => `${node}, not known to this page, was left by ${plural(clients, "client")}`);
}

/** Moves of a second or more: `n3 to n1 12, new on n2 40`. */
export function movesWords(moves: readonly Move[]): string {
  const by = new Map<string, number>();
  for (const { from, to, count } of moves) {
    if (from === to) continue;
    const key = from && to ? `${from} to ${to}` : to ? `new on ${to}` : `gone from ${from}`;
    by.set(key, (by.get(key) ?? 0) + count);
  }
  return [...by].map(([key, count]) => `${key} ${grouped(Math.round(count))}`).join(", ");
}
