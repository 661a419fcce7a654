// All views in both themes: no error, no violation of the policy, no sideways scroll, no finding of axe.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { startNode } from "./node.mjs";
import { accessibility, launch, open, say, unexpected, until } from "./page.mjs";

/** Pages with people, who have the same names: each has a node of its own, or it would take them over from another page. */
const WITH_PEOPLE = ["/try", "/try/group", "/try/room"];

let node;
let others;
let browser;
before(async () => {
  [node, browser, ...others] = await Promise.all([startNode(), launch(), ...WITH_PEOPLE.map(() => startNode())]);
  const { page, context } = await open(browser, node.url, "/try");
  await page.waitForSelector("text=Connected");
  // Nothing listens there, so the endpoint fails.
  const endpoint = { url: "http://127.0.0.1:1/", types: ["tidegate.*"], from: "oldest" };
  await fetch(`${node.url}/v1/webhooks/crm`, { method: "PUT", headers: { "content-type": "application/json" }, body: JSON.stringify(endpoint) });
  const team = { id: "team", members: ["alice", "bob"], owner: "alice", name: "The team" };
  await fetch(`${node.url}/v1/groups`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(team) });
  await say(page, 0, "something to show");
  await context.close();
});
after(async () => {
  await browser?.close();
  await Promise.all([node, ...(others ?? [])].map((it) => it?.stop()));
});

const READY = {
  "/try": ".chat-1 .link-state >> text=Connected", "/try/group": ".chat-2 .link-state >> text=Connected", "/try/room": ".listeners >> text=/^12 in the room/", "/overview": ".event-row", "/messages": ".falls-row", "/events": ".event-row",
  "/errors": ".code", "/nodes": ".cell", "/connections": ".empty >> text=No client is connected", "/people": ".person .event-row", "/groups": "[aria-label=Members] td >> text=bob", "/rooms": ".empty >> text=No live room has members now", "/webhooks": ".webhook >> text=failing", "/guard": ".lookup", "/styleguide": ".guide .falls-row",
};
const WIDTHS = [1920, 1440, 1024, 768, 390, 360];
/** Widths at which axe looks as well: they have the two layouts that differ most. */
const LOOKED_AT = [1440, 360];

/** Parts that reach over the right edge, if the page scrolls sideways. */
function wide() {
  if (document.documentElement.scrollWidth <= innerWidth) return [];
  return [...document.querySelectorAll("body *")].filter((it) => it.getBoundingClientRect().right > innerWidth + 1).map((it) => `${it.tagName} ${it.className}`);
}

/** Screens on which people and breaks are in sight at once, without a scroll. */
const SMALL = [[360, 740], [390, 844], [414, 896], [768, 900], [768, 1024]];

/** Parts of the try-out page that are not in sight: people and breaks below the deck or the tabs, and notes that are cut. */
function hidden() {
  const box = (it) => it.getBoundingClientRect();
  const [deck, tabs] = [".deck", ".tabs"].map((it) => box(document.querySelector(it)));
  const isPhone = tabs.height > 0;
  const last = isPhone ? ".chat" : ".chat, .listeners, .sentence";
  const under = [...document.querySelectorAll(last)].filter((it) => box(it).bottom > deck.top + 1);
  const off = deck.bottom > (isPhone ? tabs.top : innerHeight) + 1 ? [document.querySelector(".deck")] : [];
  const cut = [...document.querySelectorAll(".tile-note")].filter((it) => it.scrollWidth > it.clientWidth && it.clientWidth > 0);
  return [...under, ...off, ...cut].map((it) => `${it.className} ${it.textContent.slice(0, 24)}`);
}

/** Tests a view. */
function shown(path) {
  test(`${path} in all widths and both themes`, { timeout: 90_000 }, async () => {
    const viewport = { width: WIDTHS[0], height: 800 };
    const { url } = others[WITH_PEOPLE.indexOf(path)] ?? node;
    const { page, context, wrong } = await open(browser, url, path, { viewport });
    await page.waitForSelector(READY[path]);
    const findings = await accessibility(page);
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: 800 });
      assert.deepEqual(await page.evaluate(wide), [], `it scrolls sideways at ${width} px`);
      for (const theme of LOOKED_AT.includes(width) ? ["light", "dark"] : []) assert.deepEqual(await findings(theme), [], `${theme}, ${width} px`);
    }
    for (const [width, height] of WITH_PEOPLE.includes(path) ? [...SMALL, [1024, 768], [1440, 900]] : []) {
      await page.setViewportSize({ width, height });
      assert.deepEqual(await page.evaluate(hidden), [], `${width}x${height}`);
    }
    assert.deepEqual(wrong, []);
    await context.close();
  });
}

describe("the views", { concurrency: 3 }, () => {
  Object.keys(READY).forEach(shown);

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
    await page.click("[aria-label$=' theme']");
    assert.equal(await theme(), first);
    await page.click("[aria-label$=' theme']");
    await page.reload();
    await page.waitForSelector(".code");
    assert.notEqual(await theme(), first, "the choice outlives the page");
    await page.keyboard.press("?");
    await page.waitForSelector("dialog[open] >> text=Keys");
    assert.equal(await page.textContent(".keys dt:nth-of-type(2)"), "g, then t o m e r n c p g w u");
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
      ["keys", () => page.click("[aria-label=Keys]"), "dialog[open] .keys"],
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

  test("the page says that the node is gone, and is live again without a load", { timeout: 60_000 }, async () => {
    const own = await startNode();
    const { page, context, wrong } = await open(browser, own.url, "/nodes");
    await page.waitForSelector(".foot >> text=Live");
    await page.waitForSelector("td .link:enabled >> text=Drain");
    await own.end();
    await page.waitForSelector(".banner >> text=does not answer", { timeout: 20_000 });
    assert.equal(await page.$("td .link:enabled"), null, "a node that does not answer is asked for nothing, by no key either");
    const again = await startNode({ data: own.data, ports: own.ports });
    await page.waitForSelector(".foot >> text=Live", { timeout: 20_000 });
    assert.equal(await page.$(".banner"), null);
    await page.waitForSelector("td .link:enabled >> text=Drain");
    assert.deepEqual(unexpected(wrong), []);
    await context.close();
    await again.stop();
  });
});
