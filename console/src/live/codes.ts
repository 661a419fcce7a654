import { computed, signal } from "@preact/signals";

/** A code and how often it was given. */
type Count = readonly [number, number];

/** Counts of one node by the start of their stretch of time, in ms of the node's clock. */
type Stretches = ReadonlyMap<number, readonly Count[]>;

/** `NOT_YET`: a client that pulls a history to its end is answered so, and it is no sign of anything. */
const END_OF_HISTORY = 4015;

/** Time that the counts go back, and the parts of it that a line of a code shows. */
const KEEP_MS = 15 * 60_000;
const PART_MS = 30_000;
/** The time in which a code rises or does not. */
const RECENT_MS = 5 * 60_000;

/** What was counted of one code. */
export interface CodeCount {
  readonly code: number;
  /** How often it was given in 15 minutes. */
  readonly total: number;
  /** How often it was given in the last 5 minutes. */
  readonly recent: number;
  /** Whether it was given more often in the last 5 minutes than before, in the same time. */
  readonly rises: boolean;
  /** Counts by half a minute, the newest last. */
  readonly line: readonly number[];
}

/** Counts of all codes by node. */
export const counted = signal<ReadonlyMap<string, Stretches>>(new Map());

/** Time of the page's node that was seen last, 0 before; without new counts old ones leave the stretch by it. */
export const codesNow = signal(0);

/** Sums up the counts of all nodes until a time; codes that were not given are absent. */
export function summary(all: ReadonlyMap<string, Stretches>, nowMs: number): ReadonlyMap<number, CodeCount> {
  const parts = KEEP_MS / PART_MS;
  const lines = new Map<number, number[]>();
  for (const stretches of all.values()) {
    for (const [at, counts] of stretches) {
      const part = parts - 1 - Math.floor(Math.max(0, nowMs - at) / PART_MS);
      if (part < 0) continue;
      for (const [code, count] of counts) {
        const line = lines.get(code) ?? new Array<number>(parts).fill(0);
        line[part] = (line[part] ?? 0) + count;
        lines.set(code, line);
      }
    }
  }
  const recentParts = RECENT_MS / PART_MS;
  const sum = (line: readonly number[]) => line.reduce((before, count) => before + count, 0);
  const found = [...lines].map(([code, line]): [number, CodeCount] => {
    const [total, recent] = [sum(line), sum(line.slice(-recentParts))];
    const before = ((total - recent) * RECENT_MS) / (KEEP_MS - RECENT_MS);
    return [code, { code, total, recent, rises: code !== END_OF_HISTORY && recent > before, line }];
  });
  return new Map(found.filter(([, it]) => it.total > 0));
}

/** Codes that rise, the steepest first. */
export function rising(all: ReadonlyMap<number, CodeCount>): readonly CodeCount[] {
  return [...all.values()].filter((it) => it.rises).sort((a, b) => b.recent - a.recent || a.code - b.code);
}

/** What was counted, by code. */
export const codeCounts = computed(() => (codesNow.value > 0 ? summary(counted.value, codesNow.value) : new Map<number, CodeCount>()));

/** Takes an event `codes` of the stream of figures; `own` is the node whose clock counts. */
export function takeCodes(data: string, own: string): void {
  const { node, rows } = JSON.parse(data) as { node: string; rows?: readonly (readonly [number, readonly Count[]])[] };
  const newest = node === own ? Math.max(codesNow.value, ...(rows ?? []).map(([at]) => at)) : codesNow.value;
  // After a reconnect the node repeats rows that are here.
  const stretches = new Map([...(counted.value.get(node) ?? []), ...(rows ?? [])]);
  for (const at of stretches.keys()) if (at < newest - KEEP_MS) stretches.delete(at);
  counted.value = new Map(counted.value).set(node, stretches);
  codesNow.value = newest;
}

/** Takes the time of the page's node. */
export function takeTime(atMs: number): void {
  // Once in ten seconds is enough for what is counted by ten seconds.
  if (atMs >= codesNow.value + 10_000) codesNow.value = atMs;
}
