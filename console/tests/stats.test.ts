import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { effect } from "@preact/signals";
import { Course } from "../src/charts/course.ts";
import { boot, type Boot } from "../src/live/boot.ts";
import { apart, hasReported, late } from "../src/live/clocks.ts";
import { codesNow } from "../src/live/codes.ts";
import { readings } from "../src/live/samples.ts";
import { arrivals, counted, now, openedMs, resumedMs, revision, rows, series, strays, take } from "../src/live/stats.ts";
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
  const of = () => [...late(arrivals.value, "n1", resumedMs.value, new Map()).unanswered];
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
  assert.ok(openedMs.value > 0 && openedMs.value < resumedMs.value, "the page was open before");
  assert.deepEqual(of(), []);
  row("n1", 84, 3);
  assert.deepEqual(of(), [["n2", 4]]);
});

test("a listed node is awaited for three seconds, and does not answer from then on", () => {
  const listed = new Map([["n1", 0], ["n2", 0], ["n3", 0]]);
  const of = (more: ReadonlyMap<string, number> = listed) => {
    const { unanswered, awaited } = late(arrivals.value, "n1", resumedMs.value, more);
    return [awaited, [...unanswered]];
  };
  assert.deepEqual(of(), [["n2", "n3"], []], "before the first row of the page’s node nothing is known of the others");
  // n3 died long before the page was opened, and n2 has been silent for as long because no page asked it.
  for (const node of ["n2", "n3"]) take("past", JSON.stringify({ node, rows: [[START - 60_000, 1]] }));
  row("n1", 0, 3);
  assert.deepEqual(of(), [["n2", "n3"], []]);
  row("n2", 0, 3);
  for (let second = 1; second <= 3; second += 1) {
    row("n1", second, 3);
    row("n2", second, 3);
  }
  assert.deepEqual(of(), [["n3"], []]);
  row("n1", 4, 3);
  assert.deepEqual(of(), [[], [["n3", 4]]]);
  assert.deepEqual(of(new Map([...listed, ["n4", START + 2000]])), [["n4"], [["n3", 4]]], "n4 has joined two seconds ago");
});

test("a node that died just before the page was opened is awaited, although its past is known", () => {
  const of = () => {
    const { unanswered, awaited } = late(arrivals.value, "n1", resumedMs.value, new Map([["n1", 0], ["n2", 0], ["n3", 0]]));
    return [awaited, [...unanswered]];
  };
  // n3 died a second ago: its lease is live, and its newest row is as new as that of n2.
  for (const node of ["n1", "n2", "n3"]) take("past", JSON.stringify({ node, rows: [[START - 2000, 1], [START - 1000, 1]] }));
  row("n1", 0, 3);
  assert.deepEqual(of(), [["n2", "n3"], []], "nothing is known of the present");
  for (let second = 1; second <= 2; second += 1) {
    row("n1", second, 3);
    row("n2", second, 3);
    assert.deepEqual(of(), [["n3"], []]);
  }
  row("n1", 3, 3);
  row("n2", 3, 3);
  assert.deepEqual(of(), [[], [["n3", 4]]]);
});

test("the river contains rows that come after it was drawn, late or as the past", () => {
  const course = new Course();
  const lanes = () => {
    course.update({ names: ["n1", "n2"], readings: readings(), flows: new Map(), own: "n1", revision: revision.value });
    return (second: number) => course.strands.steps.find((step) => step.at === START / 1000 + second)?.lanes[1]?.length;
  };
  // Drawn when the revision rises, as the page does.
  let drawn = lanes();
  const stop = effect(() => void [revision.value, (drawn = lanes())]);
  for (let second = 0; second <= 60; second += 1) {
    row("n1", second, 0, 1);
    if (second <= 20) row("n2", second, 0, 5);
    lanes();
  }
  assert.deepEqual([drawn(20), lanes()(40)], [5, 0]);
  const before = revision.value;
  // Rows that are not so late that the clock of the node counts as another one.
  for (let second = 55; second <= 58; second += 1) row("n2", second, 0, 5);
  assert.ok(revision.value > before, "late rows raise it");
  assert.deepEqual(strays.value, []);
  for (let second = 61; second <= 66; second += 1) {
    row("n1", second, 0, 1);
    row("n2", second - 2, 0, 5);
    lanes();
  }
  assert.deepEqual([drawn(54), drawn(55)], [0, 5]);
  for (let second = 21; second <= 64; second += 1) row("n2", second, 0, 5);
  assert.equal(drawn(40), 5, "later ones, by which its clock was another one for a while");
  const late = revision.value;
  for (let second = 67; second <= 70; second += 1) {
    row("n1", second, 0, 1);
    row("n2", second - 2, 0, 5);
  }
  assert.equal(revision.value, late, "rows that are on time do not");
  rows.value = new Map([["n1", rows.value.get("n1") ?? []], ["n2", rows.value.get("n2")?.slice(-1) ?? []]]);
  revision.value += 1;
  assert.equal(drawn(40), 0);
  take("past", JSON.stringify({ node: "n2", rows: Array.from({ length: 60 }, (_, second) => [START + second * 1000, 0, 5]) }));
  assert.equal(drawn(40), 5, "the rows are there when the revision rises");
  assert.equal(rows.value.get("n2")?.at(-1)?.[0], START + 68_000, "what came before the past stays");
  stop();
});
