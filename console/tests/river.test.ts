import assert from "node:assert/strict";
import { test } from "node:test";
import { Apportion } from "../src/charts/apportion.ts";
import { Course } from "../src/charts/course.ts";
import { hasSeenAll, phases, stops } from "../src/charts/phases.ts";
import { counts, hadClients, ordered, type Reading } from "../src/charts/readings.ts";
import { layout, windowOf } from "../src/charts/river.ts";
import { measured, sparkPath } from "../src/charts/sparkpath.ts";
import { FLIGHT, LOOK, Strands, unitOf, type Move, type Second } from "../src/charts/strands.ts";
import { askNext, mergeFlows, type Ask } from "../src/live/flows.ts";
import { caption, compact, lasted, minutes, movesWords, phaseBrief, phaseWords, summary } from "../src/words/river.ts";

/** Numbers from 0 to 1 that repeat for a seed. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

const NAMES = ["n1", "n2", "n3"];

/** A cluster by seed: clients come, go, and leave draining nodes, and return up to two seconds later. */
function cluster(seed: number, seconds: number, size: number): Second[] {
  const next = random(seed);
  const have = NAMES.map(() => Math.floor(next() * size));
  const late: { due: number; from: number; to: number; count: number }[] = [];
  const list: Second[] = [];
  let draining = -1;
  for (let at = 0; at < seconds; at += 1) {
    const moves: Move[] = [];
    if (next() < 0.02) draining = Math.floor(next() * 4) - 1;
    if (draining >= 0) {
      const count = Math.min(have[draining] ?? 0, Math.ceil((next() * size) / 20));
      have[draining] = (have[draining] ?? 0) - count;
      if (count > 0) late.push({ due: at + Math.floor(next() * 3), from: draining, to: (draining + 1 + Math.floor(next() * 2)) % 3, count });
    }
    for (const it of late.splice(0)) {
      if (it.due > at) late.push(it);
      else {
        have[it.to] = (have[it.to] ?? 0) + it.count;
        moves.push({ from: NAMES[it.from] ?? "", to: NAMES[it.to] ?? "", count: it.count });
      }
    }
    if (next() < 0.1) have[0] = Math.max(0, (have[0] ?? 0) + Math.floor((next() - 0.5) * 4));
    list.push({ at, counts: new Map(NAMES.map((name, index) => [name, have[index] ?? 0])), moves });
  }
  return list;
}

test("no strand is twice, and what leaves a lane for another one arrives there", () => {
  let crossed = 0;
  for (let seed = 1; seed <= 40; seed += 1) {
    const unit = [1, 5, 25][seed % 3] ?? 1;
    const strands = new Strands(NAMES, unit);
    const all = cluster(seed, 400, 40 * unit);
    all.forEach((second) => strands.feed(second));
    assert.equal(strands.steps.length, 400 - LOOK);
    const flights = new Map<number, { to: number; lands: number }>();
    let before = new Map<number, number>();
    for (const step of strands.steps) {
      const place = new Map<number, number>();
      step.lanes.forEach((lane, index) => lane.forEach((strand) => {
        assert.ok(!place.has(strand), `seed ${seed}: strand ${strand} is in two lanes at ${step.at}`);
        place.set(strand, index);
      }));
      for (const [strand, { to, lands }] of flights) {
        if (lands > step.at) {
          assert.ok(!place.has(strand), `seed ${seed}: a strand that crosses is in a lane too`);
          continue;
        }
        // It may go on, or end, in the second in which it arrives.
        before.set(strand, to);
        flights.delete(strand);
      }
      for (const it of strands.crossings.filter(({ at }) => at === step.at)) {
        assert.ok(!flights.has(it.strand), `seed ${seed}: strand ${it.strand} leaves while it crosses`);
        assert.equal(before.get(it.strand), it.from, `seed ${seed}: strand ${it.strand} leaves a lane in which it is not`);
        assert.ok(!place.has(it.strand), `seed ${seed}: a strand leaves and stays`);
        flights.set(it.strand, { to: it.to, lands: step.at + FLIGHT });
        crossed += 1;
      }
      for (const [strand, lane] of place) {
        const was = before.get(strand);
        if (was !== undefined) assert.equal(lane, was, `seed ${seed}: strand ${strand} changed its lane without crossing`);
      }
      before = place;
    }
  }
  assert.ok(crossed > 500, `only ${crossed} strands crossed`);
});

