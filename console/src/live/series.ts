/** Seconds for which the last row of a node counts when its next one is late. */
const HOLD = 2;

/**
 * Combines a column of the rows of several nodes by second: their sum, or with `max` the highest. It ends where each node that
 * goes on has been heard, because figures of peers come late, and half of a sum would be a dip. Seconds without any row are
 * undefined.
 */
export function combine(lists: readonly (readonly (readonly number[])[])[], column: number, count: number, max: boolean): (number | undefined)[] {
  const nodes = lists.map((list) => new Map(list.slice(-count - 8).map((row) => [Math.floor((row[0] ?? 0) / 1000), row[column] ?? 0] as const)));
  const ends = nodes.map((by) => Math.max(-Infinity, ...by.keys())).filter(Number.isFinite);
  if (ends.length === 0) return [];
  const newest = Math.max(...ends);
  const end = Math.min(...ends.filter((it) => newest - it <= 4));
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
