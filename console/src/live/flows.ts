import { signal } from "@preact/signals";
import type { Move } from "../charts/strands.ts";
import { get } from "./api.ts";
import { allows } from "./boot.ts";

/** Seconds that the page keeps. */
const KEEP = 900;

/** Seconds that are asked for again, because peers count a second up to some seconds later. */
const AGAIN = 6;

/** Moves by second; undefined while the node does not count them. */
export const flows = signal<ReadonlyMap<number, readonly Move[]> | undefined>(undefined);

/** Changes when moves of seconds are read late, after a time in which the page read none. */
export const flowsRevision = signal(0);

/** Nodes whose moves are missing. */
export const silent = signal<readonly string[]>([]);

interface Answer {
  readonly nowMs: number;
  readonly rows: readonly (readonly [number, readonly (readonly [string, string, number])[]])[];
  readonly silent?: readonly string[];
}

/** What is asked for next: moves after a time, and for each silent node the time from which its moves are missing. */
export interface Ask {
  readonly sinceMs: number;
  readonly gaps: ReadonlyMap<string, number>;
}

/** Returns what to ask for after an answer: the last seconds, or what is missing of nodes that answer again, as far as it is kept. */
export function askNext(asked: Ask, { nowMs, silent = [] }: Pick<Answer, "nowMs" | "silent">): Ask {
  const back = [...asked.gaps].filter(([node, from]) => !silent.includes(node) && from < asked.sinceMs);
  const sinceMs = Math.min(nowMs - AGAIN * 1000, ...back.map(([, from]) => from));
  return { sinceMs: Math.max(0, nowMs - KEEP * 1000, sinceMs), gaps: new Map(silent.map((node) => [node, asked.gaps.get(node) ?? asked.sinceMs])) };
}

/**
 * Moves by second after an answer, which replaces the seconds that it contains. While a node is silent, what was known of it is
 * missing in the answer, so that no count falls.
 */
export function mergeFlows(before: ReadonlyMap<number, readonly Move[]>, rows: Answer["rows"], isPartial = false): Map<number, readonly Move[]> {
  const next = new Map<number, Move[]>();
  for (const [at, list] of rows) {
    const second = Math.floor(at / 1000);
    next.set(second, [...(next.get(second) ?? []), ...list.map(([from, to, count]) => ({ from, to, count }))]);
  }
  if (isPartial) for (const [second, list] of next) next.set(second, highest([...(before.get(second) ?? []), ...list]));
  const all = new Map([...before, ...next]);
  const newest = Math.max(0, ...all.keys());
  for (const second of all.keys()) if (second < newest - KEEP) all.delete(second);
  return all;
}

/** Moves with the highest count of each pair of nodes. */
function highest(list: readonly Move[]): Move[] {
  const by = new Map<string, Move>();
  for (const move of list) {
    const key = JSON.stringify([move.from, move.to]);
    if (move.count > (by.get(key)?.count ?? 0)) by.set(key, move);
  }
  return [...by.values()];
}

/** Reads the moves of clients between nodes as long as a view needs them; returns how to end that. */
export function followFlows(): () => void {
  let ask: Ask = { sinceMs: 0, gaps: new Map() };
  let isBusy = false;
  let isLate = true;
  const read = async () => {
    if (document.hidden) isLate = true;
    if (isBusy || document.hidden || !allows("flows")) return;
    isBusy = true;
    try {
      const it = await get<Answer>(`/v1/flows?since=${ask.sinceMs}`);
      flows.value = mergeFlows(flows.value ?? new Map(), it.rows, (it.silent ?? []).length > 0);
      silent.value = it.silent ?? [];
      if (isLate) flowsRevision.value += 1;
      ask = askNext(ask, it);
      // What a node counted while it was silent is read in the next answer.
      isLate = ask.sinceMs < it.nowMs - AGAIN * 1000;
    } catch {
      isLate = true;
      // It is read again in a second; the foot of the page says when the node is silent.
    }
    isBusy = false;
  };
  void read();
  const timer = setInterval(() => void read(), 1000);
  return () => clearInterval(timer);
}
