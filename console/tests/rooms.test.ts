import assert from "node:assert/strict";
import { test } from "node:test";
import type { HistoryEvent, Stamped } from "../src/try/history.ts";
import { Audience } from "../src/try/audience.ts";
import { judge } from "../src/try/judge.ts";
import { Recorder } from "../src/try/recorder.ts";
import { lossWords } from "../src/words/rooms.ts";

const conv = "r:hall";
const people = ["alice", "bob", "carol"];
const S = 1e9;

/** Events a tenth of a second apart, after everybody is in the room; alice and bob on n1, carol on n2. */
function recording(...events: HistoryEvent[]): Stamped[] {
  const open = people.map((user, index): HistoryEvent => ({ open: { user, device: "phone", session: index + 1 } }));
  const joined = people.map((_, index): HistoryEvent => ({ joined: { session: index + 1, conv, node: index === 2 ? "n2" : "n1" } }));
  return [...open, ...joined, ...events].map((event, index) => ({ at: (index * S) / 10, ...event }));
}

const sent = (cid: string, attempt = 0): HistoryEvent => ({ send_inv: { user: "alice", device: "phone", session: 1, conv, cid, body: 7, attempt, chained: false } });
const ok = (cid: string, seq: number): HistoryEvent => ({ send_ok: { cid, seq, duplicate: false } });
const got = (session: number, cid: string, seq: number): HistoryEvent => ({
  recv: { user: people[session - 1] ?? "", device: "phone", session, conv, seq, cid, body: 7, via: "push" },
});
const shed = (session: number, count: number): HistoryEvent => ({ shed: { session, conv, count } });
const rules = (events: Stamped[], until?: number) => judge(events, () => people, undefined, until).findings.map((it) => it.rule);

test("a room in which everybody gets everything has no finding", () => {
  assert.deepEqual(rules(recording(sent("a"), got(2, "a", 1), ok("a", 1), got(3, "a", 1)), 60 * S), []);
});

test("what is missing is judged once a node had the time to announce it", () => {
  const events = recording(sent("a"), ok("a", 1), got(3, "a", 1));
  assert.deepEqual(rules(events), []);
  assert.deepEqual(rules(events, 2 * S), []);
  assert.deepEqual(rules(events, 60 * S), ["shed-untold"]);
});

test("a dropped message that was announced is no finding", () => {
  assert.deepEqual(rules(recording(sent("a"), ok("a", 1), got(3, "a", 1), shed(2, 1)), 60 * S), []);
  assert.deepEqual(rules(recording(sent("a"), ok("a", 1), sent("b"), ok("b", 2), got(3, "a", 1), got(3, "b", 2), shed(2, 1)), 60 * S), ["shed-untold"]);
});

test("who was not connected missed nothing, and nobody is due their own message", () => {
  const away: HistoryEvent = { close: { session: 2, code: 0 } };
  assert.deepEqual(rules(recording(away, sent("a"), ok("a", 1), got(3, "a", 1)), 60 * S), []);
});

test("a node that dies may take messages with it, as far as other nodes are concerned", () => {
  const down: HistoryEvent = { down: { node: "n1" } };
  assert.deepEqual(rules(recording(sent("a"), got(2, "a", 1), ok("a", 1), down), 60 * S), []);
  assert.deepEqual(rules(recording(sent("a"), got(3, "a", 1), ok("a", 1), down), 60 * S), ["shed-untold"]);
  assert.deepEqual(rules(recording(sent("a"), got(2, "a", 1), ok("a", 1), shed(3, 0)), 60 * S), []);
});

test("copies, a changed order and a number that is used twice are found", () => {
  const two = [sent("a"), ok("a", 1), sent("b"), ok("b", 2)];
  assert.deepEqual(rules(recording(sent("a"), ok("a", 1), got(2, "a", 1), got(2, "a", 1), got(3, "a", 1)), 60 * S), ["room-copy"]);
  assert.deepEqual(rules(recording(...two, got(2, "b", 2), got(2, "a", 1), got(3, "a", 1), got(3, "b", 2)), 60 * S), ["room-order"]);
  assert.deepEqual(rules(recording(...two, got(2, "a", 1), got(2, "b", 2), got(3, "a", 1), got(3, "b", 1)), 60 * S), ["number-twice"]);
  // A repeated send is passed on twice.
  assert.deepEqual(rules(recording(sent("a"), sent("a", 1), ok("a", 1), got(2, "a", 1), got(2, "a", 1), got(3, "a", 1)), 60 * S), []);
});

test("announced losses are counted, and those without a number apart", () => {
  const audience = new Audience(new Recorder(), () => {});
  const shed = (body: Record<string, unknown>, direction: "in" | "out" = "in") => {
    audience.announced(direction, { id: 0, kind: "shed", body, raw: "" });
    return lossWords(audience.losses.value);
  };
  assert.equal(lossWords(audience.losses.value), "None so far.");
  assert.equal(shed({ room: "hall" }, "out"), "None so far.");
  assert.equal(shed({ room: "hall" }), "Once an unknown number, which may be none.");
  assert.equal(shed({ room: "hall", count: 1200 }), "1,200 so far, and once an unknown number, which may be none.");
  assert.equal(shed({ room: "hall", count: 0 }), "1,200 so far, and 2 times an unknown number, which may be none.");
  assert.equal(lossWords({ frames: 3, unknown: 0 }), "3 so far.");
});
