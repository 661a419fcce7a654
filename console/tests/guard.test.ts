import assert from "node:assert/strict";
import { loadWords, openBreakers } from "../src/words/breakers.ts";
import { test } from "node:test";
import { HEIGHT, places, strip } from "../src/charts/strip.ts";
import { banSubject, entryPage, entryPath, entryRequest, isReason, limitKey, stormPath, type GuardEntry, type KnownRule, type LimitState, type Storm } from "../src/live/guard.ts";
import { namesOf } from "../src/live/routes.ts";
import { aboveWords, actionWords, addWords, changedWords, endWords, evidenceWords, groupWords, guardVerdict, idleRuleWords, liftWords, ordinal, percent, refusedWords, scoresNote, stateWords, stormsNote, subjectState, subjectWords, totalWords, windowWords } from "../src/words/guard.ts";

const storm = (more: Partial<Storm>): Storm => ({ conversation: "g:tea", state: "storm", count: 181, threshold: 100, windowMs: 60_000, sinceMs: 5000, ...more });
const time = (ms: number) => `T${ms}`;
const listed = (...storms: Storm[]) => ({ storms, total: storms.length, silent: [] });

test("a verdict names the storm, what is done about it, and what limits refuse", () => {
  const calm = guardVerdict({ storms: listed(), refused: 0, time });
  assert.deepEqual([calm.tone, calm.sentence, calm.more], ["", "No group has a message storm and no limit refused a request in the last minute.", "Nothing needs you."]);
  assert.equal(calm.runbook, undefined);
  const one = guardVerdict({ storms: listed(storm({ action: "slow:5000ms" })), refused: 318, time });
  assert.deepEqual([one.tone, one.runbook?.alert], ["amber", "TidegateStorm"]);
  assert.equal(one.sentence, "g:tea has a message storm, and is slowed down. 318 requests were refused by limits in the last minute.");
  assert.equal(one.steady, "g:tea has a message storm, and is slowed down. Limits refuse requests.");
  assert.equal(one.more, "g:tea exceeded 100 messages in 1 min at T5000.");
  assert.equal(guardVerdict({ storms: listed(storm({ action: "admins" })), refused: 0, time }).sentence, "g:tea has a message storm, and only its admins may post.");
  assert.equal(guardVerdict({ storms: { ...listed(storm({}), storm({ conversation: "g:b" }), storm({ state: "cooling" })), total: 7 }, refused: 0, time }).sentence, "Six groups have message storms.");
  const cooling = guardVerdict({ storms: listed(storm({ state: "cooling" })), refused: 0, time });
  assert.deepEqual([cooling.tone, cooling.runbook, cooling.sentence], ["", undefined, "The storm of g:tea is ending."]);
});

test("a verdict claims nothing that is not known", () => {
  assert.equal(guardVerdict({ storms: undefined, refused: undefined, time }).tone, "off");
  assert.equal(guardVerdict({ storms: undefined, refused: 0, time }).sentence, "No limit refused a request in the last minute.");
  assert.equal(guardVerdict({ storms: listed(), refused: undefined, time }).sentence, "No group has a message storm.");
  assert.equal(guardVerdict({ storms: undefined, refused: 1, time }).sentence, "One request was refused by limits in the last minute.");
});

test("a group says how many messages it has", () => {
  assert.equal(groupWords(storm({ state: "quiet", count: 1 })), "1 message in the last 1 min; more than 100 are a message storm.");
  assert.match(groupWords(storm({})), /^181 messages .+ It has one\.$/);
  assert.match(groupWords(storm({ state: "cooling" })), /Its storm is ending\.$/);
  assert.match(groupWords(storm({ state: "unknown" })), /^At least 181 messages .+ still reading the past\.$/);
});

test("storms that are missing are named", () => {
  assert.equal(stormsNote(listed(storm({})), 1), "");
  assert.equal(stormsNote({ storms: [], total: 12, silent: ["n2", "n3"] }, 8), "These are the 8 storms with the most messages of 12. n2 and n3 did not answer: their storms are not listed here, and may go on.");
});

test("windows, ordinals, parts and actions in words", () => {
  assert.deepEqual([100, 1500, 1000, 90_000, 60_000, 7_200_000, 86_400_000].map(windowWords), ["100 ms", "1.5 s", "1 s", "90 s", "1 min", "2 h", "1 d"]);
  assert.deepEqual([1, 2, 3, 11, 101, 112, 1022].map(ordinal), ["1st", "2nd", "3rd", "11th", "101st", "112th", "1,022nd"]);
  assert.deepEqual([percent(0, 9), percent(1, 0), percent(1, 100_000), percent(1340, 91_551), percent(3, 4)], ["0", "0", "below 0.01 %", "1.5 %", "75 %"]);
  assert.equal(actionWords(storm({ action: "slow:1500ms" })), "Slow mode: one message per user in 1.5 s");
  assert.equal(actionWords(storm({ action: "slow:5m" })), "Slow mode: one message per user in 5 min");
  assert.equal(actionWords(storm({ action: "admins" })), "Only admins may post");
  assert.equal(actionWords(storm({})), "Reported; its messages are taken as before");
  assert.equal(actionWords(storm({ action: "later" })), "Action: later");
});

