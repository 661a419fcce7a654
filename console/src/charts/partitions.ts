/** What is known of a node's partitions. */
export interface Owner {
  readonly node: string;
  readonly owns: readonly number[];
  readonly stands: readonly { readonly partition: number; readonly behindRecords: number; readonly behindMs: number }[];
}

/** Who has a partition: its owner, and another node while it changes hands. */
export interface Holding {
  readonly owner: string;
  readonly other: string;
  /** Whether both list it now. */
  readonly isShared: boolean;
  readonly since: number;
}

/** How bad the state of a cell is, worst last: records wait for a second, sends are refused, nobody owns it. */
export type CellState = "fine" | "old" | "behind" | "orphan";

const STATES: readonly CellState[] = ["fine", "old", "behind", "orphan"];

/** One partition, or several neighbours of which it shows the worst. */
export interface Cell extends Holding {
  readonly first: number;
  readonly last: number;
  readonly count: number;
  readonly records: number;
  readonly ageMs: number;
  readonly state: CellState;
}

/** Time for which a partition that has changed its owner is drawn as divided. */
const CHANGED_MS = 5000;

/** Age of the oldest record from which a partition is marked. */
const OLD_MS = 1000;

/** Most cells; more partitions share cells. */
const CELLS_MAX = 1024;

/** Who holds each partition now, by what was known before. */
export function hold(before: ReadonlyMap<number, Holding>, owners: readonly Owner[], partitions: number, now: number): Map<number, Holding> {
  const lists = new Map<number, string[]>();
  for (const { node, owns } of owners) for (const partition of owns) lists.set(partition, [...(lists.get(partition) ?? []), node]);
  const next = new Map<number, Holding>();
  for (let partition = 0; partition < partitions; partition += 1) {
    const list = lists.get(partition) ?? [];
    const was = before.get(partition);
    const [first] = list;
    if (first === undefined) next.set(partition, { owner: "", other: was?.owner || (was?.other ?? ""), isShared: false, since: now });
    else if (list.length > 1) {
      const owner = was && list.includes(was.owner) ? was.owner : first;
      next.set(partition, { owner, other: list.find((it) => it !== owner) ?? "", isShared: true, since: now });
    } else if (was && was.owner !== first) {
      const from = was.owner || was.other;
      next.set(partition, { owner: first, other: from === first ? "" : from, isShared: false, since: now });
    } else {
      const isRecent = was !== undefined && was.other !== "" && now - was.since < CHANGED_MS;
      next.set(partition, { owner: first, other: isRecent && was ? was.other : "", isShared: false, since: was?.since ?? 0 });
    }
  }
  return next;
}

/** Cells by number, one for each partition. */
export function cells(held: ReadonlyMap<number, Holding>, owners: readonly Owner[], behind: readonly number[]): Cell[] {
  const stands = new Map(owners.flatMap((it) => it.stands.map((stand) => [stand.partition, stand] as const)));
  return [...held].map(([first, holding]) => {
    const stand = stands.get(first);
    const ageMs = stand?.behindMs ?? 0;
    const state = holding.owner === "" ? "orphan" : behind.includes(first) ? "behind" : ageMs >= OLD_MS ? "old" : "fine";
    return { ...holding, first, last: first, count: 1, records: stand?.behindRecords ?? 0, ageMs, state };
  });
}

/** Cells that each stand for several neighbours where there are too many: they show the worst of them. */
export function shrink(list: readonly Cell[], total: number): Cell[] {
  const size = Math.ceil(total / CELLS_MAX);
  if (size <= 1) return [...list];
  const merged: Cell[] = [];
  for (let index = 0; index < list.length; index += size) {
    const part = list.slice(index, index + size);
    const worst = part.reduce((a, b) => (badness(b) > badness(a) ? b : a));
    const changing = part.find((it) => it.other !== "") ?? worst;
    merged.push({
      ...worst, other: changing.other, isShared: changing.isShared, first: part[0]?.first ?? 0, last: part.at(-1)?.last ?? 0, count: part.length,
      records: Math.max(...part.map((it) => it.records)), ageMs: Math.max(...part.map((it) => it.ageMs)),
    });
  }
  return merged;
}

function badness(it: Cell): number {
  return STATES.indexOf(it.state) * 1e12 + it.ageMs * 1e3 + Math.min(999, it.records);
}

/** Height of what waits, in parts of one: logarithmic, 0 for none and 1 from 10,000 records on. */
export function heightOf(records: number): number {
  return records <= 0 ? 0 : Math.min(1, 0.15 + 0.85 * (Math.log10(records) / 4));
}

/** Steps of the keys through a grid of rows: to the next cell, across the ends of rows, or to the row above or below; rows without cells are passed over. */
export function step(rows: readonly number[], row: number, column: number, key: string): readonly [number, number] | undefined {
  const last = (index: number) => (rows[index] ?? 0) - 1;
  const near = (way: 1 | -1) => {
    for (let index = row + way; index >= 0 && index < rows.length; index += way) if (last(index) >= 0) return index;
    return undefined;
  };
  const [above, below] = [near(-1), near(1)];
  if (key === "ArrowRight") return column < last(row) ? [row, column + 1] : below !== undefined ? [below, 0] : [row, column];
  if (key === "ArrowLeft") return column > 0 ? [row, column - 1] : above !== undefined ? [above, last(above)] : [row, column];
  if (key === "ArrowDown") return below !== undefined ? [below, Math.min(column, last(below))] : [row, column];
  if (key === "ArrowUp") return above !== undefined ? [above, Math.min(column, last(above))] : [row, column];
  if (key === "Home") return [row, 0];
  if (key === "End") return [row, Math.max(0, last(row))];
  return undefined;
}
