import assert from "node:assert/strict";
import { test } from "node:test";
import { split } from "../src/live/events.ts";
import { Wire } from "../src/try/items.ts";
import { arrange, nice, place, sends, ticks, timeSentence, type Step } from "../src/views/trace.ts";
import table from "code-table";

const step = (name: string, timeUs: number, more: Partial<Step> = {}): Step => ({ step: name, node: "n1", timeUs, trace: "t", ...more });
const STEPS: readonly Step[] = [
  step("received", 1_000_000, { msg: "m1", conversation: "d:alice:bob", user: "alice", device: "phone", note: "attempt 0" }),
  step("decided", 1_001_000, { msg: "m1", seq: 4, note: "partition 0: accepted" }),
  step("appended", 1_004_000),
  step("archived", 1_004_200, { seq: 4 }),
  step("answered", 1_005_000),
  step("pushed", 1_004_900, { user: "bob", device: "phone" }),
  step("acked", 1_090_000, { user: "bob", device: "phone" }),
];

test("steps become sends, and an attempt that was accepted before is marked", () => {
  const [again, first] = sends([...STEPS, step("received", 2_000_000, { trace: "u", msg: "m1", note: "attempt 1" }), step("decided", 2_000_500, { trace: "u", note: "partition 0: accepted before", seq: 4 })]);
  assert.deepEqual([first?.msg, first?.seq, first?.ackMs, first?.refused, first?.isAgain], ["m1", 4, 5, "", false]);
  assert.deepEqual([again?.attempt, again?.isAgain, again?.ackMs], [1, true, undefined]);
  const [refused] = sends([step("received", 1, { msg: "x" }), step("decided", 2, { note: "partition 0: MUTED" })]);
  assert.equal(refused?.refused, "MUTED");
});

test("each step begins at its cause, and the scale bends after the ack", () => {
  const [sent] = sends(STEPS);
  assert.ok(sent);
  const it = arrange(sent);
  const bars = it.lanes[0]?.bars ?? [];
  const bar = (name: string) => bars.find((one) => one.step.step === name);
  assert.deepEqual([bar("decided")?.from, bar("appended")?.from, bar("archived")?.from, bar("pushed")?.from], [0, 1, 4, 4.2]);
  assert.equal(bar("acked")?.from, bar("pushed")?.to);
  assert.equal(bar("acked")?.kind, "device");
  assert.deepEqual([it.ackMs, it.firstMs, it.allMs, it.devices], [5, 90, 90, 1]);
  assert.ok(it.bend >= 5 && it.bend < 10 && it.end >= 90);
  assert.ok(place(it, 5) < 0.72 && place(it, it.bend) === 0.72 && place(it, it.end) === 1);
  assert.deepEqual(ticks(it).slice(-2), [it.bend, it.end]);
  assert.equal(timeSentence(it), "Writing to the log took 60 % of the time to the ack. What follows it is the wait for the devices’ acks.");
});

test("a step whose clock is early is drawn at its cause", () => {
  const [sent] = sends([step("received", 5000, { msg: "x" }), step("archived", 9000), step("pushed", 8000, { node: "n2", user: "bob", device: "phone" })]);
  assert.ok(sent);
  const bar = arrange(sent).lanes[1]?.bars[0];
  assert.deepEqual([bar?.isEarly, bar?.from, bar?.to], [true, 4, 4]);
});

test("a message that returns to a node has another lane of it, in order of cause", () => {
  const on = (node: string, name: string, timeUs: number, more: Partial<Step> = {}) => step(name, timeUs, { node, ...more });
  const [sent] = sends([
    on("n1", "received", 1000, { msg: "x", user: "alice", device: "phone" }), on("n1", "appended", 2000), on("n2", "decided", 3000, { note: "partition 17: accepted" }), on("n2", "archived", 4000), on("n2", "answered", 4100),
    on("n3", "arrived", 4500), on("n1", "answered", 5000), on("n1", "pushed", 5100, { user: "carol", device: "phone" }), on("n3", "pushed", 4600, { user: "bob", device: "phone" }), on("n3", "acked", 4700, { user: "bob", device: "phone" }),
  ]);
  assert.ok(sent);
  const lanes = arrange(sent).lanes.map((lane) => [lane.node, ...lane.bars.map((bar) => bar.step.step)]);
  assert.deepEqual(lanes, [["n1", "received", "appended"], ["n2", "decided", "archived", "answered"], ["n1", "answered", "pushed"], ["n3", "arrived", "pushed", "acked"]]);
  assert.deepEqual(arrange(sent).lanes.map((lane) => lane.part), ["alice is here", "owns partition 17", "the ack goes back to alice", "one device"]);
  const [single] = sends(STEPS);
  assert.ok(single);
  assert.equal(arrange(single).lanes[0]?.part, "");
  assert.deepEqual(arrange(single).lanes.map((lane) => [lane.node, lane.bars.length]), [["n1", STEPS.length]]);
  const [unknown] = sends([on("n2", "arrived", 100, { msg: "y" }), on("n2", "pushed", 200)]);
  assert.ok(unknown);
  assert.deepEqual(arrange(unknown).lanes.map((lane) => lane.bars.map((bar) => bar.step.step)), [["arrived", "pushed"]]);
});

test("round numbers", () => {
  assert.deepEqual([nice(0.9), nice(5.4), nice(11), nice(272)], [1, 6, 15, 300]);
});

test("a band covers the rows from its begin to its end", () => {
  const wire = new Wire();
  const frame = { id: 1, kind: "send", body: {}, raw: "{}" };
  wire.frame(1, 0, "out", frame, "");
  const band = wire.begin(1, "red", true);
  wire.mark(2, 1, "cut", "red");
  wire.frame(3, 0, "out", frame, "");
  wire.end(band);
  wire.frame(4, 0, "out", frame, "");
  const covers = wire.items.map((item) => wire.cover(1, item.key));
  assert.deepEqual(covers.map((it) => it && [it.isFirst, it.isLast]), [undefined, [true, false], [false, true], undefined]);
  assert.equal(wire.cover(0, 2), undefined);
});

test("a stream is split at its empty lines, whatever the pieces", () => {
  const { events, rest } = split('event: start\ndata: {"a":1}\n\nevent: now\nda');
  assert.deepEqual(events, [{ event: "start", data: '{"a":1}' }]);
  assert.deepEqual(split(`${rest}ta: 2\n\n: note\n\n`).events, [{ event: "now", data: "2" }]);
});

test("the page of codes is complete", () => {
  assert.ok(table.length > 40);
  for (const it of table) assert.ok(it.cause && it.cure && it.group, it.name);
  assert.deepEqual(table.find((it) => it.code === 2002)?.name, "TOKEN_EXPIRED");
});