const state = (more: Partial<LimitState>): LimitState => ({ id: "user-1s", windowMs: 1000, limit: 20, used: 20, retryAfterMs: 310, dryRun: false, excepted: false, total: { admitted: 60, refused: 20, delayed: 3, dryRefused: 7 }, ...more });

test("a rule says what counts and when the next request is admitted", () => {
  assert.equal(stateWords(state({})), "20 of 20 used in the last 1 s. The next request is admitted in 310 ms.");
  assert.equal(stateWords(state({ used: 3, retryAfterMs: 0 })), "3 of 20 used in the last 1 s. The next request is admitted now.");
  assert.equal(stateWords(state({ dryRun: true, retryAfterMs: 120_000 })), "20 of 20 used in the last 1 s. It would admit the next request in 2 min. It refuses nothing: it is a dry run.");
  assert.match(stateWords(state({ excepted: true })), /^This subject is excepted/);
  assert.deepEqual([refusedWords(state({})), refusedWords(state({ refused: { total: 0, lastMinute: 0 } }))], ["", ""]);
  assert.equal(refusedWords(state({ refused: { total: 1200, lastMinute: 70 } })), "It has refused 1,200 of its requests, 70 in the last minute.");
  assert.equal(totalWords(state({}).total, false), "Of all subjects: 60 admitted, 3 waited, 20 refused (25 %).");
  assert.equal(totalWords(state({}).total, true), "Of all subjects: 60 admitted, 3 waited; 7 of them it would have refused.");
});

test("keys and paths of subjects, and names of routes", () => {
  assert.deepEqual([limitKey("node", "x"), limitKey("user", ""), limitKey("device", "ann:phone")], ["node", "", "device:ann:phone"]);
  assert.deepEqual([stormPath("g:a/b"), stormPath("d:ann:bob")], ["/v1/storms/a%2Fb", ""]);
  assert.deepEqual([...namesOf({ "/v1/bans": { get: {}, post: {} } })], ["GET /v1/bans", "POST /v1/bans"]);
});

test("a strip has its newest part at the right, and begins the storm where it began", () => {
  const short = strip({ startMs: 0, partMs: 1000, counts: [0, 2, 4] }, 1500);
  assert.equal(short.before, `M${places(3) - 3} ${HEIGHT}v-0.75h0.7V${HEIGHT}z`.replace("-0.75", "-0.8"));
  assert.ok(short.during.endsWith(`M${places(3) - 1} ${HEIGHT}v-32h0.7V${HEIGHT}z`));
  assert.equal(short.start, (places(3) - 2) / places(3));
  assert.deepEqual([short.most, short.fromMs, short.toMs], [4, 0, 3000]);
  const long = strip({ startMs: 0, partMs: 2000, counts: Array.from({ length: 600 }, () => 1) }, 60_000);
  assert.deepEqual([long.start, long.fromMs, long.toMs, long.before], [undefined, 840_000, 1_200_000, ""]);
  assert.equal(places(600), 180);
});

const known = (rule: KnownRule["rule"], more: Partial<KnownRule> = {}): KnownRule => ({ id: "r", source: "file", state: "in force", problems: [], rule, ...more });

test("rules say what they do above their limit, and why they are not in force", () => {
  const rule = { level: "user", calls: ["send"] };
  assert.deepEqual([aboveWords({ dryRun: true }, undefined), aboveWords({ dryRun: false }, undefined), aboveWords({ dryRun: false }, known(null)), aboveWords({ dryRun: false }, known(rule))], ["counts only", "", "", "refuses"]);
  assert.equal(aboveWords({ dryRun: false }, known({ ...rule, action: "delay", max_wait: "500ms" })), "waits up to 500 ms");
  assert.equal(idleRuleWords(known(rule, { state: "overridden" })), "The rule r of the file is not in force: one of the API with the same id is.");
  assert.equal(idleRuleWords(known(null, { source: "api", state: "unusable", problems: ["limit: too large", "window: too short"] })), "The rule r of the API is not in force: limit: too large; window: too short.");
});

const entry = (subject: string, untilMs: number | null): GuardEntry => ({ subject, reason: "spam", by: "k1", sinceMs: 1, untilMs });

