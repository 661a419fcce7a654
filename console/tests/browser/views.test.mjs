// All views in both themes: no error, no violation of the policy, no sideways scroll, no finding of axe.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { startNode } from "./node.mjs";
import { accessibility, launch, open, say, until } from "./page.mjs";

let node;
let browser;
before(async () => {
  [node, browser] = await Promise.all([startNode(), launch()]);
  const { page, context } = await open(browser, node.url, "/try");
  await page.waitForSelector("text=Connected");
  await say(page, 0, "something to show");
  await context.close();
});
after(async () => {
  await browser?.close();
  await node?.stop();
});

const READY = {
  "/try": ".chat-1 .link-state >> text=Connected", "/try/group": ".chat-2 .link-state >> text=Connected", "/try/room": ".listeners >> text=/^12 in the room/", "/overview": ".event-row", "/messages": ".falls-row", "/events": ".event-row",
  "/errors": ".code", "/nodes": ".cell", "/people": ".person .event-row", "/styleguide": ".guide .falls-row",
};
const WIDTHS = [1920, 1440, 1024, 768, 390, 360];
/** Widths at which axe looks as well: they have the two layouts that differ most. */
const LOOKED_AT = [1440, 360];

/** Parts that reach over the right edge, if the page scrolls sideways. */
function wide() {
  if (document.documentElement.scrollWidth <= innerWidth) return [];
  return [...document.querySelectorAll("body *")].filter((it) => it.getBoundingClientRect().right > innerWidth + 1).map((it) => `${it.tagName} ${it.className}`);
}

/** Tests a view. */
function shown(path) {
  test(`${path} in all widths and both themes`, { timeout: 90_000 }, async () => {
    const { page, context, wrong } = await open(browser, node.url, path, { viewport: { width: WIDTHS[0], height: 800 } });
    await page.waitForSelector(READY[path]);
    const findings = await accessibility(page);
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: 800 });
      assert.deepEqual(await page.evaluate(wide), [], `it scrolls sideways at ${width} px`);
      for (const theme of LOOKED_AT.includes(width) ? ["light", "dark"] : []) assert.deepEqual(await findings(theme), [], `${theme}, ${width} px`);
    }
    assert.deepEqual(wrong, []);
    await context.close();
  });
}

const isTry = (path) => path.startsWith("/try");

describe("the views", { concurrency: 3 }, () => {
  // Their people have the same names: only one page at a time can connect them.
  describe("with people", { concurrency: 1 }, () => Object.keys(READY).filter(isTry).forEach(shown));
  Object.keys(READY).filter((path) => !isTry(path)).forEach(shown);

  test("the keyboard opens views, finds codes and changes the theme", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await open(browser, node.url, "/errors");
    await page.waitForSelector(".code");
    await page.keyboard.press("g");
    await page.keyboard.press("n");
    await page.waitForSelector("h1 >> text=Nodes");
    await page.keyboard.press("Control+k");
    await page.keyboard.type("token_exp");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".code >> text=TOKEN_EXPIRED");
    assert.equal(new URL(page.url()).search, "?code=2002");
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
    const first = await theme();
    await page.keyboard.press("d");
    assert.notEqual(await theme(), first);
    await page.keyboard.press("?");
    await page.waitForSelector("dialog[open] >> text=Keys");
    await page.keyboard.press("Escape");
    await until(page, () => document.querySelector("dialog[open]") === null);
    assert.deepEqual(wrong, []);
    await context.close();
  });

  test("a narrow page opens a message in place of the list, and leads back to it", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await open(browser, node.url, "/messages", { viewport: { width: 768, height: 800 } });
    await page.click(".message-row");
    await page.waitForSelector(".falls-row");
    assert.equal(await page.isVisible(".list"), false);
    assert.equal(await page.evaluate(() => document.activeElement?.className), "back");
    await page.setViewportSize({ width: 360, height: 800 });
    const findings = await accessibility(page);
    assert.deepEqual(await findings("light"), []);
    await page.keyboard.press("Enter");
    await page.waitForSelector(".list");
    assert.match((await page.evaluate(() => document.activeElement?.className)) ?? "", /^message-row/);
    await page.goBack();
    await page.waitForSelector(".falls-row");
    assert.deepEqual(wrong, []);
    await context.close();
  });

  test("the palette and the dialogs in both themes", { timeout: 90_000 }, async () => {
    const { page, context, wrong } = await open(browser, node.url, "/nodes");
    await page.waitForSelector("td >> text=Drain");
    const findings = await accessibility(page);
    const dialogs = [
      ["palette", () => page.keyboard.press("Control+k"), "dialog[open] li[aria-selected=true]"],
      ["keys", () => page.click(".help"), "dialog[open] .keys"],
      ["drain", () => page.click("td >> text=Drain"), "dialog[open] >> text=Keep it"],
    ];
    for (const [name, show, shown] of dialogs) {
      await show();
      await page.waitForSelector(shown);
      for (const theme of ["light", "dark"]) assert.deepEqual(await findings(theme), [], `${name}, ${theme}`);
      await page.keyboard.press("Escape");
      await until(page, () => document.querySelector("dialog[open]") === null);
    }
    assert.deepEqual(wrong, []);
    await context.close();
  });

  test("a drain is asked for in words before it begins", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await open(browser, node.url, "/nodes");
    await page.click("td >> text=Drain");
    assert.match((await page.textContent("dialog[open]")) ?? "", /n1 drains, and its process exits\..+only node/);
    await page.click("dialog[open] >> text=Keep it");
    await until(page, () => document.querySelector("dialog[open]") === null);
    assert.equal((await (await fetch(`${node.url}/readyz`)).json()).state, "ready");
    assert.deepEqual(wrong, []);
    await context.close();
  });

  test("a token is created for a user, and logs in as that user", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await open(browser, node.url, "/people?user=dora");
    await page.click("text=Create a token");
    const token = (await page.textContent(".minted code")) ?? "";
    const answer = await fetch(`http://127.0.0.1:${node.ports.client}/v1/assign?transport=ws`, { headers: { authorization: `Bearer ${token}` } });
    assert.equal(answer.status, 200);
    await page.click("text=Hide it");
    assert.equal(await page.$(".minted"), null);
    assert.deepEqual(wrong, []);
    await context.close();
  });

  test("the page says that the node is gone, and is live again without a load", { timeout: 60_000 }, async () => {
    const own = await startNode();
    const { page, context } = await open(browser, own.url, "/nodes");
    await page.waitForSelector(".foot >> text=Live");
    await page.waitForSelector("td .link:enabled >> text=Drain");
    await own.end();
    await page.waitForSelector(".banner >> text=does not answer", { timeout: 20_000 });
    assert.equal(await page.$("td .link:enabled"), null, "a node that does not answer is asked for nothing, by no key either");
    const again = await startNode({ data: own.data, ports: own.ports });
    await page.waitForSelector(".foot >> text=Live", { timeout: 20_000 });
    assert.equal(await page.$(".banner"), null);
    await page.waitForSelector("td .link:enabled >> text=Drain");
    await context.close();
    await again.stop();
  });
});
