import type { Cell } from "../charts/partitions.ts";
import { duration, grouped, joined } from "./numbers.ts";

/** A cell in words. */
export function cellWords(it: Cell): string {
  const name = it.count === 1 ? `Partition ${it.first}` : `Partitions ${it.first} to ${it.last}, the worst of ${it.count}`;
  if (it.state === "orphan") return `${name}: no owner${it.other ? `, ${it.other} had it` : ""}. Sends to it get no answer.`;
  const waits = it.records === 0 ? "nothing waits" : `${grouped(it.records)} ${it.records === 1 ? "record waits" : "records wait"}`;
  const age = it.state !== "fine" && it.ageMs > 0 ? `, the oldest for ${duration(it.ageMs)}` : "";
  const moves = it.other === "" ? "" : it.isShared ? `, on its way to ${it.other}` : `, taken over from ${it.other}`;
  return `${name}, ${it.owner}${moves}: ${waits}${age}.${it.state === "behind" ? " ARCHIVE_BEHIND (4011): its sends are refused." : ""}`;
}

/** Most partitions that are named in a line. */
const NAMED = 3;

/** The partitions of an owner: how many, what moves, and what is wrong, red where sends are refused. */
export function ownerWords(list: readonly Cell[], count: number): { readonly text: string; readonly worst: string; readonly isRed: boolean } {
  const to = new Map<string, number>();
  for (const it of list) if (it.isShared) to.set(it.other, (to.get(it.other) ?? 0) + it.count);
  const moving = joined([...to].map(([node, amount]) => `${amount} on their way to ${node}`));
  const text = `${grouped(count)}${moving ? `, ${moving}` : ""}`;
  const behind = list.filter((it) => it.state === "behind");
  if (behind.length > 0) {
    const names = behind.slice(0, NAMED).map((it) => String(it.first));
    const rest = behind.length > NAMED ? ` and ${behind.length - NAMED} more` : "";
    return { text, worst: `${names.join(", ")}${rest}: ARCHIVE_BEHIND (4011)`, isRed: true };
  }
  const worst = list.filter((it) => it.state === "old").sort((a, b) => b.ageMs - a.ageMs)[0];
  return { text, worst: worst ? `${worst.first}: ${grouped(worst.records)} ${worst.records === 1 ? "record" : "records"}, ${duration(worst.ageMs)} old` : "", isRed: false };
}
