import assert from "node:assert/strict";
import { test } from "node:test";
import { codeCounts, codesNow, counted, rising, summary, takeCodes, takeTime } from "../src/live/codes.ts";

const MIN = 60_000;
const now = 1_000 * MIN;

test("counts of all nodes are summed by code, as far back as 15 minutes", () => {
  const it = summary(new Map([
    ["n1", new Map([[now - 20 * MIN, [[2002, 50]]], [now - 10 * MIN, [[2002, 2]]], [now - MIN, [[2002, 1], [4001, 3]]]])],
    ["n2", new Map([[now - MIN, [[4001, 4]]]])],
  ] as const), now);
  assert.deepEqual([it.get(2002)?.total, it.get(2002)?.recent, it.get(4001)?.total], [3, 1, 7]);
  assert.deepEqual([it.get(4001)?.line.length, it.get(4001)?.line.at(-3), it.get(4001)?.line.at(-1)], [30, 7, 0]);
  assert.equal(it.size, 2);
});

test("a code rises when it is given more often than before, in the same time", () => {
  const of = (...rows: [number, number][]) => summary(new Map([["n1", new Map(rows.map(([ago, count]) => [now - ago * MIN, [[1, count]]] as const))]]), now).get(1)?.rises;
  assert.equal(of([1, 1]), true);
  assert.equal(of([12, 10], [1, 6]), true);
  assert.equal(of([12, 10], [1, 5]), false);
  assert.equal(of([12, 10]), false);
});

test("the steepest code comes first", () => {
  const it = summary(new Map([["n1", new Map([[now - MIN, [[1, 1], [2, 9], [3, 9], [4015, 30]]]])]] as const), now);
  assert.deepEqual(rising(it).map((one) => one.code), [2, 3, 1], "the end of a history is none");
});

test("rows that are sent again count once, and old ones end", () => {
  const data = (...rows: unknown[]) => JSON.stringify({ node: "n1", everyMs: 10_000, rows });
  takeCodes(data([now - 10_000, [[2002, 3]]], [now, [[2002, 1]]]), "n1");
  takeCodes(data([now, [[2002, 1]]]), "n1");
  assert.equal(codeCounts.value.get(2002)?.total, 4);
  takeCodes(JSON.stringify({ node: "n2", everyMs: 10_000, rows: [] }), "n1");
  assert.deepEqual([...counted.value.keys()], ["n1", "n2"]);
  takeCodes(JSON.stringify({ node: "n2", everyMs: 10_000, rows: [[now + 60 * MIN, [[2002, 1]]]] }), "n1");
  assert.deepEqual([codesNow.value, codeCounts.value.get(2002)?.total], [now, 5], "the clock of a peer is not the time");
  takeCodes(JSON.stringify({ node: "n2", everyMs: 10_000, rows: [] }), "n1");
  counted.value = new Map([...counted.value].filter(([node]) => node === "n1"));
  takeTime(now + 5000);
  assert.equal(codesNow.value, now);
  takeTime(now + 6 * MIN);
  assert.deepEqual(rising(codeCounts.value), []);
  takeTime(now + 16 * MIN);
  assert.equal(codeCounts.value.size, 0);
});
