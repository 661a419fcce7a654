import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { parseFrame } from "../src/try/frames.ts";
import type { Nodes } from "../src/live/nodes.ts";
import { concerns, isOfConsole } from "../src/live/cloudevents.ts";
import { known } from "../src/words/people.ts";
import { curl, drainQuestion, drainTime, newClients, steady, unreachedWords, verdict, type Signs } from "../src/words/nodes.ts";
import { ALERTS, RUNBOOK_FILE } from "../src/words/runbook.ts";
import { count, duration, seqs } from "../src/words/numbers.ts";
import { KILL_ELSEWHERE, SENTENCES, UNDER_WAY, broken, connecting, framesButton, judgedBy, kept, opening, plantedWords, purpose, replaced } from "../src/words/sentences.ts";
import { describe } from "../src/words/wire.ts";

const say = (name: string, facts: object) => SENTENCES[name]?.({ who: "bob", other: "alice", ...facts });

test("numbers read well", () => {
  assert.deepEqual([count(2), count(13), count(1300)], ["two", "13", "1,300"]);
  assert.deepEqual([duration(0.4), duration(18), duration(3240)], ["1 ms", "18 ms", "3.2 s"]);
  assert.deepEqual([seqs([411]), seqs([412, 411]), seqs([411, 412, 413]), seqs([411, 413, 415])], ["411", "411 and 412", "411 to 413", "411, 413 and 415"]);
});

test("the sentence about a cut", () => {
  assert.equal(
    say("cut", { forMs: 3240, sent: 2, ackMs: 0.9, had: 410, got: [411, 412] }),
    "Bob’s link was cut for 3.2 s. Alice noticed nothing: two messages were on disk and acked within 0.9 ms. Bob’s client came back, said it had all up to 410, and fetched 411 and 412.",
  );
  assert.equal(say("cut", { forMs: 3240 }), "Bob’s link was cut for 3.2 s.");
  assert.equal(say("cut", { forMs: 3240, sent: 2, missed: 2, isRoom: true, got: [] }), "Bob’s link was cut for 3.2 s. A live room keeps nothing: bob missed two messages, and gets what is said from now on.");
});