test("lanes follow the counts within a strand, once nothing moves", () => {
  for (let seed = 1; seed <= 20; seed += 1) {
    const strands = new Strands(NAMES, 5);
    const all = cluster(seed, 300, 400);
    const last = all.at(-1);
    assert.ok(last);
    const calm = Array.from({ length: FLIGHT + LOOK + 2 }, (_, index) => ({ at: 300 + index, counts: last.counts, moves: [] }));
    [...all, ...calm].forEach((second) => strands.feed(second));
    strands.steps.at(-1)?.lanes.forEach((lane, index) => {
      const clients = last.counts.get(NAMES[index] ?? "") ?? 0;
      assert.ok(Math.abs(lane.length - clients / 5) <= 2, `seed ${seed}: ${lane.length} strands for ${clients} clients of ${NAMES[index]}`);
    });
  }
});

test("a drain hands all its strands over and ends none", () => {
  const strands = new Strands(NAMES, 10);
  const seconds: Second[] = [];
  for (let at = 0; at < 100; at += 1) {
    const gone = Math.min(300, Math.max(0, at - 20) * 10);
    const back = Math.min(300, Math.max(0, at - 22) * 10);
    const moves = back > 0 && at <= 52 ? [{ from: "n3", to: at % 2 ? "n1" : "n2", count: 10 }] : [];
    const [odd, even] = [Math.ceil(back / 20) * 10, Math.floor(back / 20) * 10];
    seconds.push({ at, counts: new Map([["n1", 300 + odd], ["n2", 300 + even], ["n3", 300 - gone]]), moves });
  }
  seconds.forEach((second) => strands.feed(second));
  const [first, last] = [strands.steps[0], strands.steps.at(-1)];
  assert.deepEqual(first?.lanes.map((lane) => lane.length), [30, 30, 30]);
  assert.deepEqual(last?.lanes.map((lane) => lane.length), [45, 45, 0]);
  assert.deepEqual([...(last?.lanes.flat() ?? [])].sort((a, b) => a - b), [...(first?.lanes.flat() ?? [])].sort((a, b) => a - b));
  assert.equal(strands.crossings.length, 30);
});

test("the rest of a drain that is less than a strand goes where most of it went", () => {
  const strands = new Strands(NAMES, 10);
  for (let at = 0; at < 40; at += 1) strands.feed({ at, counts: new Map([["n1", at < 20 ? 20 : 26], ["n3", at < 20 ? 6 : 0]]), moves: at === 21 ? [{ from: "n3", to: "n1", count: 6 }] : [] });
  assert.deepEqual(strands.steps[0]?.lanes.map((lane) => lane.length), [2, 0, 1]);
  assert.deepEqual(strands.crossings.map(({ from, to }) => [from, to]), [[2, 0]]);
  assert.deepEqual(strands.steps.at(-1)?.lanes.map((lane) => lane.length), [3, 0, 0]);
});

test("clients that only come and go cross nothing", () => {
  const strands = new Strands(NAMES, 1);
  for (let at = 0; at < 60; at += 1) strands.feed({ at, counts: new Map([["n1", 5 + (at % 7)], ["n2", 9 - (at % 5)]]), moves: [{ from: "", to: "n1", count: 3 }, { from: "n2", to: "", count: 2 }] });
  assert.deepEqual(strands.crossings, []);
});

test("moves are derived from counts: what one loses, another gains within seconds", () => {
  const it = new Apportion(NAMES);
  assert.deepEqual(it.next([100, 100, 100]), []);
  assert.deepEqual(it.next([100, 100, 70]), []);
  assert.deepEqual(it.next([120, 110, 70]), [{ from: "n3", to: "n1", count: 20 }, { from: "n3", to: "n2", count: 10 }]);
  assert.deepEqual(it.next([125, 110, 70]), [], "nobody had left");
  it.next([125, 90, 70]);
  for (let second = 0; second < 6; second += 1) assert.deepEqual(it.next([125, 90, 70]), []);
  assert.deepEqual(it.next([145, 90, 70]), [], "they were gone for too long");
});

test("a strand is a round number of clients", () => {
  assert.deepEqual([0, 5, 180, 300, 500, 1000, 2000, 4200, 45_012, 1e6].map(unitOf), [1, 1, 1, 2, 2, 5, 10, 25, 250, 5000]);
});

const reading = (at: number, clients: number, phase = 0): Reading => ({ at, clients, phase });

