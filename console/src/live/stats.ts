import { signal } from "@preact/signals";
import { boot, loadBoot } from "./boot.ts";
import { takeCodes, takeTime } from "./codes.ts";
import { lines } from "./events.ts";
import { combine } from "./series.ts";

/** Seconds that the page keeps of each node. */
const KEEP = 900;

/** Rows of figures of one node, one a second; the first value of a row is its time. */
export type Rows = readonly (readonly number[])[];

/** Names of the values of a row, without its time. */
export const fields = signal<readonly string[]>([]);

/** Rows by node. */
export const rows = signal<ReadonlyMap<string, Rows>>(new Map());

/** Changes when rows of the past arrive, and so seconds that were known before may have changed. */
export const revision = signal(0);

/** Difference of the node's clock to that of this page, in ms. */
let ahead = 0;

/** Time by the clock of the node of this page, in ms since 1970. */
export function clock(): number {
  return Date.now() + ahead;
}

/** State of the stream: when the node was last heard, by the clock of the page, and whether it is connected. */
export const stream = signal<{ readonly heard: number; readonly live: boolean }>({ heard: 0, live: false });

/** Whether live updates are paused by the person. */
export const paused = signal(false);

/** A clock of whole seconds, for texts such as "3 s ago". */
export const seconds = signal(0);

/** Sum of a field over the nodes in their newest second; undefined if no node reported. */
export function now(field: string): number | undefined {
  const column = fields.value.indexOf(field) + 1;
  if (column === 0 || rows.value.size === 0) return undefined;
  let sum = 0;
  for (const list of rows.value.values()) sum += list.at(-1)?.[column] ?? 0;
  return sum;
}

/** The last values of a field, summed (or with `max`, the highest) over the nodes by second; undefined where no node was heard. */
export function series(field: string, count: number, max = false): (number | undefined)[] {
  const column = fields.value.indexOf(field) + 1;
  return column > 0 ? combine([...rows.value.values()], column, count, max) : [];
}

function take(event: string, data: string): void {
  if (event === "codes") return takeCodes(data);
  const body = JSON.parse(data) as { fields?: string[]; node?: string; rows?: number[][]; row?: number[] };
  // After a pause the node may be another run of it.
  if (!stream.value.live && stream.value.heard > 0) void loadBoot().catch(() => {});
  stream.value = { heard: performance.now(), live: true };
  if (body.row?.[0]) takeTime(body.row[0]);
  if (event === "start" && body.fields) fields.value = body.fields;
  if (event === "now" && body.node === boot.value?.node && body.row) ahead = (body.row[0] ?? 0) - Date.now();
  if (!body.node || (event !== "past" && event !== "now") || (paused.value && event === "now")) return;
  const next = new Map(rows.value);
  const known = next.get(body.node) ?? [];
  // A node that has started again does not know what it did before, but the page does.
  const first = body.rows?.[0]?.[0] ?? Infinity;
  const before = event === "past" ? known.filter((row) => (row[0] ?? 0) < first) : known;
  if (event === "past") revision.value += 1;
  next.set(body.node, [...before, ...(body.rows ?? (body.row ? [body.row] : []))].slice(-KEEP));
  rows.value = next;
}

/** Follows the figures of the nodes; connects again by itself. A hidden page closes the stream after a minute. */
export function startStats(): void {
  let stop: AbortController | undefined;
  let hide = 0;
  const follow = async () => {
    for (;;) {
      stop = new AbortController();
      try {
        for await (const { event, data } of lines("/v1/stats/stream", stop.signal)) take(event, data);
      } catch {
        // The loop connects again; the foot of the page says how old the figures are.
      }
      stream.value = { ...stream.value, live: false };
      if (document.hidden) {
        await new Promise<void>((resolve) => document.addEventListener("visibilitychange", () => resolve(), { once: true }));
      } else await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  };
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hide);
    if (document.hidden) hide = window.setTimeout(() => stop?.abort(), 60_000);
  });
  const isOffered = boot.value?.features.includes("stats") ?? false;
  setInterval(() => (seconds.value += 1), 1000);
  if (isOffered) void follow();
}
