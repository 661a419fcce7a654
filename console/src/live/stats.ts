import { signal } from "@preact/signals";
import { boot, loadBoot } from "./boot.ts";
import { takeCodes, takeTime } from "./codes.ts";
import { lines } from "./events.ts";
import { LATE } from "../charts/course.ts";
import { HOLD } from "../charts/readings.ts";
import { apart, type Arrival } from "./clocks.ts";
import { combine, total } from "./series.ts";

/** Seconds that the page keeps of each node. */
const KEEP = 900;

/** Rows of figures of one node, one a second; the first value of a row is its time. */
export type Rows = readonly (readonly number[])[];

/** Names of the values of a row, without its time. */
export const fields = signal<readonly string[]>([]);

/** Rows by node. */
export const rows = signal<ReadonlyMap<string, Rows>>(new Map());

/** Rises after rows arrived that change seconds which were known before: those of the past, and those of a node that are late. */
export const revision = signal(0);

/** When the newest row of each node arrived. */
export const arrivals = signal<ReadonlyMap<string, Arrival>>(new Map());

/** Time of the first row of the page's node since the stream was connected, in ms. */
export const resumedMs = signal(0);

/** The first of these times: from then on this page sees which nodes stop. */
export const openedMs = signal(0);

/** Whether a row is awaited that sets them. */
let isResuming = false;

/** Nodes whose clock differs so much that their rows are left out. */
export const strays = signal<readonly string[]>([]);

/** Difference of the node's clock to that of this page, in ms. */
let ahead = 0;

/** Time by the clock of the node of this page, in ms since 1970. */
export function clock(): number {
  return Date.now() + ahead;
}

/** State of the stream: when the node last sent something, by the clock of the page, and whether it is connected. */
export const stream = signal<{ readonly answeredAt: number; readonly live: boolean }>({ answeredAt: 0, live: false });

/** A clock of whole seconds, for texts such as "3 s ago". */
export const seconds = signal(0);

/** Sum of a field over the nodes in the newest second that all of those that go on have reported; undefined if none has. */
export function now(field: string): number | undefined {
  return series(field, 1).at(-1);
}

/** The last values of a field, summed (or with `max`, the highest) over the nodes by second; undefined where no node reported. */
export function series(field: string, count: number, max = false): (number | undefined)[] {
  const column = fields.value.indexOf(field) + 1;
  const lists = [...rows.value].filter(([node]) => !strays.value.includes(node)).map(([, list]) => list);
  const own = rows.value.get(boot.value?.node ?? "")?.at(-1)?.[0];
  return column > 0 ? combine(lists, column, count, max, own === undefined ? undefined : Math.floor(own / 1000)) : [];
}

/** How often something was counted from a second to another one, on all nodes. */
export function counted(field: string, from: number, to: number): number {
  const column = fields.value.indexOf(field) + 1;
  return column > 0 ? total([...rows.value.values()], column, from, to) : 0;
}

/** Records when a row arrived, and returns whether the strays changed. One of the past says nothing of the node's clock, so that what was known of it stays. */
function arrive(node: string, rowMs: number, isPast: boolean): boolean {
  const own = boot.value?.node ?? "";
  const known = arrivals.value.get(node);
  const ownMs = node === own ? rowMs : isPast ? rowMs - (known ? known.rowMs - known.ownMs : 0) : arrivals.value.get(own)?.rowMs;
  if (ownMs === undefined) return false;
  arrivals.value = new Map(arrivals.value).set(node, { rowMs, ownMs });
  const next = apart(arrivals.value);
  if (next.join(" ") === strays.value.join(" ")) return false;
  strays.value = next;
  return true;
}

/** Returns whether seconds were drawn without a row of a node: it is that old, and the row before it no longer held for them. */
function isLate(known: Rows, rowMs: number): boolean {
  const ownMs = arrivals.value.get(boot.value?.node ?? "")?.rowMs;
  if (ownMs === undefined) return false;
  const [second, drawn] = [Math.floor(rowMs / 1000), Math.floor(ownMs / 1000) - LATE];
  const beforeMs = known.findLast((row) => (row[0] ?? 0) < rowMs)?.[0] ?? -Infinity;
  return second <= drawn && Math.floor(beforeMs / 1000) + HOLD < drawn;
}

/** Takes an event of the stream. */
export function take(event: string, data: string): void {
  const own = boot.value?.node ?? "";
  if (event === "codes") return takeCodes(data, own);
  const body = JSON.parse(data) as { fields?: string[]; node?: string; rows?: number[][]; row?: number[] };
  // After a pause the node may be another run of it.
  if (!stream.value.live && stream.value.answeredAt > 0) void loadBoot().catch(() => {});
  stream.value = { answeredAt: performance.now(), live: true };
  const newest = (body.row ?? body.rows?.at(-1))?.[0];
  if (newest && body.node === own) takeTime(newest);
  if (event === "start") isResuming = true;
  if (event === "start" && body.fields) fields.value = body.fields;
  if (isResuming && newest && body.node === own) {
    [resumedMs.value, isResuming] = [newest, false];
    openedMs.value ||= newest;
  }
  if (event === "now" && body.node === own && body.row) ahead = (body.row[0] ?? 0) - Date.now();
  if (!body.node || (event !== "past" && event !== "now")) return;
  const isPast = event === "past";
  const haveStraysChanged = newest ? arrive(body.node, newest, isPast) : false;
  const next = new Map(rows.value);
  const known = next.get(body.node) ?? [];
  // A node that has started again does not know what it did before, but the page does.
  const first = body.rows?.[0]?.[0] ?? Infinity;
  const before = isPast ? known.filter((row) => (row[0] ?? 0) < first) : known;
  // A row of this second may arrive before the past, which does not contain it.
  const after = isPast && newest ? known.filter((row) => (row[0] ?? 0) > newest) : [];
  next.set(body.node, [...before, ...(body.rows ?? (body.row ? [body.row] : [])), ...after].slice(-KEEP));
  rows.value = next;
  // Whoever follows it reads the rows at once.
  if (haveStraysChanged || isPast || isLate(known, newest ?? Infinity)) revision.value += 1;
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
