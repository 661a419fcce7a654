import assert from "node:assert/strict";
import { test } from "node:test";
import { cells, heightOf, hold, shrink, step, type Holding, type Owner } from "../src/charts/partitions.ts";
import { combine, total } from "../src/live/series.ts";
import { cellWords, ownerWords } from "../src/words/partitions.ts";

const owner = (node: string, owns: readonly number[], waits: Record<number, [number, number]> = {}): Owner => ({
  node, owns, stands: owns.map((partition) => ({ partition, behindRecords: waits[partition]?.[0] ?? 0, behindMs: waits[partition]?.[1] ?? 0 })),
});
const at = (held: ReadonlyMap<number, Holding>, partition: number) => {
  const it = held.get(partition);
  return it && [it.owner, it.other, it.isShared];
};

test("a partition is divided while two nodes list it, and for some seconds after it changed", () => {
  let held = hold(new Map(), [owner("n1", [0, 1]), owner("n2", [2])], 3, 0);
  assert.deepEqual([at(held, 0), at(held, 2)], [["n1", "", false], ["n2", "", false]]);
  held = hold(held, [owner("n1", [0, 1]), owner("n2", [1, 2])], 3, 1000);
  assert.deepEqual(at(held, 1), ["n1", "n2", true]);
  held = hold(held, [owner("n1", [0]), owner("n2", [1, 2])], 3, 2000);
  assert.deepEqual(at(held, 1), ["n2", "n1", false]);
  held = hold(held, [owner("n1", [0]), owner("n2", [1, 2])], 3, 6900);
  assert.deepEqual(at(held, 1), ["n2", "n1", false]);
  held = hold(held, [owner("n1", [0]), owner("n2", [1, 2])], 3, 7000);
  assert.deepEqual(at(held, 1), ["n2", "", false]);
  held = hold(held, [owner("n2", [1, 2])], 3, 8000);
  assert.deepEqual(at(held, 0), ["", "n1", false]);
  held = hold(held, [owner("n2", [1, 2])], 3, 9500);
  held = hold(held, [owner("n2", [0, 1, 2])], 3, 11_000);
  assert.deepEqual(at(held, 0), ["n2", "n1", false]);
  held = hold(held, [owner("n2", [1, 2])], 3, 20_000);
  held = hold(held, [owner("n2", [0, 1, 2])], 3, 21_000);
  assert.deepEqual(at(held, 0), ["n2", "", false], "a node that takes its own partition back took it over from nobody");
});

test("cells say what waits, and too many of them show the worst of each group", () => {
  const owners = [owner("n1", Array.from({ length: 3000 }, (_, index) => index), { 7: [640, 1200], 8: [9, 20] })];
  const held = hold(new Map(), owners, 3001, 0);
  const list = cells(held, owners, [2500]);
  assert.deepEqual([list[7]?.state, list[8]?.state, list[2500]?.state, list[3000]?.state], ["old", "fine", "behind", "orphan"]);
  const few = shrink(list, 3001);
  assert.equal(few.length, 1001);
  assert.equal(few.reduce((sum, it) => sum + it.count, 0), 3001);
  assert.deepEqual([few[2]?.first, few[2]?.last, few[2]?.state, few[2]?.records], [6, 8, "old", 640]);
  assert.equal(few.at(-1)?.state, "orphan");
  assert.equal(shrink(list.slice(0, 1000), 1000).length, 1000);
  assert.equal(cellWords(few[2] ?? list[0]!), "Partitions 6 to 8, the worst of 3, n1: 640 records wait, the oldest for 1.2 s.");
  assert.equal(cellWords(list[8]!), "Partition 8, n1: 9 records wait.");
  assert.match(cellWords(list[2500]!), /ARCHIVE_BEHIND \(4011\)/);
  assert.match(cellWords(list[3000]!), /no owner/);
});

