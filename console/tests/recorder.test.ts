import assert from "node:assert/strict";
import { test } from "node:test";
import { awayMs, measure } from "../src/try/facts.ts";
import { hash, parseFrame } from "../src/try/frames.ts";
import { toLines } from "../src/try/history.ts";
import { Recorder } from "../src/try/recorder.ts";
import { addressesFor } from "../src/try/addresses.ts";

function frame(raw: string) {
  const it = parseFrame(raw);
  if (!it) throw new Error("an empty frame");
  return it;
}

/** The record of one message from alice to bob, whose link was cut for a second before it got there. */
function record(): Recorder {
  const it = new Recorder();
  it.opened(1, "alice", "phone");
  it.opened(2, "bob", "phone");
  it.frame(1, "in", frame('{"id":1,"welcome":{"session":"s","node":"n1"}}'), 1);
  it.frame(2, "in", frame('{"id":1,"welcome":{"session":"t","node":"n1"}}'), 2);
  it.closed(2, 1000);
  it.frame(1, "out", frame('{"id":2,"send":{"toUser":"bob","msgId":"m1","nextId":"m2","content":{"text":"hi"}}}'), 1100);
  it.frame(1, "in", frame('{"id":2,"sendAck":{"conversation":"d:alice:bob","msgId":"m1","seq":4}}'), 1103.5);
  it.opened(3, "bob", "phone");
  it.frame(3, "in", frame('{"id":1,"welcome":{"session":"u","node":"n1"}}'), 2000);
  it.frame(3, "in", frame('{"id":3,"page":{"conversation":"d:alice:bob","messages":[{"conversation":"d:alice:bob","seq":4,"sender":"alice","msgId":"m1","content":{"text":"hi"}}]}}'), 2010);
  it.shown(3, "bob", "phone", { conversation: "d:alice:bob", seq: 4, msgId: "m1", text: "hi" }, 2011);
  return it;
}

test("a record has the form of the history checker", () => {
  const lines = toLines(record().events).trim().split("\n").map((line) => JSON.parse(line) as Record<string, unknown>);
  assert.deepEqual(lines.map((line) => Object.keys(line).find((key) => key !== "at")), ["open", "open", "close", "send_inv", "send_ok", "open", "recv", "recv"]);
  assert.deepEqual(lines[3], {
    at: 1100e6,
    send_inv: { user: "alice", device: "phone", conv: "d:alice:bob", body: hash("hi"), session: 1, cid: "m1", attempt: 0, chained: true },
  });
  assert.equal((lines[7]?.["recv"] as { via: string }).via, "app");
});

test("a refusal ends a send, a temporary one or the end of the link leaves it open", () => {
  const it = new Recorder();
  it.opened(1, "alice", "phone");
  it.frame(1, "in", frame('{"id":1,"welcome":{"node":"n1"}}'), 0);
  for (const [id, error] of [[2, '{"code":4003,"name":"ORDER_SKIPPED"}'], [3, '{"code":4001,"name":"RATE_LIMITED","temporary":true}']] as const) {
    it.frame(1, "out", frame(`{"id":${id},"send":{"toUser":"bob","msgId":"m${id}","content":{"text":"x"}}}`), id);
    it.frame(1, "in", frame(`{"id":${id},"error":${error}}`), id);
  }
  it.frame(1, "out", frame('{"id":4,"send":{"toUser":"bob","msgId":"m4","content":{"text":"x"}}}'), 5);
  it.closed(1, 6);
  const kinds = it.events.map((event) => Object.keys(event).filter((key) => key !== "at").join());
  assert.deepEqual(kinds, ["open", "send_inv", "send_fail", "send_inv", "send_info", "send_inv", "send_info", "close"]);
});