test("the sentences about the other breaks", () => {
  assert.equal(
    say("freeze", { sent: 1, again: 3, closed: "SLOW", forMs: 8700, shown: 1 }),
    "Bob took the push but never acked. The broker sent it three more times, then closed the link as SLOW after 8.7 s. When the link was back, the message was on screen once.",
  );
  assert.equal(say("offline", { forMs: 10_100, sent: 3, got: [314, 315, 316] }), "Bob was away for 10.1 s. Three messages were kept with their numbers. Bob fetched 314 to 316 in order.");
  assert.equal(
    say("twice", { id: "a-220", seq: 10, duplicate: true, shown: 1 }),
    "Bob’s client sent a-220 again. It is the same message: same number 10, marked as a duplicate, shown to alice once.",
  );
  assert.equal(
    say("skip", { id: "a-220", held: 2, warnedMs: 5100, gaveUpMs: 10_300, refused: "ORDER_SKIPPED" }),
    "Bob’s client kept a-220 back. The broker held the two behind it, warned bob after 5.1 s, gave it up after 10.3 s and let them through in order. When it came, it was refused: ORDER_SKIPPED. It was never acked, so it does not count as lost.",
  );
  assert.equal(say("flood", { total: 300, atOnce: 300, forMs: 1200, shown: 300 }), "Bob sent 300 messages in 1.2 s. All were taken. Alice saw all of them.");
  assert.equal(
    say("flood", { total: 300, atOnce: 40, retryMs: 900, shown: 300 }),
    "40 of 300 were taken at once. The rest was refused for now: RATE_LIMITED, to be sent again after 900 ms. It was, and was taken as well. Alice saw all of them.",
  );
  assert.equal(say("drain", { node: "n1", slotMs: 900, to: "n2", movedMs: 40 }), "n1 asked bob to leave within 900 ms, and said where to go. Bob was on n2 40 ms later.");
  assert.equal(
    say("drain", { node: "n1", slotMs: 59, goesOn: true, forMs: 40 }),
    "n1 asked bob to leave within 59 ms. Bob left, and came back after 40 ms. The drain stopped after this request: n1 goes on.",
  );
  assert.equal(
    say("drain", { node: "n1", slotMs: 900, to: "n2", movedMs: 40, goesOn: true, sent: 1, ackMs: 3 }),
    "n1 asked bob to leave within 900 ms, and said where to go. Bob was on n2 40 ms later. The drain stopped after this request: n1 goes on. Nobody waited for an ack longer than 3.0 ms.",
  );
  assert.equal(
    say("drain", { node: "n1", slotMs: 59, goesOn: true }),
    "n1 asked bob to leave within 59 ms. Bob has a new link to it, and was never without one. The drain stopped after this request: n1 goes on.",
  );
  assert.equal(say("drain", { node: "n1" }), "", "without a notice nothing is claimed");
  assert.equal(say("kill", { node: "n1", to: "n2", movedMs: 400 }), "n1 died. Bob was on n2 after 400 ms.");
  assert.equal(say("kill", { node: "n1", to: "n2", movedMs: 400, again: 3, repeated: 1 }), "n1 died. Bob was on n2 after 400 ms. One message was sent again and kept its number.");
  assert.equal(say("kill", { node: "n1", again: 3 }), "n1 died.");
  assert.equal(
    say("kill", { node: "n1", to: "n2", movedMs: 3100, moved: [], sent: 1, ackMs: 0.9, got: [7] }),
    "n1 died. Bob was on n2 after 3.1 s. Alice’s link stayed: one message sent meanwhile was on disk and acked within 0.9 ms. Bob got 7 on the new link.",
  );
  assert.equal(
    say("kill", { node: "n1", to: "n2", movedMs: 3100, moved: [{ name: "alice", to: "n3" }], sent: 1, ackMs: 3200, got: [] }),
    "n1 died. Bob was on n2 after 3.1 s. Alice was on n1 too, and moved to n3. One message sent meanwhile was on disk and acked within 3.2 s.",
    "alice lost her node as well",
  );
  const moved = (...to: string[]) => say("kill", { node: "n1", to: "n2", movedMs: 400, moved: to.map((it, index) => ({ name: ["alice", "carol"][index], to: it })) });
  assert.match(moved("n3", "n3") ?? "", / Alice and carol were on n1 too, and moved to n3\.$/);
  assert.match(moved("n3", "n2") ?? "", / Alice and carol were on n1 too: alice moved to n3 and carol moved to n2\.$/);
  assert.match(moved("") ?? "", / Alice was on n1 too, and is not back yet\.$/);
  assert.match(say("freeze", { sent: 2, shown: 2 }) ?? "", /each message was on screen two times\.$/);
});

test("the page opens with who is connected and what is promised", () => {
  assert.equal(connecting("n1"), "Connecting to n1.");
  assert.equal(purpose("pair"), "Tidegate delivers messages between clients; two of them run in this page.");
  assert.equal(kept(1, ["n1"], 2, "pair", true, false), "One message was written and synced, then acked.");
  assert.equal(kept(2, ["n1"], 3, "group", true, true), "Two messages were written and synced, then acked. The stored history was compared with all three screens.");
  assert.equal(kept(1, ["n1", "n2"], 2, "pair", true, true), "One message was written and synced, then acked. The stored history was compared with both screens.");
  assert.match(kept(1, ["n1", "n2"], 2, "pair", false, false), /n1 and n2 keep messages in memory/);
  assert.doesNotMatch(kept(2, ["n1"], 2, "pair", false, true), /synced/);
  assert.doesNotMatch(kept(2, ["n1"], 2, "room", true, true), /synced|compared/, "a room stores nothing");
  assert.equal(
    opening(["alice", "bob"], ["n1"], "pair", true),
    "Alice and bob are connected to n1. The promise: once a message is acked it is on disk, and the other one sees it once and in order, whatever breaks. Send one, then break something.",
  );
  assert.match(opening(["alice", "bob", "carol"], ["n1", "n2"], "group", true), /^Alice, bob and carol are connected to n1 and n2\. .+ it is on disk, and the others see it once and in order/);
  assert.doesNotMatch(opening(["alice", "bob"], ["n1"], "pair", false), /on disk/);
  assert.doesNotMatch(opening(["alice", "bob", "carol"], ["n1"], "room", true), /promise/);
});

