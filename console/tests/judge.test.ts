import assert from "node:assert/strict";
import { test } from "node:test";
import type { HistoryEvent, Stamped, StoredEntry } from "../src/try/history.ts";
import { RULES, inCell, judge, type Pulled } from "../src/try/judge.ts";

const conv = "d:alice:bob";
const members = () => ["alice", "bob"];

function at(...events: HistoryEvent[]): Stamped[] {
  return events.map((event, index) => ({ at: index, ...event }));
}

function sent(cid: string, attempt = 0, user = "alice", chained = true): HistoryEvent {
  return { send_inv: { user, device: "phone", session: user === "alice" ? 1 : 2, conv, cid, body: 7, attempt, chained } };
}

const ok = (cid: string, seq: number, duplicate = false): HistoryEvent => ({ send_ok: { cid, seq, duplicate } });
const shown = (cid: string, seq: number, body = 7): HistoryEvent => ({
  recv: { user: "bob", device: "phone", session: 2, conv, seq, cid, body, via: "app" },
});
const stored = (...list: [number, string, number?][]): StoredEntry[] => list.map(([seq, cid, body = 7]) => ({ seq, cid, sender: "alice", body }));
const pulled = (alice: StoredEntry[], bob = alice, base = 0): Pulled => ({ conv, base, by: new Map([["alice", alice], ["bob", bob]]) });
const rules = (events: Stamped[], it?: Pulled) => judge(events, members, it).findings.map((finding) => finding.rule);

test("a clean conversation has no finding, and its figures add up", () => {
  const events = at(sent("a"), ok("a", 1), shown("a", 1), sent("b"), ok("b", 2), shown("b", 2), sent("c"));
  const { findings, counts } = judge(events, members, pulled(stored([1, "a"], [2, "b"])));
  assert.deepEqual(findings, []);
  assert.deepEqual([counts.sent, counts.acked, counts.refused, counts.inFlight, counts.delivered], [3, 2, 0, 1, 2]);
  assert.equal(counts.sent, counts.acked + counts.refused + counts.inFlight);
});

test("an acked message that is not shown yet waits for its receiver, and is no loss without a pull", () => {
  const { counts, findings } = judge(at(sent("a"), ok("a", 1)), members);
  assert.equal(counts.waiting.get("bob"), 1);
  assert.deepEqual(findings, []);
});

const room = "r:hall";
const inRoom = (...events: HistoryEvent[]): HistoryEvent[] => [
  ...[1, 2].flatMap((session): HistoryEvent[] => [{ open: { user: session === 1 ? "alice" : "bob", device: "phone", session } }, { joined: { session, conv: room, node: "n1" } }]),
  ...events,
];
const spoken = (cid: string): HistoryEvent => ({ send_inv: { user: "alice", device: "phone", session: 1, conv: room, cid, body: 7, attempt: 0, chained: false } });
const passed = (cid: string, seq: number): HistoryEvent => ({ recv: { user: "bob", device: "phone", session: 2, conv: room, seq, cid, body: 7, via: "push" } });

test("each rule that the page names finds its planted fault, and no other rule is reported", () => {
  const base = [sent("a"), ok("a", 1), shown("a", 1)];
  const planted: [string, string[], HistoryEvent[], Pulled?][] = [
    ["lost-acked", ["lost-acked"], base, pulled([])],
    ["never-got", ["never-got"], [sent("a"), ok("a", 1)], pulled(stored([1, "a"]))],
    ["unexplained-gap", ["unexplained-gap"], [sent("a"), ok("a", 2), shown("a", 2)], pulled(stored([2, "a"]))],
    ["duplicate-after-dedup", ["duplicate-after-dedup"], [...base, shown("a", 1)]],
    ["stored-twice", ["stored-twice"], base, pulled([...stored([1, "a"]), ...stored([2, "a"])])],
    ["ack-differs-on-retry", ["ack-differs-on-retry"], [...base, sent("a", 1), ok("a", 2, true)]],
    ["duplicate-seq", ["duplicate-seq", "real-time-inversion"], [...base, sent("b"), ok("b", 1)]],
    ["refused-but-stored", ["refused-but-stored"], [sent("a"), { send_fail: { cid: "a", code: 4003 } }], pulled(stored([1, "a"]))],
    ["non-monotonic", ["non-monotonic"], [sent("a"), sent("b"), ok("a", 1), ok("b", 2), shown("b", 2), shown("a", 1)]],
    ["session-order and chain-order", ["session-order", "chain-order"], [sent("a"), sent("b"), ok("a", 2), ok("b", 1)]],
    ["real-time-inversion", ["real-time-inversion"], [sent("a"), ok("a", 5), sent("x", 0, "bob", false), ok("x", 4)]],
    ["corrupted", ["corrupted"], [sent("a"), ok("a", 1), shown("a", 1, 8)]],
    ["inconsistent-seq", ["inconsistent-seq", "lost-acked"], base, pulled(stored([1, "a"]), stored([1, "z"]))],
    ["silent-skip", ["silent-skip"], [...base, sent("b"), ok("b", 2), sent("c"), ok("c", 3), shown("c", 3)]],
    ["shed-untold", ["shed-untold"], inRoom(spoken("a"), ok("a", 1))],
    ["room-copy", ["room-copy"], inRoom(spoken("a"), passed("a", 1), passed("a", 1))],
    ["room-order", ["room-order"], inRoom(spoken("a"), spoken("b"), passed("b", 2), passed("a", 1))],
    ["number-twice", ["number-twice"], inRoom(spoken("a"), spoken("b"), passed("a", 1), { recv: { user: "alice", device: "phone", session: 1, conv: room, seq: 1, cid: "b", body: 7, via: "push" } })],
  ];
  const all = new Set<string>();
  for (const [name, expected, events, it] of planted) {
    const found = new Set(judge(at(...events), members, it, 60e9).findings.map((finding) => finding.rule));
    for (const rule of expected) assert.ok(found.has(rule), `${name}: ${[...found].join()}`);
    for (const rule of [...expected, ...found]) all.add(rule);
  }
  assert.deepEqual([...all].sort(), Object.keys(RULES).sort());
});