test("what others sent, and what a planted fault hides, is not recorded", () => {
  const it = record();
  const before = it.events.length;
  it.frame(3, "in", frame('{"push":{"conversation":"d:alice:bob","seq":5,"sender":"alice","msgId":"other","content":{"text":"x"}}}'), 3000);
  it.hidden.add("bob m1");
  it.frame(3, "in", frame('{"push":{"conversation":"d:alice:bob","seq":4,"sender":"alice","msgId":"m1","content":{"text":"hi"}}}'), 3001);
  it.shown(3, "bob", "phone", { conversation: "d:alice:bob", seq: 4, msgId: "m1", text: "hi" }, 3002);
  assert.equal(it.events.length, before);
  assert.equal(it.foreign.get(5), "other");
});

test("the facts of a cut are measured from the record", () => {
  const it = measure(record().events, "bob", 999, 2005);
  assert.deepEqual({ ...it, ackMs: Math.round((it.ackMs ?? 0) * 10) / 10 }, { sent: 1, ackMs: 3.5, had: 0, got: [4], backAt: 2000, again: 0, shown: 1, repeated: 0, closed: [0] });
});

test("an absence has one length, that of the person's header", () => {
  assert.equal(awayMs({ ms: 3200, at: 5000 }, 1700, 5001), 3200);
  assert.equal(awayMs({ ms: 3200, at: 1000 }, 1700, 5001), 3301, "an earlier absence is not this one");
  assert.equal(awayMs(undefined, 1700, 5001), 3301);
});

test("what reached the screen is counted, and repeated sends that kept their number", () => {
  const it = record();
  assert.deepEqual([measure(it.events, "bob", 999, 2005).shown, measure(it.events, "bob", 2500, 3000).shown], [1, undefined]);
  assert.equal(measure(it.events, "alice", 1200, 2005).had, 4, "a person has what it sent");
  it.shown(3, "bob", "phone", { conversation: "d:alice:bob", seq: 4, msgId: "m1", text: "hi" }, 2500);
  assert.equal(measure(it.events, "bob", 999, 2005).shown, 2);
  const send = (attempt: number) => frame(`{"id":${5 + attempt},"send":{"toUser":"bob","msgId":"m1","attempt":${attempt},"content":{"text":"hi"}}}`);
  it.frame(1, "out", send(1), 3000);
  assert.equal(measure(it.events, "bob", 2900, 4000).repeated, 0);
  it.frame(1, "in", frame('{"id":6,"sendAck":{"conversation":"d:alice:bob","msgId":"m1","seq":4,"duplicate":true}}'), 3010);
  assert.deepEqual([measure(it.events, "bob", 2900, 4000).repeated, measure(it.events, "bob", 3100, 4000).repeated], [1, 0]);
});

test("people begin at different nodes of a cluster, and try all of them", () => {
  assert.deepEqual(addressesFor(0, ["a"], [["b"], ["c"]]), ["a", "b", "c"]);
  assert.deepEqual(addressesFor(1, ["a"], [["b"], ["c"]]), ["b", "c", "a"]);
  assert.deepEqual(addressesFor(2, ["a"], [["b"]]), ["a", "b"]);
  assert.deepEqual([addressesFor(1, ["a"], []), addressesFor(1, [], [])], [["a"], []]);
});

test("a live room has one name in a record, whether frames name its kind or not", () => {
  const it = new Recorder();
  it.opened(1, "alice", "phone");
  it.frame(1, "in", frame('{"id":1,"welcome":{"node":"n1"}}'), 0);
  it.frame(1, "out", frame('{"id":2,"join":{"room":"hall"}}'), 1);
  it.frame(1, "in", frame('{"id":2,"done":{}}'), 2);
  it.frame(1, "in", frame('{"shed":{"room":"hall","count":3}}'), 3);
  assert.deepEqual(it.events.slice(1).map(({ at, ...event }) => event), [{ joined: { session: 1, conv: "r:hall", node: "n1" } }, { shed: { session: 1, conv: "r:hall", count: 3 } }]);
});