test("nodes of a cluster share the history by which is judged", () => {
  assert.equal(judgedBy("pair", { node: "n1", profile: "single" }), "Judged by the checker’s rules, against what n1 has stored.");
  assert.equal(judgedBy("group", { node: "n1", profile: "cluster" }), "Judged by the checker’s rules, against the stored history.");
  assert.doesNotMatch(judgedBy("pair", undefined), /undefined/);
  assert.equal(judgedBy("room", { node: "n1", profile: "cluster" }), "Judged by the checker’s rules for live rooms.");
  assert.deepEqual([framesButton(1), framesButton(2), framesButton(40)], ["One frame as JSON", "Two frames as JSON", "40 frames as JSON"]);
});

test("a break that goes on claims nothing about a person without a link", () => {
  const freeze = (isAway: boolean) => UNDER_WAY["freeze"]?.({ who: "bob", other: "alice", forMs: 900, isAway }) ?? "";
  assert.match(freeze(false), /takes what it gets/);
  assert.doesNotMatch(freeze(true), /takes what it gets|acked nothing/);
});

test("a planted fault and another tab are named as what they are", () => {
  assert.match(plantedWords(2), /^A fault was planted: this page hides message 2 from bob/);
  assert.match(broken("never-got", "bob never got a-1", true), /The rule is never-got\. The fault was planted/);
  assert.match(broken("never-got", "bob never got a-1", false), /Save the recording and report it\.$/);
  assert.equal(replaced(["alice", "bob"]), "Another tab took over alice and bob. A device has one link, and the newest login keeps it.");
  assert.match(KILL_ELSEWHERE, /tidegate demo.+tidegate up/);
});

test("a sentence without facts claims nothing", () => {
  for (const [name, sentence] of Object.entries(SENTENCES)) {
    const words = sentence({ who: "bob", other: "alice" });
    assert.doesNotMatch(words, /undefined|NaN|null/, name);
    assert.doesNotMatch(words, /acked within|duplicate|refused|fetched|same number/, name);
  }
});

test("frames in words", () => {
  const known = { syncMs: (id: string) => (id === "m1" ? 0.83 : undefined), durable: true, device: "phone", node: "n1", conv: "d:a:b" };
  const words = (raw: string, direction: "in" | "out" = "in") => {
    const frame = parseFrame(raw);
    return frame && describe(frame, direction, "bob", known);
  };
  assert.deepEqual(words('{"id":2,"sendAck":{"conversation":"d:a:b","msgId":"m1","seq":412}}'), { name: "sendAck", words: "412, synced in 0.8 ms", tone: "", synced: true });
  assert.equal(words('{"id":2,"sendAck":{"conversation":"d:a:b","msgId":"m1","seq":412,"duplicate":true}}')?.words, "412, duplicate");
  assert.equal(words('{"id":2,"sendAck":{"conversation":"r:hall","msgId":"m1","seq":412}}')?.synced, false);
  assert.deepEqual(words('{"id":3,"error":{"code":4003,"name":"ORDER_SKIPPED"}}'), { name: "error", words: "4003 ORDER_SKIPPED", tone: "red", synced: false });
  assert.deepEqual(words('{"conversationState":{"conversation":"d:a:b","maxSeq":412}}'), { name: "state", words: "there is up to 412", tone: "", synced: false });
  assert.equal(words('{"conversationState":{"conversation":"g:crew","maxSeq":3}}'), undefined, "another conversation");
  assert.equal(words('{"push":{"conversation":"g:crew","seq":1,"event":{"change":"MEMBER_CHANGE_CREATED","users":["a"]}}}')?.words, "1, group created");
  assert.equal(words('{"id":9,"bye":{}}', "out")?.words, "goodbye");
  assert.equal(words('{"page":{"messages":[{"seq":411},{"seq":412}]}}')?.words, "411 and 412");
  assert.equal(words('{"pong":{}}'), undefined);
  assert.equal(parseFrame(""), undefined);
});

