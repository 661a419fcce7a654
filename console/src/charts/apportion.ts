import type { Move } from "./strands.ts";

/** Seconds after which clients that left a node count as gone, if no other node has gained any. */
const GONE = 6;

/**
 * Derives moves from counts alone: what nodes gain is taken from those that lost clients in the seconds before, in
 * proportion to what they lost.
 */
export class Apportion {
  private before: readonly number[] | undefined;
  private readonly lost: number[][];
  private readonly names: readonly string[];

  constructor(names: readonly string[]) {
    this.names = names;
    this.lost = names.map(() => []);
  }

  /** Returns the moves of the next second, by the clients of each node in the order of the names. */
  next(counts: readonly number[]): Move[] {
    const before = this.before ?? counts;
    this.before = [...counts];
    const change = counts.map((count, node) => count - (before[node] ?? 0));
    this.lost.forEach((list, node) => {
      list.push(Math.max(0, -(change[node] ?? 0)));
      if (list.length > GONE) list.shift();
    });
    const moves: Move[] = [];
    change.forEach((gain, to) => {
      const sums = this.lost.map((list, from) => (from === to ? 0 : list.reduce((sum, it) => sum + it, 0)));
      const pool = sums.reduce((sum, it) => sum + it, 0);
      if (gain <= 0 || pool <= 0) return;
      sums.forEach((sum, from) => {
        const count = (Math.min(gain, pool) * sum) / pool;
        if (count <= 0) return;
        moves.push({ from: this.names[from] ?? "", to: this.names[to] ?? "", count });
        take(this.lost[from] ?? [], count);
      });
    });
    return moves;
  }
}

/** Takes an amount from the oldest entries of a list. */
function take(list: number[], amount: number): void {
  let rest = amount;
  for (let index = 0; index < list.length && rest > 0; index += 1) {
    const part = Math.min(rest, list[index] ?? 0);
    list[index] = (list[index] ?? 0) - part;
    rest -= part;
  }
}
