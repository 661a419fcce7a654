/** Seconds for which the last row of a node counts when its next one is late. */
const HOLD = 2;

/** Seconds by which a node that goes on may be behind the newest one: its clock may differ, and its rows come late. */
const LATE = 6;

/** Rows of a node; the first value of a row is its time. */
type Rows = readonly (readonly number[])[];

const secondOf = (row: readonly number[]) => Math.floor((row[0] ?? 0) / 1000);

/**
 * Combines a column of the rows of several nodes by second: their sum, or with `max` the highest. It ends where each node that
 * goes on has reported, because figures of peers come late, and half of a sum would be a dip. `now` is the newest second of the
 * node whose clock counts, by default the newest of all. Seconds without any row are undefined.
 */
export function combine(lists: readonly Rows[], column: number, count: number, max: boolean, now?: number): (number | undefined)[] {
  const nodes = lists.map((list) => new Map(list.slice(-count - 3 * LATE).map((row) => [secondOf(row), row[column] ?? 0] as const)));
  const ends = nodes.map((by) => Math.max(-Infinity, ...by.keys())).filter(Number.isFinite);
  if (ends.length === 0) return [];
  const newest = now ?? Math.max(...ends);
  const end = Math.min(...ends.filter((it) => newest - it <= LATE));
  if (!Number.isFinite(end)) return [];
  const start = Math.max(end - count + 1, Math.min(...nodes.flatMap((by) => [...by.keys()])));
  const values: (number | undefined)[] = [];
  for (let second = start; second <= end; second += 1) {
    let value: number | undefined;
    for (const by of nodes) {
      let own = by.get(second);
      for (let late = 1; own === undefined && late <= HOLD; late += 1) own = by.get(second - late);
      if (own !== undefined) value = value === undefined ? own : max ? Math.max(value, own) : value + own;
    }
    values.push(value);
  }
  return values;
}

/** Sums up a counter over all rows from second `from` to second `to`: each row counts once, also where two are in one second. */
export function total(lists: readonly Rows[], column: number, from: number, to: number): number {
  return lists.flat().filter((row) => secondOf(row) >= from && secondOf(row) <= to).reduce((sum, row) => sum + (row[column] ?? 0), 0);
}