test("the verdict names what a person has to know first", () => {
  const node = { node: "n1", boot: "a", self: true, state: "ready", lease: "live", conns: 3, capacity: 100, owns: [0, 1], version: "0.1.0", weight: 100, share: null, accepts: 1000, zone: "", drain: null, stands: [] };
  const all: Nodes = { nodes: [node], partitions: 2, archiveBehind: [], stale: false };
  const of = (change: Partial<Nodes>) => verdict({ ...all, ...change }, { refused: 0, lagMs: 0 });
  assert.deepEqual(of({}), { tone: "", sentence: "All is well.", more: "One node, three clients, two partitions owned." });
  assert.equal(of({ nodes: [{ ...node, conns: 0 }] }).more, "One node, no clients, two partitions owned.");
  assert.equal(of({ archiveBehind: [1] }).tone, "red");
  assert.equal(of({ partitions: 3 }).sentence, "One partition has no owner.");
  assert.equal(of({ nodes: [node, { ...node, node: "n2", boot: "b", lease: "lapsed", owns: [] }] }).sentence, "n2 stopped without a drain; others take over.");
  assert.equal(of({ nodes: [{ ...node, state: "draining", drain: { phase: "draining", from: 10, left: 3, unnoticed: 0, rate: 5, forMs: 100 } }] }).tone, "amber");
  assert.match(drainQuestion(node, 0), /only node: nobody takes them over, and this page ends with it\.$/);
  assert.match(drainQuestion({ ...node, conns: 0 }, 2), /It has no clients now\.$/);
  assert.match(drainQuestion({ ...node, conns: 0 }, 0), /It has no clients now\. It is the only node: this page ends with it\.$/);
  assert.match(drainQuestion({ ...node, conns: 1 }, 2), /Its client is asked to leave\. It connects to the other nodes\.$/);
  const troubled = [of({ archiveBehind: [1] }), of({ partitions: 3 }), of({ nodes: [node, { ...node, node: "n2", boot: "b", lease: "lapsed", owns: [] }] }), of({ stale: true }), of({ nodes: [{ ...node, state: "full" }] }), verdict(all, { refused: 0, lagMs: 2000 })];
  // Storms are those of the guard.
  assert.deepEqual(new Set(troubled.map((it) => it.runbook?.alert)), new Set(ALERTS.filter((it) => it !== "TidegateStorm")));
  assert.equal(of({}).runbook, undefined);
});

