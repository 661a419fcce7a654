// Made-up answers of a node whose guard has much to do; the page draws them as real ones.
import { changed } from "./page.mjs";

/** Second at which all is seen, so that it is the same each time. */
export const END_MS = Date.UTC(2026, 0, 2, 14, 22, 51);

/** Counts by second that look like talk: some before the storm, many in it, and few in its last seconds. */
function profile(before, during, after, most, from = 7) {
  let state = from;
  const next = () => (state = (state * 48_271) % 2_147_483_647) / 2_147_483_647;
  const counts = [...Array.from({ length: before }, () => Math.floor(next() ** 3 * most * 0.6)), ...Array.from({ length: during }, () => Math.round(most * (0.55 + 0.45 * next()))), ...Array.from({ length: after }, () => Math.floor(next() ** 2 * 2.4))];
  return { startMs: END_MS - counts.length * 1000, partMs: 1000, counts };
}

const storm = (conversation, sinceS, count, more) => ({ conversation, count, id: `${conversation}/5012`, peak: count, sinceMs: END_MS - sinceS * 1000, state: "storm", threshold: 100, windowMs: 60_000, ...more });

const STORMS = [
  storm("g:release", 112, 412, { action: "slow:5000ms", peak: 441 }),
  storm("g:harbour-launch", 9, 331, { threshold: 300, action: "admins" }),
  storm("g:tea", 40, 140, {}),
  storm("g:kitchen", 71, 48, { state: "cooling", peak: 131 }),
];

/** A storm whose name is long, and whose profile the node does not have. */
const LONG = storm(`g:${"launch-".repeat(8)}`, 9, 101, {});

const PROFILES = { release: profile(60, 112, 0, 8), "harbour-launch": profile(60, 9, 0, 38, 11), tea: profile(60, 40, 0, 4, 13), kitchen: profile(60, 26, 45, 5, 17) };

/** Storms of all nodes; in the first of them `n3` did not answer. */
const SOME = { silent: ["n3"], storms: [...STORMS, LONG], total: 7 };
const ALL = { silent: [], storms: STORMS, total: STORMS.length };

const total = (admitted, refused, more) => ({ admitted, refused, delayed: 0, dryRefused: 0, ...more });

const ofUser = {
  key: "user:mallory", node: "n1", rules: [
    { id: "user-1s", windowMs: 1000, limit: 20, used: 20, retryAfterMs: 310, dryRun: false, excepted: false, total: total(90_211, 1340, { delayed: 12 }) },
    { id: "user-1h", windowMs: 3_600_000, limit: 8800, used: 4100, retryAfterMs: 0, dryRun: false, excepted: false, total: total(90_211, 0), why: "base 10,000 x load 0.8 x history 1.1 = 8,800" },
    { id: "user-trial", windowMs: 60_000, limit: 100, used: 100, retryAfterMs: 12_000, dryRun: true, excepted: false, total: total(90_211, 0, { dryRefused: 212 }) },
    { id: "user-bots", windowMs: 60_000, limit: 10, used: 0, retryAfterMs: 0, dryRun: false, excepted: true, total: total(12, 0) },
  ],
};

const rule = (id, level, limit, windowMs, of, more) => ({ id, source: "file", level, windowMs, limit, dryRun: false, total: { ...of, refusedLastMinute: 0 }, ...more });
const known = (id, level, calls, rule, more) => ({ id, source: "file", state: "in force", problems: [], version: null, rule: { level, calls, window: "1s", limit: 1, ...rule }, ...more });

/** What the rules of a node count. */
const limits = {
  node: "n1",
  rules: [
    rule("node-1s", "node", 50_000, 1000, total(4_210_332, 0)),
    rule("org-1s", "org", 8800, 1000, total(812_400, 0), { source: "api" }),
    rule("campaigns", "channel", 2000, 1000, { ...total(98_112, 4120, { delayed: 930 }) }, { total: { ...total(98_112, 4120, { delayed: 930 }), refusedLastMinute: 212 } }),
    rule("user-1s", "user", 20, 1000, total(90_211, 1340), { total: { ...total(90_211, 1340, { delayed: 12 }), refusedLastMinute: 88 } }),
    rule("spam", "content", 50, 60_000, total(64_000, 0, { dryRefused: 212 }), { dryRun: true }),
  ],
  busiest: [
    { key: "channel:campaign-bf26", rule: "campaigns", refused: 4120, refusedLastMinute: 212 }, { key: "user:mallory", rule: "user-1s", refused: 1210, refusedLastMinute: 70 },
    { key: "content:#00c0ffee00c0ffee", rule: "user-1s", refused: 18, refusedLastMinute: 18 }, { key: "user:trudy", rule: "user-1s", refused: 18, refusedLastMinute: 0 },
  ],
};

const knownRules = {
  node: "n1",
  rules: [
    known("org-1s", "org", ["send", "recall"], {}, { source: "api", version: 4 }), known("late", "user", ["pull"], {}, { source: "api", state: "unusable", problems: ["max_wait: between 1ms and 2500 ms"] }),
    known("node-1s", "node", ["*"]), known("campaigns", "channel", ["send", "login", "pull", "join", "recall"], { action: "delay", max_wait: "2s" }), known("user-1s", "user", ["send"]),
    known("spam", "content", ["send"]), known("org-1s", "org", ["send"], {}, { state: "overridden" }),
  ],
  overlaps: ["rule `node-1s` refuses first once 2501 subjects use all of `user-1s` at the same time"],
};