test("a skipped message is a fault unless a gap was announced, it is the person’s own, or nobody of the page sent it", () => {
  const [first, second, third] = [[sent("a"), ok("a", 1), shown("a", 1)], [sent("b"), ok("b", 2)], [sent("c"), ok("c", 3), shown("c", 3)]];
  const gap = (session: number, last: number): HistoryEvent => ({ gap: { session, conv, first: 2, last } });
  assert.deepEqual(rules(at(...first, ...second, ...third)), ["silent-skip"]);
  assert.deepEqual(rules(at(...first, ...second, gap(2, 2), ...third)), []);
  assert.deepEqual(rules(at(...first, ...second, gap(1, 2), ...third)), ["silent-skip"], "a gap of another connection");
  assert.deepEqual(rules(at(...first, ...second, ...third, gap(2, 2))), ["silent-skip"], "a gap that was announced later");
  assert.deepEqual(rules(at(...first, sent("b", 0, "bob"), ok("b", 2), ...third)), []);
  assert.deepEqual(rules(at(...first, ...third)), []);
  // Without an ack, the pulled history names the message.
  const events = at(...first, sent("b"), ...third);
  assert.deepEqual(rules(events), []);
  assert.deepEqual(rules(events, pulled(stored([1, "a"], [2, "b"], [3, "c"]))), ["silent-skip"]);
});

test("a message that a person lacks is counted once, and its place on the screen is judged even if it comes later", () => {
  const skipped = [sent("a"), ok("a", 1), shown("a", 1), sent("b"), ok("b", 2), sent("c"), ok("c", 3), shown("c", 3)];
  const it = judge(at(...skipped), members, pulled(stored([1, "a"], [2, "b"], [3, "c"])));
  assert.deepEqual(it.findings.map(({ rule, cid }) => [rule, cid]), [["silent-skip", "b"], ["never-got", "b"]]);
  assert.equal(inCell(it.findings, "lost"), 1);
  const late = judge(at(...skipped, shown("b", 2)), members, pulled(stored([1, "a"], [2, "b"], [3, "c"])));
  assert.deepEqual([inCell(late.findings, "lost"), inCell(late.findings, "order")], [1, 1]);
});

test("a repeated send that keeps its seq is no fault", () => {
  assert.deepEqual(rules(at(sent("a"), ok("a", 1), shown("a", 1), sent("a", 1), ok("a", 1, true)), pulled(stored([1, "a"]))), []);
});

test("either attempt of a repeated send may be the stored one, outside a chain", () => {
  const plain = (cid: string, attempt = 0) => sent(cid, attempt, "alice", false);
  assert.deepEqual(rules(at(plain("a"), plain("b"), plain("a", 1), ok("b", 1), ok("a", 2, true), shown("b", 1), shown("a", 2))), []);
  assert.deepEqual(rules(at(plain("b"), plain("a"), plain("b", 1), ok("b", 2), ok("a", 1))), []);
});

test("what was stored before the record began, or by others, is not judged", () => {
  assert.deepEqual(rules(at(sent("a"), ok("a", 11), shown("a", 11)), pulled(stored([11, "a"], [12, "other"]), undefined, 10)), []);
});

test("a live room may lose messages, but shows no copy", () => {
  const send: HistoryEvent = { send_inv: { user: "alice", device: "phone", session: 1, conv: room, cid: "a", body: 7, attempt: 0, chained: false } };
  const see: HistoryEvent = { recv: { user: "bob", device: "phone", session: 2, conv: room, seq: 9, cid: "a", body: 7, via: "app" } };
  assert.deepEqual(rules(at(send, ok("a", 9))), []);
  assert.deepEqual(rules(at(send, ok("a", 9), see, see)), ["duplicate-after-dedup"]);
});

test("findings are counted in the cell of their rule", () => {
  const findings = [{ rule: "never-got", cid: "a", what: "" }, { rule: "stored-twice", cid: "a", what: "" }];
  assert.deepEqual([inCell(findings, "lost"), inCell(findings, "doubled"), inCell(findings, "order")], [1, 1, 0]);
});
