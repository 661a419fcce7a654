// Groups, live rooms, chains of devices, and events: with made-up answers, and as a node has them.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { startNode } from "./node.mjs";
import { accessibility, changed, launch, open, say, stated as statedPage, unexpected, until } from "./page.mjs";

let node;
/** A node without other events than those of the test that counts them. */
let lone;
let browser;
before(async () => {
  [node, lone, browser] = await Promise.all([startNode(), startNode(), launch()]);
});
after(async () => {
  await browser?.close();
  await Promise.all([node, lone].map((it) => it?.stop()));
});

const stated = (...test) => statedPage(() => ({ browser, node }), ...test);
const boot = (page, more) => changed(page, "**/v1/console", (it) => ({ ...it, ...more }));
const request = (method, path, body, of = node) => fetch(`${of.url}${path}`, { method, headers: { "content-type": "application/json" }, body: body && JSON.stringify(body) });

/** Checks a view that has long names, wide and on a phone: no sideways scroll, no finding of axe. Each layout in both themes is a test of all views. */
async function looked(page) {
  const findings = await accessibility(page);
  for (const [width, theme] of [[1440, "light"], [1024, ""], [360, "dark"]]) {
    await page.setViewportSize({ width, height: 800 });
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, `it scrolls sideways at ${width} px`);
    if (theme) assert.deepEqual(await findings(theme), [], `${theme}, ${width} px`);
  }
  await page.setViewportSize({ width: 1440, height: 900 });
}

const BUSY = { status: 503, json: { code: 4002, name: "BUSY", message: "Too much to do.", cure: "Wait.", temporary: true } };
const LONG = "launch-".repeat(9);

/** Answers of a node with more groups than a page of the list has. */
const groups = (state) => async (page) => {
  await page.route("**/v1/groups?*", (route) => {
    const query = new URL(route.request().url()).searchParams;
    state.asks.push(query.toString());
    if (state.isBusy) return route.fulfill(BUSY);
    const [prefix, cursor] = [query.get("prefix") ?? "", query.get("cursor")];
    const all = [{ id: "harbour", name: "<b>The harbour</b>", count: 1200, maxSeq: 41_233 }, { id: LONG, name: "x".repeat(256), count: 1, maxSeq: 1 }, { id: "team", name: null, count: 3, maxSeq: 12 }].filter((it) => it.id.startsWith(prefix));
    return route.fulfill({ json: prefix || cursor ? { groups: cursor ? all.slice(2) : all } : { groups: all.slice(0, 2), next: "AQ" } });
  });
  await page.route((at) => /^\/v1\/groups\/[^/]+$/.test(at.pathname), (route) => {
    const id = new URL(route.request().url()).pathname.split("/").at(-1);
    if (id === "gone") return route.fulfill({ status: 404, json: { code: 1007, name: "NOT_FOUND", message: "there is no such group", cure: "Check the id.", temporary: false } });
    return route.fulfill({ json: { id, conversation: `g:${id}`, name: id === "harbour" ? "<b>The harbour</b>" : null, count: 1200, meta: { color: "red" }, members: [], muted: [], roles: {}, settings: { retention: "7d", "storm.post": "admins" } } });
  });
  await page.route("**/v1/groups/*/members?*", (route) => {
    const query = new URL(route.request().url()).searchParams;
    state.asks.push(`members ${query}`);
    const [role, cursor] = [query.get("role"), query.get("cursor")];
    if (role === "admin") return route.fulfill({ json: { members: [] } });
    if (cursor) return route.fulfill({ json: { members: [{ user: "zoe", role: "member", muted: true, joinedSeq: 12_000 }] } });
    return route.fulfill({ json: { members: [{ user: "alice", role: "owner", muted: false, joinedSeq: 1 }, { user: "y".repeat(64), role: "member", muted: true, joinedSeq: 7 }], ...(role ? {} : { next: "Ag" }) } });
  });
};