const entry = (subject, reason, forMs, by = "k3f9a0c1") => ({ subject, reason, by, sinceMs: END_MS - 240_000, untilMs: forMs === null ? null : END_MS + forMs });

/** Lists of subjects; the page changes them. */
const lists = () => ({
  bans: { bans: [entry("device:trudy/phone", "order abuse", 600_000), entry("network:198.51.100.0/24", "probed 412 unknown conversations from these addresses, and then 31 more", 90_000_000), entry("user:mallory", "flooded g:release", null)], next: "user:mallory" },
  suspensions: { suspensions: [entry("user:oscar", "three blocked chains in 10 min", 60_000, "guard")] },
  allow: { allowed: [entry("network:192.0.2.0/24", "our own office", null)] },
});

/** Scores of a node. */
const scores = { node: "n1", bans: true, scores: [["network:198.51.100.7/32", 86, [["token_forged", 7], ["hello_timeout", 6]]], ["user:trent", 31, [["probe", 7]]]].map(([subject, score, counts]) => ({ subject, score, evidence: counts.map(([kind, count]) => ({ kind, count })) })) };

/** Rows of figures: 60 seconds with refused requests, three blocked chains, a load level, and breakers that are open at the end and in between. */
const stream = () => {
  const rows = Array.from({ length: 60 }, (_, index) => [END_MS - (59 - index) * 1000, index % 10 === 0 ? 53 : 0, index % 20 === 0 ? 1 : 0, index > 40 ? 2 : 0, index > 40 ? 1 : 0, index > 10 && index < 40 ? 1 : 0]);
  return [["start", { fields: ["rateLimited", "orderBlocked", "loadLevel", "breakerRedis", "breakerPostgres"] }], ["past", { node: "n1", rows }]].map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join("");
};

const chains = ["judy", "dan"].map((user, index) => ({ specversion: "1.0", id: `order-blocked/${user}`, source: "/tidegate/n1", type: "tidegate.order-blocked", subject: user, time: new Date(END_MS - (1 - index) * 9000).toISOString(), data: { user, device: "phone", expected: `d-${18 - index}` } }));

/** Answers the requests of the page. `without` names routes that the node does not have; `asks` gets the changes that the page asks for. `isWhole`: no storm is missing. */
export async function guarding(page, { without = [], asks = [], more = {}, isWhole = false } = {}) {
  const have = lists();
  const subject = { subject: "user:mallory", kind: "user", banned: true, bans: [have.bans.bans[2]], exempt: null };
  const answers = { "/v1/limits": limits, "/v1/rules": knownRules, "/v1/subjects/user%3Amallory": subject, "/v1/storms": isWhole ? ALL : SOME, "/v1/limits/user%3Amallory": ofUser, "/v1/evidence": scores, "/v1/events": { node: "n1", cursor: "1", missed: false, events: chains } };
  await changed(page, "**/v1/console", (it) => ({ ...it, node: "n1", nodes: 3, ...more, peers: ["n2", "n3"].map((name) => ({ node: name, ws: [], admin: "" })) }));
  await changed(page, "**/v1/openapi.json", (it) => {
    for (const [path, methods] of Object.entries(ROUTES)) it.paths[path] = Object.fromEntries(methods.map((method) => [method, {}]));
    for (const path of without) delete it.paths[path];
    return it;
  });
  await page.route("**/v1/stats/stream", (route) => route.fulfill({ contentType: "text/event-stream", body: stream() }));
  await page.route("**/v1/storms/*", (route) => {
    const group = decodeURIComponent(new URL(route.request().url()).pathname.split("/").at(-1));
    return route.fulfill({ json: { ...STORMS.find((it) => it.conversation === `g:${group}`), profile: PROFILES[group], silent: [] } });
  });
  for (const [name, list] of Object.entries(have)) {
    const entries = Object.values(list)[0];
    await page.route((at) => at.pathname === `/v1/${name}` || at.pathname.startsWith(`/v1/${name}/`), (route) => {
      const [request, path] = [route.request(), new URL(route.request().url()).pathname];
      if (request.method() === "GET") return route.fulfill({ json: list });
      asks.push([request.method(), path, request.postDataJSON()]);
      const subject = request.postDataJSON()?.subject ?? decodeURIComponent(path.split("/")[3]);
      if (request.method() === "DELETE") entries.splice(entries.findIndex((it) => it.subject === subject), 1);
      else entries.unshift(entry(subject, request.postDataJSON().reason, 600_000));
      return route.fulfill({ json: { subject, inForce: true, pending: request.method() === "DELETE" ? [] : ["n3"] } });
    });
  }
  for (const [path, json] of Object.entries(answers)) await page.route((at) => at.pathname === path, (route) => (new URL(route.request().url()).searchParams.has("wait_ms") ? new Promise(() => {}) : route.fulfill({ json })));
}

/** Routes that a node with all of the guard has. */
const ROUTES = {
  "/v1/storms": ["get"], "/v1/storms/{group}": ["get"], "/v1/limits": ["get"], "/v1/limits/{key}": ["get"], "/v1/rules": ["get"], "/v1/rules/{rule}": ["get", "put", "delete"], "/v1/bans": ["get", "post"], "/v1/bans/{subject}": ["delete"],
  "/v1/allow": ["get"], "/v1/allow/{network}": ["get", "put", "delete"], "/v1/suspensions": ["get"], "/v1/suspensions/{subject}": ["delete"], "/v1/evidence": ["get"], "/v1/subjects/{subject}": ["get"],
};
