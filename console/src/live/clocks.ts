/** Time of the newest row of a node, by its own clock and by that of the page's node when the row arrived, in ms. */
export interface Arrival {
  readonly rowMs: number;
  readonly ownMs: number;
}

/** Difference of clocks from which a node's rows can't be put next to those of others; rows come up to 2 s late. */
const APART_MS = 5000;

/** Time without a row after which a node counts as one that did not report. */
const SILENT_MS = 10_000;

/** Returns the nodes whose clock is more than 5 s ahead of or behind that of the page's node. */
export function apart(arrivals: ReadonlyMap<string, Arrival>): string[] {
  return [...arrivals].filter(([, it]) => Math.abs(it.rowMs - it.ownMs) > APART_MS).map(([node]) => node).sort();
}

/** Returns whether a node has reported in the last 10 s, by the clock of the page's node `own`. */
export function hasReported(arrivals: ReadonlyMap<string, Arrival>, node: string, own: string): boolean {
  const [it, now] = [arrivals.get(node), arrivals.get(own)];
  // Without rows of the page's node there is no time to compare with.
  return now === undefined || (it !== undefined && now.rowMs - it.ownMs <= SILENT_MS);
}

/** Seconds without a row after which a node counts as one that does not answer; rows come up to 2 s late. */
const ANSWER_S = 3;

/** Nodes whose newest row is more than 3 s old. */
export interface Late {
  /** Nodes that do not answer, with the seconds. */
  readonly unanswered: ReadonlyMap<string, number>;
  /** Nodes whose first row is awaited: the page has followed them for less than 3 s. Rows from before that are no sign of life. */
  readonly awaited: readonly string[];
}

/**
 * Finds the late ones among the nodes that have reported and those that are `listed`, by the clock of the page's node `own`.
 * The time before `resumedMs`, in which the page itself received nothing, does not count, nor that before one without any row was listed.
 */
export function late(arrivals: ReadonlyMap<string, Arrival>, own: string, resumedMs: number, listed: ReadonlyMap<string, number>): Late {
  const nowMs = arrivals.get(own)?.rowMs;
  const unanswered = new Map<string, number>();
  const awaited: string[] = [];
  for (const node of new Set([...arrivals.keys(), ...listed.keys()])) {
    if (node === own) continue;
    const newestMs = arrivals.get(node)?.ownMs;
    const since = (fromMs: number) => Math.floor(((nowMs ?? 0) - fromMs) / 1000);
    const seconds = since(Math.max(newestMs ?? listed.get(node) ?? 0, resumedMs));
    if (nowMs !== undefined && seconds > ANSWER_S) unanswered.set(node, seconds);
    else if (nowMs === undefined || newestMs === undefined || newestMs <= resumedMs) awaited.push(node);
  }
  return { unanswered, awaited: awaited.sort() };
}