/** Answers of a node with two live rooms. */
const rooms = (state) => async (page) => {
  await page.route("**/v1/rooms?*", (route) => route.fulfill({ json: { rooms: [{ room: "hall", count: state.members.length, nodes: 2 }, { room: LONG, count: 4200, nodes: 3 }], silent: ["n9"] } }));
  await page.route("**/v1/rooms/hall", (route) => route.fulfill({ json: { room: "hall", count: state.members.length, nodes: 2, silent: [] } }));
  await page.route("**/v1/rooms/hall/members?*", (route) => route.fulfill({ json: { members: state.members, silent: [] } }));
  await page.route("**/v1/rooms/hall/members/*", (route) => {
    const at = new URL(route.request().url());
    state.asks.push(`${route.request().method()} ${at.pathname}${at.search}`);
    if (state.isBusy) return route.fulfill(BUSY);
    state.members = state.members.filter((it) => it.user !== at.pathname.split("/").at(-1));
    return route.fulfill({ json: { removed: 2, silent: ["n2"] } });
  });
};

describe("groups, rooms and events", { concurrency: 3 }, () => {
  const listed = { asks: [], isBusy: true };
  stated("groups are listed by pages and by the beginning of their ids, with settings and members", "/groups", groups(listed), async (page) => {
    await page.waitForSelector(".failed >> text=4002 BUSY");
    listed.isBusy = false;
    await page.click(".failed >> text=Try again");
    await page.waitForSelector(".message-row >> text=harbour");
    await page.waitForSelector(".person h2 >> text=<b>The harbour</b>");
    await page.waitForSelector(".person >> text=g:harbour, 1,200 members");
    assert.deepEqual(await page.$$eval(".facts > div", (list) => list.map((it) => it.textContent)), [
      "New members seewhat follows their join (default)", "Messages are keptfor 7 days", "Who may postall members (default)", "Notices for push providersof all messages (default)", "storm.postadmins", "Metadata colorred",
    ]);
    await page.waitForSelector("td >> text=alice");
    await looked(page);
    await page.click("[aria-label=Members] >> text=Show more");
    await page.waitForSelector("td >> text=zoe");
    assert.deepEqual(await page.$$eval("[aria-label=Members] tbody tr", (list) => list.map((it) => [...it.cells].slice(1).map((cell) => cell.textContent.trim()).join(" "))), ["owner everything", "member muted from 7 on", "member muted from 12,000 on"]);
    await page.click("[aria-label=Role] >> text=admin");
    await page.waitForSelector("text=No member is an admin.");
    assert.ok(listed.asks.includes("members limit=50&cursor=Ag") && listed.asks.includes("members limit=50&role=admin"), JSON.stringify(listed.asks));
    await page.click(".side-more >> text=Show more");
    await page.waitForSelector(".message-row >> text=team");
    await page.click("[aria-label='Copy as curl']");
    const commands = await page.$$eval("dialog[open] .commands code", (list) => list.map((it) => it.title));
    for (const path of ["/v1/groups?limit=50", "/v1/groups/harbour", "/v1/groups/harbour/members?limit=50"]) assert.ok(commands.includes(`curl -s '${node.url}${path}'`), commands.join());
    await page.keyboard.press("Escape");
    await until(page, () => document.querySelector("dialog[open]") === null);
    await page.keyboard.press("/");
    await page.waitForSelector("[data-filter]:focus");
    await page.keyboard.type("te");
    await until(page, () => document.querySelectorAll(".message-row").length === 1);
    assert.equal(listed.asks.filter((it) => it.includes("prefix=")).at(-1), "limit=50&prefix=te");
    await page.keyboard.type(" a");
    await page.waitForSelector(".note >> text=No group has such an id");
    await page.fill("[data-filter]", "gone");
    await page.press("[data-filter]", "Enter");
    await page.waitForSelector(".failed >> text=NOT_FOUND there is no such group Check the id.");
    assert.equal(new URL(page.url()).search, "?group=gone");
  });

  const emptied = { isThere: false };
  stated("a node without groups and rooms says how to get one", "/groups", async (page) => {
    await page.clock.install();
    await page.route("**/v1/groups?*", (route) => route.fulfill({ json: { groups: [] } }));
    await page.route("**/v1/rooms?*", (route) => route.fulfill({ json: { rooms: emptied.isThere ? [{ room: "hall", count: 1, nodes: 1 }] : [], silent: [] } }));
    await page.route("**/v1/rooms/*", (route) => route.fulfill({ json: { room: "hall", count: 0, nodes: 0, silent: [] } }));
    await page.route("**/v1/rooms/*/members?*", (route) => route.fulfill({ json: { members: [], silent: [] } }));
  }, async (page) => {
    await page.waitForSelector(".empty >> text=There is no group. This creates one:");
    assert.match((await page.textContent(".empty code")) ?? "", /^curl -X POST http:.+\/v1\/groups .+"id":"team"/);
    await page.click(".kinds >> text=Live rooms");
    await page.waitForSelector(".empty >> text=No live room has members now.");
    assert.equal(await page.getAttribute(".nav-item >> text=Groups and rooms >> xpath=..", "aria-current"), "page");
    // A list that is read again finds a room that has begun meanwhile.
    emptied.isThere = true;
    await page.clock.fastForward(6000);
    await page.waitForSelector(".message-row >> text=hall");
    await page.waitForSelector("text=No connection is in this room now.");
  });

  const inRoom = { asks: [], isBusy: true, members: [{ user: "alice", device: "phone", node: "n1" }, { user: "bob", device: "phone", node: "n2" }, { user: "bob", device: "y".repeat(64), node: "n1" }] };
  stated("a user is removed from a live room after a question, and what did not answer is named", "/rooms", rooms(inRoom), async (page) => {
    await page.waitForSelector(".note >> text=n9 did not answer: its connections in rooms are not listed here.");
    await page.waitForSelector(".person >> text=r:hall, 3 connections on two nodes");
    await page.waitForSelector("td >> text=bob");
    await looked(page);
    await page.click("[aria-label='Remove bob from hall, on phone or all devices']");
    await page.waitForSelector("dialog[open] >> text=All connections of bob leave hall, on all nodes");
    await page.check("dialog .choice input");
    await page.waitForSelector("dialog[open] >> text=The connection of bob’s phone leaves hall");
    await page.uncheck("dialog .choice input");
    await page.fill("dialog .asked input", "too loud");
    const findings = await accessibility(page);
    for (const theme of ["light", "dark"]) assert.deepEqual(await findings(theme), [], theme);
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.click("dialog >> text=Copy as curl");
    await page.waitForSelector("dialog >> text=Copied");
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), `curl -X DELETE ${node.url}'/v1/rooms/hall/members/bob?reason=too+loud' -H 'content-type: application/json'`);
    await page.click("dialog .danger");
    await page.waitForSelector("dialog .failed >> text=4002 BUSY");
    inRoom.isBusy = false;
    await page.click("dialog .danger");
    await page.waitForSelector(".outcome >> text=Two connections of bob have left hall. n2 did not answer, so bob may still be in the room there.");
    await until(page, () => document.querySelectorAll("[aria-label=Members] tbody tr").length === 1);
    assert.deepEqual(inRoom.asks, Array(2).fill("DELETE /v1/rooms/hall/members/bob?reason=too+loud"));
    await page.fill("[data-filter]", "other");
    await page.waitForSelector(".note >> text=Press Enter to look at other.");
  });

  const chains = { asks: [], expected: "m-7" };
  stated("the chains of a user’s devices say what they wait for, and one is reset after a question", "/people?user=eve", async (page) => {
    await page.route("**/v1/users/eve/devices", (route) => route.fulfill({ json: { user: "eve", devices: [{ device: "phone", online: true, node: "n1", chain: true }, { device: "x".repeat(64), online: false, node: null, chain: true }, { device: "web", online: true, node: "n1", chain: false }] } }));
    await page.route("**/v1/users/eve/devices/*/chain", (route) => {
      const device = new URL(route.request().url()).pathname.split("/")[5];
      if (route.request().method() === "DELETE") {
        chains.asks.push(device);
        chains.expected = "m-1";
        return route.fulfill({ json: { chain: true, closed: 1, silent: [] } });
      }
      return route.fulfill({ json: { user: "eve", device, expected: device === "phone" ? chains.expected : "m".repeat(64), held: device === "phone" ? 2 : 0, blockedMs: device === "phone" ? 4200 : 0, done: 6, skipped: 0, node: null, silent: device === "phone" ? [] : ["n3"] } });
    });
  }, async (page) => {
    await page.waitForSelector("[aria-label=Chains] td.mono >> text=m-7");
    const rows = () => page.$$eval("[aria-label=Chains] tbody tr", (list) => list.map((row) => [...row.cells].slice(2).map((cell) => cell.textContent)));
    assert.deepEqual(await rows(), [["m-7", "2", "4.2 s", "Reset"], ["m".repeat(64), "0", "–", "Reset"], ["no chain is saved", "–", "–", ""]]);
    await page.waitForSelector("[aria-label=Chains] .lagging >> text=n3 did not answer: what it holds is not known.");
    await looked(page);
    await page.click("[aria-label='Reset the chain of phone']");
    await page.waitForSelector("dialog[open] >> text=Reset the chain of eve’s phone?");
    assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Keep it");
    await page.click("dialog .danger");
    await page.waitForSelector(".outcome >> text=The chain of eve’s phone was removed, and its connection was closed.");
    await page.waitForSelector("[aria-label=Chains] td.mono >> text=m-1");
    assert.deepEqual(chains.asks, ["phone"]);
  });

  const quiet = { asks: [], isBusy: false, members: inRoom.members };
  stated("a console that only reads removes nobody and resets no chain", "/rooms", async (page) => {
    await boot(page, { console: "read" });
    await rooms(quiet)(page);
    await page.route("**/v1/users/eve/devices", (route) => route.fulfill({ json: { user: "eve", devices: [{ device: "phone", online: true, node: "n1", chain: true }] } }));
    await page.route("**/v1/users/eve/devices/*/chain", (route) => route.fulfill({ json: { user: "eve", device: "phone", expected: "m-2", held: 0, blockedMs: 0, done: 1, skipped: 0, node: null, silent: [] } }));
  }, async (page) => {
    await page.waitForSelector("[aria-label=Members] td >> text=bob");
    assert.equal(await page.$("[aria-label=Members] tbody button"), null);
    await page.goto(`${node.url}/people?user=eve`);
    await page.waitForSelector("[aria-label=Chains] td.mono >> text=m-2");
    assert.equal(await page.$("[aria-label=Chains] tbody button"), null);
  });

  test("a node’s own groups, rooms and chains are shown, and its people removed and reset", { timeout: 60_000 }, async () => {
    const own = await startNode();
    const talk = await open(browser, own.url, "/try/room");
    await talk.page.waitForSelector(".listeners >> text=/^12 in the room/");
    const { page, context, wrong } = await open(browser, own.url, "/rooms");
    await page.waitForSelector(".message-row >> text=14 connections");
    await page.click("[aria-label^='Remove carol from']");
    await page.click("dialog .danger");
    await page.waitForSelector(".outcome >> text=/^One connection of carol has left try-/");
    await page.waitForSelector(".person-head >> text=13 connections");
    const body = { id: "team", members: ["alice", "bob"], owner: "alice", name: "The team", meta: { color: "red" }, settings: { history: "all" } };
    assert.equal((await fetch(`${own.url}/v1/groups`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).status, 201);
    await page.click(".kinds >> text=Groups");
    await page.waitForSelector(".person-head >> text=g:team, 2 members");
    await page.waitForSelector(".facts >> text=the whole history");
    await page.waitForSelector("[aria-label=Members] td >> text=bob");
    assert.deepEqual(await page.$$eval("[aria-label=Members] tbody tr", (list) => list.map((it) => [...it.cells].map((cell) => cell.firstElementChild?.textContent ?? cell.textContent.trim()).slice(0, 2))), [["alice", "owner"], ["bob", "member"]]);
    // A message names the next one, so that its device has a chain.
    await talk.page.goto(`${own.url}/try`);
    await talk.page.waitForSelector(".chat-1 .link-state >> text=Connected");
    await say(talk.page, 0, "with a chain");
    await page.click("[aria-label=Members] td >> text=alice");
    await page.click("[aria-label='Reset the chain of phone']");
    await page.click("dialog .danger");
    await page.waitForSelector(".outcome >> text=The chain of alice’s phone was removed, and its connection was closed.");
    await page.waitForSelector("[aria-label=Chains] td >> text=no chain is saved");
    for (const it of [talk.context, context]) await it.close();
    assert.deepEqual(unexpected([...wrong, ...talk.wrong]), []);
    await own.stop();
  });

  const changes = (count) => Promise.all(Array.from({ length: count }, (_, index) => request("PUT", `/v1/users/zed/blocks/other-${index}-${Date.now()}`, undefined, lone)));
  test("an event appears on an open page, and a paused list counts what waits", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await open(browser, lone.url, "/events?type=audit&user=zed");
    await page.waitForSelector(".empty >> text=No event matches.");
    const shown = () => page.$$eval(".event-row", (list) => list.length);
    await changes(1);
    await page.waitForSelector(".event-row >> text=/PUT .+user zed/");
    await page.keyboard.press("p");
    await page.waitForSelector(".filter [aria-pressed=true] >> text=Go on");
    await changes(2);
    await page.waitForSelector(".filter button >> text=Go on, 2 wait");
    assert.equal(await shown(), 1);
    await page.click(".filter >> text=Go on, 2 wait");
    await until(page, () => document.querySelectorAll(".event-row").length === 3);
    await page.waitForSelector(".filter >> text=Pause");
    assert.equal(await page.$(".others"), null, "there are no other nodes");
    assert.deepEqual(wrong, []);
    await context.close();
  });

  test("the feed of all nodes has a message as it is accepted, and stands still while it is paused", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await open(browser, node.url, "/events");
    await page.click(".sources >> text=feed of all nodes");
    await page.waitForSelector(".empty >> text=What is accepted from now on, on any node, appears here");
    const send = (text) => request("POST", "/v1/messages", { to: "bob", from: "ann", content: { text } });
    assert.ok((await send("one")).ok);
    await page.waitForSelector(".event-row >> text=/d:ann:bob has message 1 from ann$/");
    assert.ok(!(await page.textContent(".events")).includes("one"), "the page asks for no content");
    await page.keyboard.press("p");
    await send("two");
    await page.waitForSelector(".filter button >> text=Go on, 1 waits");
    await page.keyboard.press("p");
    await page.waitForSelector(".event-row >> text=/d:ann:bob has message 2 from ann$/");
    await looked(page);
    await page.click("[aria-label=Types] >> text=groups");
    await page.waitForSelector(".empty >> text=appears here if it matches");
    assert.equal(new URL(page.url()).search, "?of=all&type=groups");
    assert.ok((await request("POST", "/v1/groups", { id: "feed", members: ["ann"] })).ok);
    await page.waitForSelector(".event-row >> text=/g:feed was created.* with ann$/");
    assert.deepEqual(wrong, []);
    await context.close();
  });

  stated("events of one node name the nodes whose events they lack", "/events", (page) => boot(page, { node: "n1", nodes: 3, peers: [{ node: "n2", ws: [], admin: "http://127.0.0.1:1" }, { node: "n3", ws: [], admin: "" }] }), async (page) => {
    await page.waitForSelector(".others >> text=These are the logins, reads, chains and requests of n1. Those of n2 and n3 are on their own consoles");
    assert.equal(await page.getAttribute(".others a", "href"), "http://127.0.0.1:1/events");
    await page.click(".sources >> text=feed of all nodes");
    assert.equal(await page.$(".others"), null);
  });
});
