import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { boot, type Boot } from "../src/live/boot.ts";
import { apart, hasReported, unanswered } from "../src/live/clocks.ts";
import { codesNow } from "../src/live/codes.ts";
import { readings } from "../src/live/samples.ts";
import { arrivals, counted, now, resumedMs, rows, series, strays, take } from "../src/live/stats.ts";
import { figuresNote } from "../src/words/nodes.ts";

const START = 1_000_000;
const own: Boot = { version: "1", node: "n1", profile: "cluster", development: true, console: "full", durable: true, features: ["stats"], clients: { ws: [] }, nodes: 3, peers: [] };

/** A row of a node arrives, some seconds after the start. */
const row = (node: string, second: number, ...values: number[]) => take("now", JSON.stringify({ node, row: [START + second * 1000, ...values] }));

beforeEach(() => {
  boot.value = own;
  rows.value = new Map();
  arrivals.value = new Map();
  strays.value = [];
  codesNow.value = 0;
  take("start", JSON.stringify({ fields: ["logins", "clients", "slowCloses"] }));
});

test("what a dead node reported last is not added for ever", () => {
  for (let second = 0; second < 20; second += 1) {
    row("n1", second, 3);
    if (second < 5) row("n2", second, 100);
    if (second === 4) assert.equal(now("logins"), 103);
  }
  assert.equal(now("logins"), 3);
  assert.equal(now("unknown"), undefined);
});

test("a figure waits for nodes that are late", () => {
  row("n1", 1, 3);
  row("n2", 1, 4);
  row("n1", 2, 3);
  assert.equal(now("logins"), 7);
});

test("a node whose clock differs is left out, and cuts nothing of the others", () => {
  for (let second = 0; second < 20; second += 1) {
    row("n1", second, 3, 30);
    row("n2", second - 3, 4, 40);
    row("n3", second + 3600, 5, 50);
    row("n4", second - 60, 6, 60);
  }
  assert.deepEqual(strays.value, ["n3", "n4"]);
  assert.deepEqual(series("logins", 5), [7, 7, 7, 7, 7]);
  assert.equal(now("logins"), 7);
  assert.equal(series("logins", 300).length, 20, "a clock that is behind puts nothing before the others");
  assert.equal(codesNow.value, START + 10_000, "codes go by the clock of the page’s node");
  assert.deepEqual([...readings().keys()], ["n1", "n2"]);
  row("n1", 20, 3);
  row("n3", 20, 5);
  assert.deepEqual(strays.value, ["n4"], "its clock was set");
});

test("after a pause of the stream, rows of the past are new rows by a clock that is known", () => {
  const past = (node: string, second: number) => take("past", JSON.stringify({ node, rows: [[START + second * 1000, 0]] }));
  past("n1", 0);
  past("n2", 0);
  row("n1", 1);
  row("n3", 61);
  past("n1", 100);
  past("n2", 99);
  past("n3", 160);
  assert.deepEqual(strays.value, ["n3"]);
  assert.deepEqual(["n1", "n2", "n3"].map((node) => hasReported(arrivals.value, node, "n1")), [true, true, true]);
});

test("slow connections that were closed are counted once, whatever row is late", () => {
  row("n1", 0, 0, 0, 1);
  row("n1", 3, 0, 0, 2);
  row("n1", 3.9, 0, 0, 4);
  assert.equal(counted("slowCloses", START / 1000, START / 1000 + 10), 7);
  assert.equal(counted("slowCloses", START / 1000 + 1, START / 1000 + 10), 6);
});

test("a node reports as long as its rows arrive, whatever its clock says", () => {
  for (let second = 0; second <= 30; second += 1) {
    row("n1", second);
    row("n2", second - 3600);
    if (second <= 20) row("n3", second);
    if (second <= 19) row("n4", second);
  }
  const reports = (node: string) => hasReported(arrivals.value, node, "n1");
  assert.deepEqual(["n1", "n2", "n3", "n4", "n5"].map(reports), [true, true, true, false, false]);
  assert.equal(hasReported(new Map(), "n2", "n1"), true, "before the page’s node has reported nothing is known");
  assert.deepEqual(apart(new Map([["n2", { rowMs: 5000, ownMs: 0 }], ["n3", { rowMs: 0, ownMs: 5001 }]])), ["n3"]);
});

test("the note about missing figures names the nodes, and the clocks that differ", () => {
  const live = ["n1", "n2", "n3"];
  assert.equal(figuresNote(live, live, []), "");
  assert.equal(figuresNote(live, [], []), "");
  assert.equal(figuresNote(live, ["n1", "n2", "n9"], []), "These are the figures of n1 and n2 alone: 2 of 3 nodes.");
  assert.equal(figuresNote(live, live, ["n3"]), "These are the figures of n1 and n2 alone: 2 of 3 nodes. n3’s clock differs.");
  assert.equal(figuresNote(live, live, ["n2", "n3"]), "These are the figures of n1 alone: 1 of 3 nodes. n2’s and n3’s clocks differ.");
});

test("a node that sends no row for more than three seconds does not answer", () => {
  const of = () => [...unanswered(arrivals.value, "n1", resumedMs.value)];
  for (let second = 0; second <= 20; second += 1) {
    row("n1", second, 3);
    if (second <= 10) row("n2", second - 3, 4);
    if (second === 13) assert.deepEqual(of(), [], "rows come late");
    if (second === 14) assert.deepEqual(of(), [["n2", 4]]);
  }
  assert.deepEqual(of(), [["n2", 10]]);
  // The page received nothing for a minute, which says nothing of n2.
  take("start", JSON.stringify({ fields: ["logins", "clients", "slowCloses"] }));
  row("n1", 80, 3);
  assert.deepEqual(of(), []);
  row("n1", 84, 3);
  assert.deepEqual(of(), [["n2", 4]]);
});
