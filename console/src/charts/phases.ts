import { HOLD, type Reading } from "./readings.ts";

/** A time in which a node left, or was away. */
export interface Phase {
  readonly node: string;
  readonly kind: "leaves" | "away";
  readonly from: number;
  readonly to: number;
  /** Whether it has not ended yet. */
  readonly isOpen: boolean;
  /** Clients that it had when it began to leave, and those that have left. */
  readonly had: number;
  readonly left: number;
  /** Clients that left a second while they were being closed; 0 if that was too short to say. */
  readonly rate: number;
  /** Whether the node went on without leaving. */
  readonly isCalledOff: boolean;
  /** Whether it stopped without a drain before. */
  readonly isSudden: boolean;
}

const NONE = { had: 0, left: 0, rate: 0, isCalledOff: false, isSudden: false };

/** Seconds of silence after which a node counts as away at the newest edge, where readings of peers come late. */
const LATE = 6;

/** Phases of a node, in order; `end` is the newest second. */
export function phases(node: string, readings: readonly Reading[], end: number): Phase[] {
  const list: Phase[] = [];
  let start: number | undefined;
  readings.forEach((it, index) => {
    const next = readings[index + 1];
    const silent = next ? next.at - it.at > HOLD : end - it.at > LATE;
    if (it.phase > 0) start ??= index;
    const isOver = start !== undefined && (silent || !next || next.phase === 0);
    const isDrained = start !== undefined;
    if (start !== undefined && isOver) {
      list.push(leaving(node, readings.slice(Math.max(0, start - 1), index + 1), !next && !silent, !silent && next !== undefined, silent));
      start = undefined;
    }
    if (silent) {
      list.push({ ...NONE, node, kind: "away", from: it.at, to: next?.at ?? end, isOpen: !next, had: it.clients, isSudden: !isDrained });
    }
  });
  return list;
}

/** A phase by its readings and the one before them, which is how many clients there were. */
function leaving(node: string, near: readonly Reading[], isOpen: boolean, isCalledOff: boolean, isGone: boolean): Phase {
  const run = near.filter((it) => it.phase > 0);
  const [first, last] = [run[0], run.at(-1)];
  const had = Math.max(0, ...near.map((it) => it.clients));
  const closing = run.filter((it) => it.phase >= 3);
  // The seconds after the last client are no pace.
  const fall = closing.filter((it, index) => it.clients > 0 || (closing[index - 1]?.clients ?? 0) > 0);
  const [top, bottom] = [fall[0], fall.at(-1)];
  const seconds = (bottom?.at ?? 0) - (top?.at ?? 0);
  const rate = seconds >= 2 && top && bottom ? Math.max(0, top.clients - bottom.clients) / seconds : 0;
  return {
    ...NONE, node, kind: "leaves", from: first?.at ?? 0, to: last?.at ?? 0, isOpen, had,
    // The last clients leave after the last reading of a process that ends.
    left: isGone ? had : Math.max(0, had - (last?.clients ?? 0)), rate, isCalledOff,
  };
}

/** A stop of a node without a drain: how long ago, and how long it was away if it came back. */
export interface Stop {
  readonly node: string;
  readonly agoS: number;
  readonly awayS: number | undefined;
}

/** Seconds for which a stop is reported: as long as the river shows it. */
const REPORTED = 480;

/** Returns whether a page that was opened at `openedMs` has seen all stops that are reported at `nowMs`. */
export function hasSeenAll(openedMs: number, nowMs: number): boolean {
  return nowMs - openedMs >= REPORTED * 1000;
}

/**
 * The last stop of each node in the last 8 minutes, by the readings and the clock of the page's node `own`. A time of which
 * that node has no readings says nothing of the others.
 */
export function stops(all: ReadonlyMap<string, readonly Reading[]>, own: string): Stop[] {
  const mine = all.get(own) ?? [];
  const end = mine.at(-1)?.at ?? 0;
  return [...all].flatMap(([node, readings]) => {
    const it = phases(node, readings, end).filter((phase) => phase.isSudden && phase.from >= end - REPORTED).at(-1);
    if (!it || (node !== own && !mine.some(({ at }) => at > it.from + 1 && at < it.to))) return [];
    return [{ node, agoS: end - it.from, awayS: it.isOpen ? undefined : it.to - it.from }];
  });
}
