// The river, the partitions and the actions of the nodes, with a cluster that the test makes up on the page of a real node.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { startNode } from "./node.mjs";
import { accessibility, launch, open, until } from "./page.mjs";
import { pretend, rollout } from "./rollout.mjs";

let node;
let browser;
before(async () => {
  [node, browser] = await Promise.all([startNode(), launch()]);
});
after(async () => {
  await browser?.close();
  await node?.stop();
});

/** Opens a view of the cluster that is made up. */
function openNodes(path, options, ago) {
  return open(browser, node.url, path, { ...options, prepare: (page) => pretend(page, rollout(Math.floor(Date.now() / 1000), ago)) });
}

describe("pages of a cluster that is made up", { concurrency: 2 }, () => {
  test("the overview is amber while a node does not answer, and after it has stopped", { timeout: 60_000 }, async () => {
    for (const [isListed, words] of [[true, /^n3 has not answered for 4\d s; if it has died, others take over its 21 partitions\.$/], [false, /^n3 stopped 4\d s ago without a drain; others took over\.$/]]) {
      const it = rollout(Math.floor(Date.now() / 1000));
      it.rows.n3 = it.rows.n3.slice(0, -41);
      // What arrives after the past shows that the page itself received rows meanwhile.
      const later = ["n1", "n2"].flatMap((name) => it.rows[name].slice(-41).map((row) => ["now", { node: name, row }]));
      for (const name of ["n1", "n2"]) it.rows[name] = it.rows[name].slice(0, -41);
      // Its partitions have new owners once it is no longer listed.
      if (!isListed) it.nodes = it.nodes.filter(({ node: name }) => name !== "n3").map((one, index) => (index === 0 ? { ...one, owns: Array.from({ length: 64 }, (_, partition) => partition) } : one));
      const { page, context, wrong } = await open(browser, node.url, "/overview", { prepare: (page) => pretend(page, it, later) });
      await page.waitForSelector(".verdict >> text=n3");
      assert.match(await page.textContent(".verdict .first"), words);
      assert.ok(await page.$(".verdict .dot.amber"));
      assert.equal((await page.$$(".node-row .chip >> text=no answer")).length, isListed ? 1 : 0);
      assert.deepEqual(wrong, []);
      await context.close();
    }
  });

  test("the overview of a page that has just been opened names a node without figures instead of calling all well", { timeout: 60_000 }, async () => {
    const it = rollout(Math.floor(Date.now() / 1000));
    it.rows.n3 = [];
    it.nodes = it.nodes.map((one) => ({ ...one, state: "ready", drain: null }));
    const { page, context, wrong } = await open(browser, node.url, "/overview", { prepare: (page) => pretend(page, it) });
    await page.waitForSelector(".verdict >> text=n3");
    assert.equal(await page.textContent(".verdict .first"), "n2 and n3 have not reported to this page yet. Nothing else is wrong.");
    assert.ok(await page.$(".verdict .dot.off"));
    assert.deepEqual(wrong, []);
    await context.close();
  });

  for (const path of ["/nodes", "/overview"]) {
    test(`${path} of a rollout in both themes, on wide and narrow screens`, { timeout: 60_000 }, async () => {
      const { page, context, wrong } = await openNodes(path);
      await page.waitForSelector(path === "/nodes" ? ".phases li" : ".cell.divided");
      const findings = await accessibility(page);
      for (const width of [1440, 768, 360]) {
        await page.setViewportSize({ width, height: 900 });
        assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, `it scrolls sideways at ${width} px`);
        for (const theme of ["light", "dark"]) assert.deepEqual(await findings(theme), [], `${theme}, ${width} px`);
      }
      assert.deepEqual(wrong, []);
      await context.close();
    });
  }

  test("the river opens while nodes leave, is read by keys, stands still and shows as a table", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await openNodes("/nodes");
    await page.waitForSelector(".phases >> text=n3 leaves");
    assert.match((await page.textContent(".phases")) ?? "", /n3 leaves, 3,000 at 50\/s.+n1 is leaving/);
    await page.waitForSelector(".figures >> text=/Have moved, at least\\s*3,\\d{3}/");
    assert.equal(await page.evaluate(() => document.querySelector(".river-box")?.clientHeight), 392);
    const drawn = () => page.evaluate(() => {
      const canvas = document.querySelector(".river-box canvas");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return data.filter((value, index) => index % 4 === 3 && value > 0).length / (data.length / 4);
    });
    assert.ok((await drawn()) > 0.5, "the picture is empty");
    await page.focus(".river-box");
    await page.keyboard.press("Home");
    const value = () => page.getAttribute(".river-box", "aria-valuetext");
    assert.match((await value()) ?? "", /: n1 3,000, n2 3,000, n3 3,000$/);
    for (let step = 0; step < 4; step += 1) await page.keyboard.press("PageDown");
    assert.match((await value()) ?? "", /n3 to n1 25, n3 to n2 25/);
    await page.waitForSelector(".river-read >> text=n3 to n1 25");
    await page.keyboard.press("p");
    await page.waitForSelector("text=Go on");
    await page.click("text=Less");
    assert.equal(await page.evaluate(() => document.querySelector(".river-box")?.clientHeight), 120);
    await page.click("text=Show as table");
    assert.match((await page.textContent(".river-table")) ?? "", /n3 to n1 750, n3 to n2 750/);
    assert.deepEqual(wrong, []);
    await context.close();
  });

  test("the last rollout that the page keeps is shown again", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await openNodes("/nodes", {}, 780);
    await page.waitForSelector(".phases >> text=n1");
    assert.doesNotMatch((await page.textContent(".phases")) ?? "", /n3/);
    await page.click("text=Last rollout");
    await page.waitForSelector(".phases >> text=n3 leaves, 3,000 at 50/s");
    await page.click("text=Go on");
    await page.waitForSelector("text=Last rollout");
    assert.deepEqual(wrong, []);
    await context.close();
  });

  test("partitions are reached by arrow keys, and those that change hands are divided", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await openNodes("/nodes");
    await page.waitForSelector(".cell.divided");
    await page.focus(".cell[tabindex='0']");
    await page.keyboard.press("ArrowRight");
    assert.match((await page.textContent(".partition-words")) ?? "", /^Partition 3, n1, on its way to n2: nothing waits\.$/);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Home");
    assert.match((await page.textContent(".partition-words")) ?? "", /^Partition 2, n3: 640 records wait, the oldest for 1\.2 s\.$/);
    assert.equal(await page.$$eval(".cell[tabindex='0']", (list) => list.length), 1);
    await page.click("text=By number");
    await until(page, () => document.querySelectorAll(".owner").length === 1);
    assert.equal(new URL(page.url()).search, "?partitions=number");
    assert.deepEqual(wrong, []);
    await context.close();
  });

  test("drains are called off and begun, the weight of another node is set through that of the page, and each action can be copied", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await openNodes("/nodes");
    const asked = [];
    await page.route("**/v1/dev/forward", (route) => {
      asked.push(route.request().postDataJSON());
      return route.fulfill({ contentType: "application/json", body: "{}" });
    });
    await page.route("**/v1/drain", (route) => {
      asked.push(`${route.request().method()} /v1/drain`);
      return route.fulfill({ contentType: "application/json", body: "{}" });
    });
    await page.click("tr:has-text('this one') >> text=Call off");
    await until(page, () => document.querySelector(".failed") === null);
    await page.click("tr:has-text('n2') .link >> text=Drain");
    await page.click("dialog[open] .danger >> text=Drain n2");
    await until(page, () => document.querySelector("dialog[open]") === null);
    await page.click("[aria-label='More for n2']");
    await until(page, () => document.activeElement?.textContent === "Weight and share");
    await page.keyboard.press("Escape");
    await until(page, () => document.querySelector(":popover-open") === null);
    await page.click("[aria-label='More for n2']");
    await page.waitForSelector(":popover-open >> text=Weight and share");
    assert.match((await page.textContent(":popover-open")) ?? "", /draining as curl.+calling off as curl.+weight as curl/);
    await page.click("text=Weight and share");
    await page.fill("dialog[open] input >> nth=0", "many");
    assert.equal(await page.isDisabled("dialog[open] >> text=Set"), true);
    await page.fill("dialog[open] input >> nth=0", "0");
    await page.waitForSelector("dialog[open] >> text=n2 gets no new clients");
    await page.fill("dialog[open] input >> nth=0", "50");
    await page.fill("dialog[open] input >> nth=1", "10");
    await page.click("dialog[open] >> text=Set");
    await until(page, () => document.querySelector("dialog[open]") === null);
    assert.deepEqual(asked.slice(0, 2), ["DELETE /v1/drain", { node: "n2", method: "POST", path: "/v1/drain" }]);
    assert.deepEqual(asked.slice(2), [{ node: "n2", method: "POST", path: "/v1/weight", body: { weight: 50, share: 10 } }]);
    assert.deepEqual(wrong, []);
    await context.close();
  });
});