test("nothing is well while a node does not answer, or has stopped in the last minutes", () => {
  const node = { node: "n1", boot: "a", self: true, state: "ready", lease: "live", conns: 3, capacity: 100, owns: [0, 1], version: "0.1.0", weight: 100, share: null, accepts: 1000, zone: "", drain: null, stands: [] };
  const other = { ...node, node: "n3", boot: "c", self: false, owns: [2, 3], conns: 40 };
  const of = (nodes: Nodes["nodes"], more: Partial<Signs>) => verdict({ nodes, partitions: 4, archiveBehind: [], stale: false }, { refused: 0, lagMs: 0, ...more });
  const stop = { node: "n3", agoS: 41, awayS: undefined };
  const silent = of([node, other], { unanswered: new Map([["n3", 4]]), stops: [{ ...stop, agoS: 7 }] });
  assert.deepEqual([silent.tone, silent.sentence, silent.more], ["amber", "n3 has not answered for 4 s; if it has died, others take over its two partitions.", "One node, three clients, 2 of 4 partitions owned."]);
  const taken = of([{ ...node, owns: [0, 1, 2, 3] }, other], { unanswered: new Map([["n3", 8]]) });
  assert.deepEqual([taken.sentence, taken.more], ["n3 has not answered for 8 s; others have taken over its partitions.", "One node, three clients, four partitions owned."]);
  const lapsed = of([{ ...node, owns: [0, 1, 2, 3] }, { ...other, lease: "lapsed", owns: [] }], { unanswered: new Map([["n3", 12]]), stops: [{ ...stop, agoS: 12 }] });
  assert.deepEqual([lapsed.tone, lapsed.sentence], ["amber", "n3 stopped 12 s ago without a drain; others take over."]);
  const gone = of([{ ...node, owns: [0, 1, 2, 3] }], { unanswered: new Map([["n3", 41]]), stops: [stop] });
  assert.deepEqual([gone.tone, gone.sentence, gone.runbook?.alert], ["amber", "n3 stopped 41 s ago without a drain; others took over.", "TidegateNodeDied"]);
  const back = of([node, other], { stops: [{ node: "n3", agoS: 130, awayS: 41 }] });
  assert.deepEqual([back.tone, back.sentence], ["amber", "n3 stopped 2 min 10 s ago without a drain, and came back 41 s later."]);
  assert.equal(of([node], { unanswered: new Map([["n3", 41]]), stops: [stop] }).tone, "red", "its partitions have no owner");
  const awaited = of([node, other], { awaited: ["n3"] });
  assert.deepEqual([awaited.tone, awaited.sentence], ["off", "n3 has not reported to this page yet. Nothing else is wrong."]);
  assert.equal(of([node, other], {}).sentence, "All is well.");
  const opened = of([node, other], { sinceS: Date.UTC(2026, 0, 2, 14, 22, 7) / 1000 });
  assert.match(opened.more, /^Two nodes, 43 clients, four partitions owned\. Nodes that stopped before \d\d:22:07, when this page was opened, are not known to it\.$/);
  assert.deepEqual([silent, lapsed, back].map((it) => steady(it.sentence)), ["n3 has not answered; if it has died, others take over its two partitions.", "n3 stopped without a drain; others take over.", "n3 stopped without a drain, and came back."]);
});

test("each runbook is a section of the documentation", () => {
  const page = readFileSync(join(import.meta.dirname, "../..", RUNBOOK_FILE), "utf8");
  for (const alert of ALERTS) assert.ok(page.includes(`### ${alert}\n`), alert);
});