test("readings hold for three seconds, and a second has one", () => {
  assert.deepEqual(counts([reading(10, 5), reading(12, 6), reading(20, 7)], 8, 21), [0, 0, 5, 5, 6, 6, 6, 6, 0, 0, 0, 0, 7, 7]);
  assert.deepEqual(counts([reading(10, 5)], 10, 14, (at) => (at === 12 ? 4 : 0)), [5, 5, 1, 1, 0], "moves that are known count since the last reading");
  assert.deepEqual(ordered([reading(11, 1), reading(10, 2), reading(11, 3)]).map((it) => [it.at, it.clients]), [[10, 2], [11, 3]]);
});

test("a rolling restart is named: how many left, how fast, and how long the node was away", () => {
  const list = [reading(0, 100), reading(1, 100, 1), reading(2, 100, 3), reading(3, 80, 3), reading(4, 60, 3), reading(5, 40, 3), reading(6, 20, 3), reading(7, 0, 3), reading(8, 0, 4), reading(40, 0), reading(41, 3)];
  const [leaves, away, ...more] = phases("n3", list, 42);
  assert.deepEqual([leaves?.kind, leaves?.from, leaves?.to, leaves?.had, leaves?.left, leaves?.rate, leaves?.isOpen, leaves?.isCalledOff], ["leaves", 1, 8, 100, 100, 20, false, false]);
  assert.deepEqual([away?.kind, away?.from, away?.to, away?.isOpen, away?.isSudden], ["away", 8, 40, false, false]);
  assert.deepEqual(more, []);
});

test("a drain that goes on, one that was called off, and a node that died", () => {
  const [open] = phases("n1", [reading(0, 9), reading(1, 9, 2), reading(2, 9, 3)], 3);
  assert.deepEqual([open?.isOpen, open?.left], [true, 0]);
  const [off] = phases("n1", [reading(0, 9), reading(1, 9, 1), reading(2, 9)], 2);
  assert.deepEqual([off?.isOpen, off?.isCalledOff], [false, true]);
  const [gone] = phases("n1", [reading(0, 9), reading(1, 9, 1), reading(2, 5, 3)], 12);
  assert.deepEqual([gone?.kind, gone?.isOpen, gone?.had, gone?.left], ["leaves", false, 9, 9], "the process ended, so nobody is left");
  const [dead] = phases("n1", [reading(0, 9), reading(1, 9)], 12);
  assert.deepEqual([dead?.kind, dead?.isOpen, dead?.isSudden, dead?.had], ["away", true, true, 9]);
});

test("phases, the caption and the summary are said in words", () => {
  const list = [reading(0, 100), reading(1, 100, 1), reading(2, 100, 3), reading(3, 80, 3), reading(4, 60, 3), reading(5, 0, 4), reading(40, 0)];
  const [leaves, away] = phases("n3", list, 42);
  assert.ok(leaves && away);
  assert.deepEqual([phaseWords(leaves), phaseWords(away), phaseBrief(leaves), phaseBrief(away)], ["leaves, 100 at 33/s", "away 35 s", "100 at 33/s", "35 s"]);
  const [open] = phases("n1", list.slice(0, 5), 5);
  assert.equal(open && phaseWords(open), "is leaving, 40 of 100 at 20/s");
  const [off] = phases("n1", [...list.slice(0, 3), reading(3, 70)], 4);
  assert.equal(off && phaseWords(off), "stays, 0 of 100 had left");
  const [dead] = phases("n1", [reading(0, 9)], 12);
  assert.equal(dead && phaseWords(dead), "stopped 12 s ago");
  assert.equal(summary(["n1", "n2"], [1, 4000], [leaves, away], 480), "The last 8 min: n3 leaves, 100 at 33/s; n3 away 35 s. Now n1 has one client and n2 has 4,000 clients.");
  const moves = [{ from: "n9", to: "n2", count: 2 }, { from: "", to: "n1", count: 5 }, { from: "n1", to: "n2", count: 1 }];
  assert.equal(summary(["n1", "n2"], [0, 2], [], 38, moves), "The last 38 s: n9, not known to this page, was left by two clients. Now n1 has no clients and n2 has two clients.");
  assert.match(summary(["n1", "n2"], [0, 2], [], 38, moves.slice(1)), /no node left/);
  assert.match(caption(250, 3, "flows", ["n3"]), /^Each strand is 250 clients, .+counted where they arrived\. n3 did not answer/);
  assert.match(caption(1, 3, "counts", []), /^Each strand is one client, .+derived from the nodes’ counts/);
  assert.equal(caption(1, 1, "counts", []), "Each strand is one client.");
  assert.equal(movesWords([{ from: "n3", to: "n1", count: 2 }, { from: "n3", to: "n1", count: 3 }, { from: "", to: "n2", count: 4 }, { from: "n1", to: "", count: 1 }, { from: "n1", to: "n1", count: 9 }]), "n3 to n1 5, new on n2 4, gone from n1 1");
  assert.deepEqual([compact(940), compact(23_512), compact(1_200_000), lasted(34), lasted(388)], ["940", "23.5k", "1.2M", "34 s", "6:28"]);
});

