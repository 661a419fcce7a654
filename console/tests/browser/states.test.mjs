// What the page shows when something is missing: no answer, another version, nothing yet, no right to act.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { startNode } from "./node.mjs";
import { changed, launch, open, until } from "./page.mjs";

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

/** Opens a page whose requests are changed first, and hands it to a test. A refused request is an error in the browser's console. */
function stated(name, path, prepare, act) {
  test(name, { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await open(browser, node.url, path, { prepare });
    try {
      await act(page);
      assert.deepEqual(wrong.filter((it) => !it.includes("Failed to load resource")), []);
    } finally {
      await context.close();
    }
  });
}

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

  stated("an empty list says how to fill it, as a command to copy", "/events?user=eve", undefined, async (page) => {
    await page.waitForSelector(".empty code >> text=tidegate tail --user eve");
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.click(".empty >> text=Copy");
    await page.waitForSelector(".empty >> text=Copied");
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "tidegate tail --user eve");
    await page.goto(`${node.url}/messages?user=eve`);
    await page.waitForSelector(".empty code >> text=tidegate send --user eve --to bob hello");
  });

  let areFilesThere = false;
  stated("a view whose files are gone says so", "/errors", (page) => page.route("**/assets/errors-*", (route) => (areFilesThere ? route.fallback() : route.abort())), async (page) => {
    await page.waitForSelector(".failed >> text=could not be loaded");
    assert.equal(await page.textContent("h1"), "Errors");
    await page.click(".nav >> text=Events");
    await page.waitForSelector("h1 >> text=Events");
    await page.click(".nav >> text=Errors");
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

  const asked = [];
  stated("a node that needs a key gets one from a field", "/overview", async (page) => {
    for (const path of ["**/v1/console", "**/v1/nodes"]) {
      await page.route(path, async (route) => {
        const { authorization } = await route.request().allHeaders();
        asked.push(authorization);
        if (authorization === "Bearer right") return route.continue({ headers: { ...(await route.request().allHeaders()), authorization: "" } });
        return route.fulfill({ status: 401, json: { code: 2001, name: "TOKEN_INVALID", message: "No key." } });
      });
    }
  }, async (page) => {
    for (const key of ["wrong", "right"]) {
      await page.fill(".keyform input", key);
      await page.press(".keyform input", "Enter");
      if (key === "wrong") await page.waitForSelector(".keyform >> text=The node refused this key.");
    }
    await page.waitForSelector(".verdict >> text=All is well.");
    assert.ok(asked.includes("Bearer wrong"));
    assert.deepEqual(await page.evaluate(() => Object.keys(localStorage)), []);
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
    await page.waitForSelector(".foot >> text=/Live|Last answer/");
    for (const part of [".count-badge", ".rise", ".trend", ".part"]) assert.equal(await page.$(part), null, part);
  });

  test("the style guide and Try it exist on nodes for development only", { timeout: 60_000 }, async () => {
    const own = await startNode({ env: { TIDEGATE__ADMIN__DEVELOPMENT: "no" } });
    const { page, context, wrong } = await open(browser, own.url, "/styleguide");
    await page.waitForSelector(".note >> text=This page has no view at this address.");
    assert.equal(await page.$(".guide"), null);
    await page.goto(`${own.url}/try`);
    await page.waitForSelector(".note >> text=Try it exists on nodes for development only");
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
    assert.equal(await page.$("text=Create a token"), null);
    await page.goto(`${own.url}/try`);
    await page.waitForSelector(".empty >> text=This console is read-only");
    assert.equal(await page.$(".deck"), null);
    assert.deepEqual(wrong, []);
    await context.close();
    await own.stop();
  });
});