test("an owner is described by what moves, and by the partition that waits longest", () => {
  const owners = [owner("n1", [0, 1, 2], { 1: [3, 1500], 2: [9, 2000] }), owner("n2", [2])];
  const list = cells(hold(new Map(), owners, 3, 0), owners, []);
  assert.deepEqual(ownerWords(list, 3), { text: "3, 1 on their way to n2", worst: "1: 3 records, 1.5 s old", isRed: false });
  const behind = cells(hold(new Map(), [owner("n1", [0, 1, 2, 3, 4])], 5, 0), [owner("n1", [0, 1, 2, 3, 4])], [0, 1, 3, 4]);
  assert.deepEqual(ownerWords(behind, 5), { text: "5", worst: "0, 1, 3 and 1 more: ARCHIVE_BEHIND (4011)", isRed: true });
});

test("height grows with the logarithm of what waits", () => {
  assert.deepEqual([heightOf(0), heightOf(1) > 0.1, heightOf(10) < heightOf(100), heightOf(1e9)], [0, true, true, 1]);
});

test("arrow keys reach every cell", () => {
  const rows = [3, 0, 2];
  assert.deepEqual(step([3, 2], 0, 2, "ArrowRight"), [1, 0]);
  assert.deepEqual(step([3, 2], 1, 0, "ArrowLeft"), [0, 2]);
  assert.deepEqual(step([3, 2], 0, 2, "ArrowDown"), [1, 1]);
  assert.deepEqual(step([3, 2], 0, 0, "ArrowLeft"), [0, 0]);
  assert.deepEqual(step([3, 2], 1, 1, "ArrowRight"), [1, 1]);
  assert.deepEqual(step([3, 2], 0, 1, "End"), [0, 2]);
  assert.equal(step(rows, 0, 0, "x"), undefined);
  assert.deepEqual([step(rows, 0, 2, "ArrowDown"), step(rows, 2, 0, "ArrowUp"), step(rows, 2, 0, "ArrowDown")], [[2, 1], [0, 0], [2, 0]]);
  let place: readonly [number, number] = [0, 0];
  const seen = new Set<string>();
  for (let index = 0; index < 5; index += 1) {
    seen.add(place.join());
    place = step(rows, place[0], place[1], "ArrowRight") ?? place;
  }
  assert.equal(seen.size, 5);
});

test("sums over nodes wait for those that are late, and hold what they said for two seconds", () => {
  const row = (second: number, value: number) => [second * 1000 + 200, value];
  const own = [1, 2, 3, 4, 5, 6].map((second) => row(second, 10));
  const longer = [...own, row(7, 10), row(8, 10)];
  const late = [1, 2, 4].map((second) => row(second, 5));
  assert.deepEqual(combine([own, late], 1, 300, false), [15, 15, 15, 15]);
  assert.deepEqual(combine([own, late], 1, 300, true), [10, 10, 10, 10]);
  assert.deepEqual(combine([own, late], 1, 2, false), [15, 15]);
  const gone = [row(1, 5)];
  assert.deepEqual(combine([longer, gone], 1, 300, false), [15, 15, 15, 10, 10, 10, 10, 10], "a node that is gone holds up nothing");
  assert.deepEqual(combine([[row(1, 4), row(9, 6)]], 1, 300, false), [4, 4, 4, undefined, undefined, undefined, undefined, undefined, 6]);
  assert.deepEqual(combine([], 1, 300, false), []);
  const ahead = [5, 6, 7, 8, 9, 10, 11].map((second) => row(second, 5));
  const behind = [1, 2].map((second) => row(second, 1));
  assert.deepEqual(combine([own, ahead, behind], 1, 300, false, 6), [11, 11], "a clock that is some seconds ahead does not make the others gone");
  assert.deepEqual(combine([own, ahead], 1, 1, false, 6), [15], "the newest second that all have reported");
});

test("a counter is summed by rows: a second without one adds nothing, and two rows in one second both count", () => {
  const rows = [[1000, 1], [2010, 2], [2990, 4], [5000, 8], [9000, 16]];
  assert.equal(total([rows, [[2000, 32]]], 1, 2, 8), 46);
  assert.equal(total([], 1, 0, 9), 0);
});
