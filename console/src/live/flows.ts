import { signal } from "@preact/signals";
import type { Move } from "../charts/strands.ts";
import { get } from "./api.ts";
import { allows } from "./boot.ts";
import { paused } from "./stats.ts";

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

/** Moves by second after an answer, which replaces the seconds that it contains. */
export function mergeFlows(before: ReadonlyMap<number, readonly Move[]>, rows: Answer["rows"]): Map<number, readonly Move[]> {
  const next = new Map<number, Move[]>();
  for (const [at, list] of rows) {
    const second = Math.floor(at / 1000);
    next.set(second, [...(next.get(second) ?? []), ...list.map(([from, to, count]) => ({ from, to, count }))]);
  }
  const all = new Map([...before, ...next]);
  const newest = Math.max(0, ...all.keys());
  for (const second of all.keys()) if (second < newest - KEEP) all.delete(second);
  return all;
}

/** Reads the moves of clients between nodes as long as a view needs them; returns how to end that. */
export function followFlows(): () => void {
  let since = 0;
  let isBusy = false;
  let isLate = true;
  const read = async () => {
    if (document.hidden || paused.value) isLate = true;
    if (isBusy || document.hidden || paused.value || !allows("flows")) return;
    isBusy = true;
    try {
      const it = await get<Answer>(`/v1/flows?since=${since}`);
      flows.value = mergeFlows(flows.value ?? new Map(), it.rows);
      silent.value = it.silent ?? [];
      if (isLate) flowsRevision.value += 1;
      isLate = false;
      since = Math.max(0, it.nowMs - AGAIN * 1000);
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