test("answers replace the seconds that they contain", () => {
  const first = mergeFlows(new Map(), [[1000, [["n1", "n2", 1]]], [2000, [["n1", "n2", 2]]]]);
  const next = mergeFlows(first, [[2000, [["n1", "n2", 5], ["", "n2", 1]]]]);
  assert.deepEqual([...next].map(([at, list]) => [at, list.map((move) => move.count)]), [[1, [1]], [2, [5, 1]]]);
  assert.deepEqual([...mergeFlows(next, [[1_000_000, []]]).keys()], [1000]);
});

test("moves of a node that was silent are asked for again, and no count falls meanwhile", () => {
  const ask = (asked: Ask, nowMs: number, ...silent: string[]) => askNext(asked, { nowMs, silent });
  const first: Ask = { sinceMs: 94_000, gaps: new Map() };
  assert.deepEqual(ask(first, 101_000), { sinceMs: 95_000, gaps: new Map() });
  const silent = ask(ask(first, 101_000, "n3"), 140_000, "n3");
  assert.deepEqual(silent, { sinceMs: 134_000, gaps: new Map([["n3", 94_000]]) }, "a node that stays silent does not widen each request");
  const back = ask(silent, 141_000);
  assert.deepEqual(back, { sinceMs: 94_000, gaps: new Map() });
  assert.equal(ask(back, 142_000).sinceMs, 136_000);
  assert.deepEqual(ask(back, 142_000, "n3").gaps, new Map([["n3", 94_000]]), "silent again before it was asked");
  assert.equal(ask(silent, 2_000_000).sinceMs, 1_100_000, "no more than is kept");
  assert.equal(ask(silent, 141_000, "n2").sinceMs, 94_000, "another silent node delays nothing");

  const known = mergeFlows(new Map(), [[2000, [["n1", "n3", 7], ["n3", "n1", 2], ["", "n2", 1]]]]);
  const sorted = (flows: ReadonlyMap<number, readonly Move[]>) => (flows.get(2) ?? []).map((it) => `${it.from} ${it.to} ${it.count}`).sort();
  const partial = mergeFlows(known, [[2000, [["n3", "n1", 1], ["", "n2", 4]]]], true);
  assert.deepEqual(sorted(partial), [" n2 4", "n1 n3 7", "n3 n1 2"]);
  assert.deepEqual(sorted(mergeFlows(partial, [[2000, [["n3", "n1", 1]]]])), ["n3 n1 1"]);
});

test("a clock that differs by some seconds takes no clients from the picture", () => {
  const course = new Course();
  // The readings of n2 come two seconds late from a clock that is five behind, and n3 is five ahead.
  for (let now = 1030; now < 1060; now += 1) {
    const list = (end: number) => Array.from({ length: 30 }, (_, index) => reading(end - 29 + index, 10));
    course.update({ names: NAMES, own: "n1", readings: new Map([["n1", list(now)], ["n2", list(now - 7)], ["n3", list(now + 5)]]), flows: new Map(), revision: 0 });
  }
  const lanes = course.strands.steps.slice(-20).map((it) => it.lanes.map((lane) => lane.length));
  assert.deepEqual(lanes, lanes.map(() => [10, 10, 10]));
});