test("subjects of bans in words, and what is known of one", () => {
  assert.deepEqual(["user:ann", "device:ann/phone", "network:192.0.2.0/24", "user:", "device:"].map(subjectWords), ["the user ann", "ann’s phone", "192.0.2.0/24", "the user …", "…’s device"]);
  assert.deepEqual(["user:ann", "device:ann:phone", "address:192.0.2.1", "org:acme", "node"].map(banSubject), ["user:ann", "device:ann/phone", "network:192.0.2.1", "", ""]);
  assert.deepEqual([endWords({ untilMs: 9 }, time), endWords({ untilMs: null }, time)], ["until T9", "without an end"]);
  const view = { subject: "device:ann/phone", banned: true, bans: [entry("user:ann", 9)], exempt: null };
  assert.equal(subjectState(view, time), "It is banned until T9, by the ban of the user ann: spam");
  assert.equal(subjectState({ ...view, bans: [entry("device:ann/phone", null)] }, time), "It is banned without an end: spam");
  assert.equal(subjectState({ ...view, banned: false, bans: [] }, time), "It is not banned.");
  const seen = { score: 40, spared: null, counts: [{ kind: "token_forged", count: 3 }, { kind: "probe", count: 2 }] };
  assert.equal(subjectState({ ...view, banned: false, bans: [], suspensions: [entry("user:ann", 9)], evidence: seen }, time), "It is not banned. It is suspended until T9: spam. Its score is 40 of 100: 3 token forged, 2 probe.");
  assert.equal(subjectState({ ...view, banned: false, bans: [], evidence: { ...seen, score: 0, spared: "3 users did nothing" } }, time), "It is not banned. It is spared: 3 users did nothing.");
  assert.deepEqual([evidenceWords([]), scoresNote({ bans: true, scores: [] }), scoresNote({ bans: true, scores: [{ subject: "user:ann", score: 9, evidence: [] }] })], ["nothing recently", "No network and no user has a score.", ""]);
  assert.equal(scoresNote({ bans: false, scores: [{ subject: "user:ann", score: 9, evidence: [] }] }), "Automatic bans are off: evidence.ban is false.");
  assert.equal(subjectState({ ...view, banned: false, exempt: "it is this machine" }, time), "It is never banned: it is this machine.");
});

test("a question names what a ban does, and the answer who follows", () => {
  assert.equal(addWords("bans", "user:ann"), "Connections of the user ann are closed on all nodes with KICKED (3501), and new ones are refused with BANNED (2012).");
  assert.match(addWords("bans", "network:192.0.2.0/24"), /That concerns everybody behind these addresses\.$/);
  assert.match(addWords("suspensions", "device:ann/phone"), /^Sends of ann’s phone are refused/);
  assert.match(addWords("allow", "network:192.0.2.0/24"), /^192\.0\.2\.0\/24 is never banned from now on/);
  assert.deepEqual(liftWords("bans", "user:ann")[0], "Lift the ban of the user ann?");
  assert.equal(changedWords("bans", "user:ann", true, { inForce: true, pending: [] }), "The user ann is banned.");
  assert.equal(changedWords("suspensions", "user:ann", false, { inForce: false, pending: ["n2", "n3"] }), "The user ann is no longer suspended. It comes into force once the store can be read. n2 and n3 follow within two seconds.");
  assert.equal(changedWords("bans", "user:ann", false, { removed: false }), "The user ann was not banned.");
  assert.equal(changedWords("allow", "network:192.0.2.0/24", true, {}), "192.0.2.0/24 is on the allow-list.");
});

test("requests of lists, and what a node takes as a reason", () => {
  assert.deepEqual(entryRequest("bans", "user:ann", "spam", 1000), ["POST", "/v1/bans", { subject: "user:ann", reason: "spam", ttlMs: 1000 }]);
  assert.deepEqual(entryRequest("allow", "network:192.0.2.0/24", "us", undefined), ["PUT", "/v1/allow/192.0.2.0%2F24", { reason: "us" }]);
  assert.equal(entryPath("suspensions", "device:ann/phone"), "/v1/suspensions/device%3Aann%2Fphone");
  assert.deepEqual([isReason(""), isReason("spam"), isReason("a\tb"), isReason("ä".repeat(100)), isReason("ä".repeat(101))], [false, true, false, true, false]);
  assert.deepEqual(entryPage("allow", { allowed: [entry("network:192.0.2.0/24", null)], next: "x" })?.hasMore, true);
  assert.deepEqual(entryPage("bans", { bans: [] }), { entries: [], hasMore: false });
  assert.equal(entryPage("bans", undefined), undefined);
});

test("open breakers are those of the newest rows, with their nodes", () => {
  const fields = ["clients", "loadLevel", "breakerRedis", "breakerJwks"];
  const rows = new Map([["n2", [[1, 0, 0, 1, 0], [2, 9, 3, 1, 0]]], ["n1", [[1, 0, 0, 1, 1], [2, 9, 0, 0, 0]]], ["n3", [[2, 9, 1, 1, 0]]], ["n4", []]]);
  assert.deepEqual(openBreakers(fields, rows)?.map((it) => [it.name, it.nodes]), [["Redis", ["n2", "n3"]]]);
  assert.equal(loadWords(fields, rows), "The load level is 3 on n2 and 1 on n3.");
  assert.deepEqual([openBreakers(["clients"], rows), openBreakers(fields, new Map()), loadWords(["clients"], rows)], [undefined, undefined, ""]);
  assert.deepEqual(openBreakers(fields, new Map([["n1", [[1, 0, 0, 0, 0]]]])), []);
});