test("the part of the new clients follows weights and free connections", () => {
  const node = { node: "n1", boot: "a", self: true, state: "ready", lease: "live", conns: 0, capacity: 100, owns: [], version: "", weight: 100, share: null, accepts: 1000, zone: "", drain: null, stands: [] };
  const other = { ...node, node: "n2", boot: "b", conns: 50 };
  assert.equal(newClients(node, [node, other], 100), "n1 gets about 67 % of the new clients, by weight and free connections.");
  assert.equal(newClients(node, [node, other], 50), "n1 gets about 50 % of the new clients, by weight and free connections.");
  assert.match(newClients(node, [node, other], 0), /gets no new clients/);
  assert.match(newClients(node, [node], 0), /only node/);
  assert.match(newClients({ ...node, state: "draining" }, [{ ...node, state: "draining" }, other], 5), /takes no new clients/);
  assert.equal(curl("POST", "http://127.0.0.1:1", "/v1/weight", { weight: 5, share: -1 }), `curl -X POST http://127.0.0.1:1/v1/weight -H 'content-type: application/json' -d '{"weight":5,"share":-1}'`);
  assert.equal(curl("DELETE", "https://n1", "/v1/drain", undefined, true), `printf 'Authorization: Bearer %s' "$TIDEGATE_KEY" | curl -X DELETE https://n1/v1/drain -H @- -H 'content-type: application/json'`);
  assert.equal(curl("DELETE", "https://n1", "/v1/rooms/hall/members/bob?device=a&reason=it's"), "curl -X DELETE https://n1'/v1/rooms/hall/members/bob?device=a&reason=it%27s' -H 'content-type: application/json'");
  assert.match(curl("POST", "https://n1", "/v1/bans", { reason: "it's" }), /-d '\{"reason":"it'\\''s"\}'$/);
});

test("people are those that the events name, with the devices that have not gone", () => {
  const event = (type: string, subject: string, device: string) => ({ id: "", type: `tidegate.${type}`, subject, time: "", data: { device } });
  const events = [event("offline", "bob", "phone"), event("online", "alice", "web"), event("online", "bob", "phone"), event("read", "carol", ""), event("offline", "alice", "old")];
  const audit = { ...event("audit", "development", ""), data: { targets: { user: ["eve"] } } };
  assert.deepEqual(known([...events, audit]), [{ user: "alice", devices: ["web"] }, { user: "bob", devices: [] }, { user: "carol", devices: [] }]);
});

test("an audit entry is about those whom it names, not about its caller", () => {
  const it = (type: string, data: Record<string, unknown>) => ({ id: "", type, subject: "development", time: "", data });
  const audit = it("tidegate.audit", { targets: { user: ["alice"], device: ["web"] } });
  assert.deepEqual(["eve", "alic", "web", "bob"].map((user) => concerns(audit, user)), [false, true, true, false]);
  assert.equal(concerns(it("tidegate.audit", {}), "eve"), false);
  assert.equal(concerns(it("tidegate.online", {}), "eve"), true);
});

test("a drain says how long it takes, by the node's own plan alone", () => {
  const plan = { clients: 600, delayMs: 0, slotsMs: 12_200, deadlineMs: 50_000 };
  const end = "The drain takes 50 s at most; who has not left by then is cut off.";
  assert.equal(drainTime(undefined), "", "nothing is guessed");
  assert.equal(drainTime({ ...plan, clients: 0, slotsMs: 0 }), end);
  assert.equal(drainTime({ ...plan, clients: 20, slotsMs: 900 }), `They leave within a second. ${end}`);
  assert.equal(drainTime(plan), `They leave within about 12 s. ${end}`);
  assert.match(drainTime({ ...plan, delayMs: 5000 }), /^First 5 s pass in which load balancers stop choosing it\. They leave/);
});

test("requests that a console sends by itself are told from those of people", () => {
  const it = (type: string, data: object) => ({ id: "1", type, subject: "development", time: "", data: data as Record<string, unknown> });
  const audit = (route: string) => isOfConsole(it("tidegate.audit", { name: "development", method: "POST", route, status: 200 }));
  assert.deepEqual([audit("/v1/dev/token"), audit("/v1/dev/forward"), audit("/v1/drain"), audit("/v1/groups")], [true, true, false, false]);
  assert.equal(isOfConsole(it("tidegate.online", { route: "/v1/dev/token" })), false);
});

test("a kill names who took over, if that is known", () => {
  const killed = { node: "n2", to: "n1", movedMs: 900, sent: 1, ackMs: 4000 };
  assert.match(say("kill", { ...killed, takers: ["n1", "n3"], takenMs: 3400 }) ?? "", / n1 and n3 had taken its partitions over after 3\.4 s\.$/);
  assert.doesNotMatch(say("kill", killed) ?? "", /taken/);
});
