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

/**
 * Nodes that have sent no row for more than 3 s, with the seconds, by the clock of the page's node `own`. The time before
 * `resumedMs`, in which the page itself received nothing, does not count.
 */
export function unanswered(arrivals: ReadonlyMap<string, Arrival>, own: string, resumedMs: number): Map<string, number> {
  const nowMs = arrivals.get(own)?.rowMs ?? 0;
  const all = [...arrivals].filter(([node]) => node !== own).map(([node, it]) => [node, Math.floor((nowMs - Math.max(it.ownMs, resumedMs)) / 1000)] as const);
  return new Map(all.filter(([, seconds]) => seconds > ANSWER_S));
}