test("a picture keeps its strands apart, inside its height, and joins what crosses", () => {
  const course = new Course();
  const rows = new Map(NAMES.map((name) => [name, [] as Reading[]]));
  const flows = new Map<number, Move[]>();
  for (let at = 1000; at < 1200; at += 1) {
    const gone = Math.min(60, Math.max(0, at - 1060));
    rows.get("n1")?.push(reading(at, 60 + gone));
    rows.get("n2")?.push(reading(at, 60));
    rows.get("n3")?.push(reading(at, 60 - gone));
    if (at > 1060 && at <= 1120) flows.set(at, [{ from: "n3", to: "n1", count: 1 }]);
  }
  course.update({ names: NAMES, readings: rows, flows, revision: 0 });
  const { steps, crossings } = course.strands;
  const end = steps.at(-1)?.at ?? 0;
  const it = layout(steps, crossings, end - 179, 180, 392);
  assert.equal(it.lines.length, 180);
  for (const { y, lane } of it.lines) {
    for (let second = 0; second < 180; second += 1) {
      assert.ok((lane[second] ?? -1) >= 0, "a strand has a hole");
      assert.ok((y[second] ?? 0) > 0 && (y[second] ?? 0) < 392);
      if (second > 0) assert.ok(Math.abs((y[second] ?? 0) - (y[second - 1] ?? 0)) < 60, "a strand jumps");
    }
  }
  for (const second of [0, 60, 179]) {
    const places = it.lines.map(({ y }) => Math.round((y[second] ?? 0) * 10));
    if (second !== 60) assert.equal(new Set(places).size, places.length, "two strands lie on each other");
  }
  // Moves that arrive after their counts are drawn too.
  const late = new Course();
  const part = (end: number) => new Map([...rows].map(([name, list]) => [name, list.filter((row) => row.at < end)]));
  for (let end = 1010; end <= 1200; end += 1) late.update({ names: NAMES, readings: part(end), flows: new Map([...flows].filter(([second]) => second < end - 4)), revision: 0 });
  assert.equal(late.strands.crossings.length, 60);
  const before = course.strands;
  course.update({ names: NAMES, readings: rows, flows, revision: 0 });
  assert.equal(course.strands, before, "nothing new begins nothing again");
});

test("the window grows with what is known, and then moves on", () => {
  assert.deepEqual([1, 30, 31, 133, 480, 900].map((known) => windowOf(1000, 1000 + known - 1)), [30, 30, 31, 133, 480, 480]);
  assert.deepEqual([45, 119, 120, 133, 480].map(minutes), ["45 s", "119 s", "2 min", "2:13 min", "8 min"]);
  // Half a minute after its first figures the picture has strands from edge to edge.
  const course = new Course();
  const list = Array.from({ length: 44 }, (_, index) => reading(1000 + index, 20));
  course.update({ names: ["n1"], own: "n1", readings: new Map([["n1", list]]), flows: new Map(), revision: 0 });
  const { steps, crossings } = course.strands;
  const [first, end] = [steps[0]?.at ?? 0, steps.at(-1)?.at ?? 0];
  const span = windowOf(first, end);
  assert.ok(span >= 30 && span < 44, `${span} seconds`);
  const it = layout(steps, crossings, end - span + 1, span, 392);
  assert.deepEqual(it.lines.map(({ lane }) => [lane[0], lane[span - 1]]), it.lines.map(() => [0, 0]));
});

test("stops without a drain are reported for eight minutes, and those that nobody saw are not", () => {
  const run = (from: number, to: number, phase = 0) => Array.from({ length: to - from + 1 }, (_, index) => reading(from + index, 10, phase));
  const of = (n3: readonly Reading[], end: number, n1 = run(1000, end)) => stops(new Map([["n1", n1], ["n3", n3]]), "n1");
  assert.deepEqual(of(run(1000, 1100), 1105), [], "its readings may be late");
  assert.deepEqual(of(run(1000, 1100), 1141), [{ node: "n3", agoS: 41, awayS: undefined }]);
  assert.deepEqual(of([...run(1000, 1100), ...run(1141, 1200)], 1200), [{ node: "n3", agoS: 100, awayS: 41 }]);
  assert.equal(of(run(1000, 1100), 1580).length, 1);
  assert.deepEqual(of(run(1000, 1100), 1581), []);
  assert.deepEqual(of([...run(1000, 1090), ...run(1091, 1100, 3)], 1141), [], "it drained");
  const gap = [...run(1000, 1100), ...run(1141, 1200)];
  assert.deepEqual(of(gap, 1200, gap).map((it) => it.node), ["n1"], "the page’s node was away itself");
});

test("a client is there from the first reading on", () => {
  const all = [[reading(1000, 0), reading(1001, 1), reading(1002, 0)], []];
  assert.deepEqual([[990, 1000], [1001, 1001], [1002, 1010], [1000, Infinity]].map(([from, to]) => hadClients(all, from ?? 0, to ?? 0)), [false, true, false, true]);
});

test("seconds without a measurement are gaps of a line", () => {
  assert.deepEqual(measured([4, 0, undefined, 2]), [4, undefined, undefined, 2]);
  assert.equal(sparkPath([2, 4, undefined, 2, undefined], 4, 40, 23), "M0.0 11.5L10.0 1.5M30.0 11.5h0");
  assert.equal(sparkPath([0, 4], 4, 40, 23), "M0.0 21.5L40.0 1.5");
});

test("a page has seen all stops of eight minutes once it is as old", () => {
  assert.deepEqual([hasSeenAll(1_000_000, 1_479_999), hasSeenAll(1_000_000, 1_480_000)], [false, true]);
});
