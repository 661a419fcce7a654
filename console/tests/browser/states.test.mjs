// What the page shows when something is missing: no answer, another version, nothing yet, no right to act.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { startNode } from "./node.mjs";
import { accessibility, changed, launch, open, stated as statedPage, until } from "./page.mjs";

let node;
let browser;
before(async () => {
  node = await startNode();
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await node?.stop();
});

/** A test of a page whose requests are changed first. */
const stated = (...test) => statedPage(() => ({ browser, node }), ...test);

/** Changes the answer of `GET /v1/console`; `change` gets it and returns another. */
const boot = (page, change) => changed(page, "**/v1/console", change);

describe("the states of the page", { concurrency: 3 }, () => {
  let version;
  stated("a newer node is announced, and the page does not load itself again", "/errors", (page) => boot(page, (it) => ({ ...it, version: version ?? it.version })), async (page) => {
    await page.waitForSelector(".code");
    assert.equal(await page.$(".banner"), null);
    await page.fill("[data-filter]", "token");
    version = "9.9.9";
    await page.waitForSelector(".banner >> text=/^This page is older than the node \\([0-9.]+, 9\\.9\\.9\\)\\.$/");
    assert.equal(await page.inputValue("[data-filter]"), "token");
    await page.click(".banner >> text=Reload");
    await page.waitForSelector(".code");
    await page.waitForSelector(".foot >> text=9.9.9");
    assert.equal(await page.$(".banner"), null);
  });

  let hasJoined = false;
  const joining = (it) => (hasJoined ? { ...it, nodes: it.nodes + 1, peers: [...it.peers, { node: "n4", ws: ["ws://127.0.0.1:1"], admin: "" }] } : it);
  stated("a node that joined after the page is named, with a reload to reach it", "/try", (page) => boot(page, joining), async (page) => {
    await page.waitForSelector(".chat-1 .link-state >> text=Connected");
    assert.equal(await page.$(".banner"), null);
    hasJoined = true;
    await page.waitForSelector(".banner >> text=/^n4 joined after this page was loaded/");
    await page.waitForSelector(".banner button >> text=Reload to reach n4");
  });

  const refusal = { code: 4001, name: "RATE_LIMITED", message: "Too many requests.", cure: "Wait.", temporary: true };
  let isRefused = true;
  stated("a failed request is described in its place, and tried again", "/people?user=eve", (page) => page.route("**/v1/users/eve/presence", (route) => (isRefused ? route.fulfill({ status: 429, json: refusal }) : route.continue())), async (page) => {
    await page.waitForSelector(".failed >> text=4001 RATE_LIMITED");
    assert.match((await page.textContent(".failed")) ?? "", /Too many requests\. Wait\./);
    await page.waitForSelector(".person >> text=eve");
    isRefused = false;
    await page.click(".failed >> text=Try again");
    await until(page, () => document.querySelector(".failed") === null);
    await page.waitForSelector(".chip >> text=offline");
  });

  stated("an empty list says how to fill it, as a command to copy", "/events?user=zoe", undefined, async (page) => {
    await page.waitForSelector(".empty code >> text=tidegate tail --user zoe");
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.click(".empty >> text=Copy");
    await page.waitForSelector(".empty >> text=Copied");
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "tidegate tail --user zoe");
    await page.goto(`${node.url}/messages?user=zoe`);
    await page.waitForSelector(".empty code >> text=tidegate send --user zoe --to bob hello");
  });

  let areFilesThere = false;
  stated("a view whose files are gone says so", "/errors", (page) => page.route("**/assets/errors-*", (route) => (areFilesThere ? route.fallback() : route.abort())), async (page) => {
    await page.waitForSelector(".failed >> text=could not be loaded");
    assert.equal(await page.textContent("h1"), "Errors");
    await page.click(".nav >> text=Events");
    await page.waitForSelector("h1 >> text=Events");
    await page.click(".nav >> text=Errors");
    await page.waitForSelector(".failed >> text=could not be loaded");
    areFilesThere = true;
    await page.click(".failed >> text=Try again");
    await page.waitForSelector(".code");
  });

  let answer = () => {};
  const answered = new Promise((resolve) => (answer = resolve));
  stated("a thin bar says that an answer is missing, and the page is there meanwhile", "/overview", (page) => page.route("**/v1/nodes", async (route) => {
    await answered;
    return route.continue();
  }), async (page) => {
    await page.waitForSelector(".progress");
    await page.waitForSelector(".verdict >> text=Reading the state of the nodes.");
    answer();
    await page.waitForSelector(".verdict >> text=All is well.");
    await until(page, () => document.querySelector(".progress") === null);
  });

  /** Rows of codes as the stream of figures has them. */
  const stream = (rows) => [["start", { fields: [] }], ["codes", { node: "n1", everyMs: 10_000, rows }], ["codes", { node: "n2", everyMs: 10_000, rows: [] }]]
    .map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join("");
  const now = Date.now();
  const rows = [[now - 600_000, [[2002, 40]]], [now - 60_000, [[2002, 2], [4005, 7]]], [now, [[1002, 9]]]];
  const counting = (isCounting) => async (page) => {
    const others = (features) => features.filter((it) => it !== "codes");
    await boot(page, (it) => ({ ...it, features: [...others(it.features), ...(isCounting ? ["codes"] : [])], nodes: 3, peers: ["n2", "n3"].map((name) => ({ node: name, ws: [], admin: "" })) }));
    await page.route("**/v1/stats/stream", (route) => route.fulfill({ contentType: "text/event-stream", body: stream(rows) }));
  };
  stated("codes that rise come first, with their counts, and have a badge", "/errors", counting(true), async (page) => {
    await page.waitForSelector(".nav .count-badge >> text=2");
    assert.deepEqual(await page.$$eval(".rise > .num:first-child", (list) => list.map((it) => it.textContent)), ["1002", "4005"]);
    assert.match((await page.textContent(".rise")) ?? "", /9 in 5 min.*9 in 15 min, rises/);
    assert.match((await page.textContent("#code-2002 .trend")) ?? "", /42 in 15 min$/);
    assert.equal(await page.$("#code-2001 .trend"), null);
    await page.waitForSelector(".part >> text=n3 did not report. These are the counts of 2 of 3 nodes.");
    await page.setViewportSize({ width: 390, height: 844 });
    await page.waitForSelector(".tabs .count-badge >> text=2");
    assert.match((await page.getAttribute(".tabs button", "aria-label")) ?? "", /^More\. Errors: two codes rose/);
  });
  stated("without counts nothing is claimed about codes", "/errors", counting(false), async (page) => {
    await page.waitForSelector(".code");
    assert.equal(await page.textContent("#code-1007 p.soft"), "Ids match [A-Za-z0-9_.-]{1,64}, and are not . or ..; take conversation keys from the broker.");
    await page.waitForSelector(".foot >> text=/Live|Last answer/");
    for (const part of [".count-badge", ".rise", ".trend", ".part"]) assert.equal(await page.$(part), null, part);
  });

  /** Connections that a node lists of more than it has; one has names that look like markup. */
  const connection = (index, more) => ({ id: `n${1 + (index % 3)}.1.${index}`, user: `user-${index}`, device: "phone", node: `n${1 + (index % 3)}`, address: `10.0.0.${index}`, transport: "tcp-proto", sinceMs: Date.now() - index * 40_000, outboxBytes: index * 700, window: index, expiresMs: null, ...more });
  const listed = { connections: [connection(0, { user: "x".repeat(64), device: "y".repeat(64) }), ...Array.from({ length: 20 }, (_, index) => connection(index + 1))], total: 4200, silent: ["n9"] };
  const asks = [];
  let isBusy = true;
  stated("connections are filtered, sorted and kicked, and what is missing is named", "/connections", async (page) => {
    await boot(page, (it) => ({ ...it, nodes: 3, peers: ["n2", "n3"].map((name) => ({ node: name, ws: [], admin: "" })) }));
    await page.route("**/v1/connections?*", (route) => {
      asks.push(new URL(route.request().url()).search);
      return isBusy ? route.fulfill({ status: 503, json: { code: 4002, name: "BUSY", message: "Too much to do.", cure: "Wait.", temporary: true } }) : route.fulfill({ json: listed });
    });
    await page.route("**/v1/connections/*", (route) => {
      asks.push(`${route.request().method()} ${new URL(route.request().url()).pathname}${new URL(route.request().url()).search}`);
      return route.fulfill({ json: { closed: 0, silent: ["n2"] } });
    });
    await page.route("**/v1/users/user-7/connections", (route) => route.fulfill({ json: { connections: [connection(7)], total: 1, silent: [] } }));
  }, async (page) => {
    await page.waitForSelector(".failed >> text=4002 BUSY");
    assert.equal(await page.$(".connections"), null);
    await Promise.all([page.waitForRequest("**/v1/connections?*"), page.click(".failed >> text=Try again")]);
    isBusy = false;
    await page.waitForSelector(".note >> text=These are the 21 newest of 4,200.");
    await page.waitForSelector(".banner >> text=/^n9 did not answer: its connections are not listed here/");
    assert.equal(await page.textContent(".lead-note"), "4,200");
    const findings = await accessibility(page);
    for (const width of [1440, 768, 360]) {
      await page.setViewportSize({ width, height: 800 });
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, `it scrolls sideways at ${width} px`);
      if (width !== 768) for (const theme of ["light", "dark"]) assert.deepEqual(await findings(theme), [], `${theme}, ${width} px`);
    }
    await page.setViewportSize({ width: 1440, height: 800 });
    await page.click("text=most waiting");
    await page.selectOption(".pick select", "n2");
    await page.fill("[data-filter]", "10.0.0.7");
    await until(page, () => document.querySelectorAll(".connections tbody tr").length === 1);
    await page.waitForSelector(".note >> text=One connection of the 21 with the most bytes waiting of 4,200 matches. The others were not searched.");
    await until(page, () => new URLSearchParams(location.search).get("node") === "n2");
    assert.ok(asks.some((it) => it.includes("node=n2") && it.includes("sort=outbox") && it.includes("limit=1000")), JSON.stringify(asks));
    await page.focus(".connections .link");
    await page.keyboard.press("Enter");
    await page.waitForSelector("dialog[open] >> text=Kick user-7’s phone?");
    await page.check("dialog .choice input");
    await page.click("dialog .danger");
    await page.waitForSelector(".outcome >> text=No connection was closed. n2 did not answer, so connections there may go on.");
    assert.ok(asks.includes("DELETE /v1/connections/n2.1.7?reconnect=after"), JSON.stringify(asks));
    await page.selectOption(".pick select", "");
    await page.fill("[data-filter]", "user-7");
    await page.click(".note >> text=All of the user user-7");
    await page.waitForSelector(".lead-note >> text=1 of user-7");
    await page.click(".connections td a");
    await page.waitForSelector(".person >> text=user-7");
  });

  const blocks = ["mallory", "trudy"];
  stated("a user’s block list is read when it is opened, and changed", "/people?user=eve", async (page) => {
    await page.route("**/v1/users/eve/connections", (route) => route.fulfill({ json: { connections: [], total: 0, silent: ["n3"] } }));
    await page.route("**/v1/users/eve/revocations", (route) => route.fulfill({ json: { revocations: [{ before: null, tokenId: "jti-1", device: null, atMs: 1, untilMs: null }] } }));
    await page.route("**/v1/users/eve/blocks*", (route) => route.fulfill({ json: { user: "eve", blocks: blocks.map((user) => ({ user, time: 1_763_712_000_000 })) } }));
    await page.route("**/v1/users/eve/blocks/*", (route) => {
      const [method, other] = [route.request().method(), new URL(route.request().url()).pathname.split("/").at(-1)];
      if (method === "PUT") blocks.push(other);
      else blocks.splice(blocks.indexOf(other), 1);
      return route.fulfill({ json: { user: "eve", other, blocked: method === "PUT", changed: true, pending: method === "PUT" ? ["n3"] : [] } });
    });
  }, async (page) => {
    await page.waitForSelector(".person >> text=n3 did not answer");
    await page.waitForSelector("li >> text=The token jti-1. In force for as long as tokens may live.");
    await page.focus(".blocks summary");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".blocks li >> text=mallory");
    await page.fill(".blocks input", "oscar");
    await page.press(".blocks input", "Enter");
    await page.waitForSelector(".blocks >> text=eve blocks oscar. n3 follows within two seconds.");
    await page.waitForSelector(".blocks li >> text=oscar");
    const findings = await accessibility(page);
    await page.setViewportSize({ width: 360, height: 800 });
    for (const theme of ["light", "dark"]) assert.deepEqual(await findings(theme), [], theme);
    await page.click("[aria-label='Unblock mallory']");
    await page.waitForSelector(".blocks >> text=eve no longer blocks mallory.");
    await page.waitForSelector("[aria-label='Unblock mallory']", { state: "detached" });
    assert.deepEqual(await page.$$eval(".blocks li a", (list) => list.map((it) => it.textContent)), ["trudy", "oscar"]);
  });

  const endpoint = { id: "crm", url: "https://crm.internal/tg", types: ["tidegate.*"], state: "paused", node: "n1", behind: 3, lagMs: 4200, asideCount: 1 };
  stated("each action of an endpoint can be had by curl, on a console that only reads too", "/webhooks", async (page) => {
    await boot(page, (it) => ({ ...it, console: "read" }));
    await page.route("**/v1/webhooks", (route) => route.fulfill({ json: { node: "n1", webhooks: [endpoint] } }));
    await page.route("**/v1/webhooks/crm", (route) => route.fulfill({ json: endpoint }));
    await page.route("**/v1/webhooks/crm/aside?*", (route) => route.fulfill({ json: { events: [{ conversation: "g:team", seq: 18, tries: 2 }], count: 1 } }));
  }, async (page) => {
    await page.waitForSelector(".aside-events >> text=g:team/18");
    for (const action of ["Test", "Pause", "Resume", "Send again"]) assert.equal(await page.$(`.webhook button:text-is("${action}")`), null, action);
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    const copied = async (selector) => {
      await page.click(selector);
      await page.waitForSelector("text=Copied");
      return page.evaluate(() => navigator.clipboard.readText());
    };
    const command = (part) => `curl -X POST ${new URL(page.url()).origin}/v1/webhooks/crm/${part} -H 'content-type: application/json' -d '{}'`;
    assert.equal(await copied(".aside-events >> text=Copy as curl"), command("aside/g%3Ateam/18/resend"));
    await page.click("[aria-label='More for crm']");
    const findings = await accessibility(page);
    for (const theme of ["light", "dark"]) assert.deepEqual(await findings(theme), [], theme);
    assert.equal(await copied(".menu-list >> text=Copy a test as curl"), command("test"));
    assert.deepEqual(await page.$$eval(".menu-list button", (list) => list.map((it) => it.textContent).slice(1)), ["Copy pausing as curl", "Copy resuming as curl"]);
  });

  const states = { conversations: [
    { conversation: "d:bob:eve", peer: "bob", maxSeq: 7, minSeq: 1, readSeq: 4, unread: 3, clearedSeq: 0, member: true, time: 1_763_712_000_000 },
    { conversation: "g:team", maxSeq: 12_345, minSeq: 1, readSeq: 12_345, unread: 0, clearedSeq: 0, member: false, time: 1_763_712_000_000 },
  ], next: "AQ", user: "eve" };
  stated("a user’s conversations are listed with what is unread, and each answer can be had by curl", "/people?user=eve", async (page) => {
    await page.route("**/v1/users/eve/conversations?*", (route) => route.fulfill({ json: states }));
    await page.route("**/v1/users/eve/unread", (route) => route.fulfill({ json: { user: "eve", unread: 3, conversations: 1 } }));
  }, async (page) => {
    await page.waitForSelector(".person >> text=3 unread in all");
    await page.waitForSelector(".person >> text=The newest 20; there are more.");
    const rows = await page.$$eval(".connections tbody tr", (list) => list.map((row) => [...row.cells].slice(0, 4).map((cell) => cell.firstElementChild?.textContent ?? cell.textContent)));
    assert.deepEqual(rows, [["d:bob:eve", "3", "4", "7"], ["g:team", "0", "12,345", "12,345"]]);
    assert.deepEqual(await page.$$eval(".connections tbody a", (list) => list.map((it) => it.getAttribute("href"))), ["/people?user=bob", "/groups?group=team"]);
    await page.click("[aria-label='Copy as curl']");
    const command = await page.getAttribute("dialog[open] .commands code[title*='order=recent']", "title");
    assert.equal(command, `curl -s '${new URL(page.url()).origin}/v1/users/eve/conversations?order=recent&limit=20'`);
    const findings = await accessibility(page);
    for (const theme of ["light", "dark"]) assert.deepEqual(await findings(theme), [], theme);
    if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/commands.png` });
    await page.keyboard.press("Escape");
    if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/conversations.png` });
  });

  test("the style guide and Try it exist on nodes for development only", { timeout: 60_000 }, async () => {
    const own = await startNode({ env: { TIDEGATE__ADMIN__DEVELOPMENT: "no" } });
    const { page, context, wrong } = await open(browser, own.url, "/styleguide");
    await page.waitForSelector(".note >> text=This page has no view at this address.");
    assert.equal(await page.$(".guide"), null);
    await page.goto(`${own.url}/try`);
    await page.waitForSelector(".note >> text=Try it exists on nodes for development only");
    assert.deepEqual(await page.$$eval(".tabs a", (list) => list.map((it) => it.textContent)), ["Overview", "Messages", "Nodes", "Guard"]);
    assert.deepEqual(wrong, []);
    await context.close();
    await own.stop();
  });

  test("a console that only reads offers no actions", { timeout: 60_000 }, async () => {
    const own = await startNode({ env: { TIDEGATE__ADMIN__CONSOLE: "read" } });
    const { page, context, wrong } = await open(browser, own.url, "/nodes");
    await page.waitForSelector(".where >> text=read-only");
    await page.waitForSelector("td >> text=ready");
    assert.equal(await page.$("td .link"), null);
    await page.goto(`${own.url}/people?user=eve`);
    await page.waitForSelector(".person >> text=eve");
    for (const action of ["Create a token", "Kick all", "Revoke tokens"]) assert.equal(await page.$(`text=${action}`), null);
    await page.goto(`${own.url}/try`);
    await page.waitForSelector(".empty >> text=This console is read-only");
    assert.equal(await page.$(".deck"), null);
    assert.deepEqual(wrong, []);
    await context.close();
    await own.stop();
  });
});
