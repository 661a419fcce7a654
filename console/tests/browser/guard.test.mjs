// The guard's page, by made-up answers, and what a flood does to a real node.
import assert from "node:assert/strict";
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { guarding } from "./guarding.mjs";
import { startNode } from "./node.mjs";
import { accessibility, explain, launch, open, stated as statedPage, unexpected, until } from "./page.mjs";

let node;
let browser;
before(async () => {
  const data = await mkdtemp(join(tmpdir(), "tidegate-console-"));
  // A flood of Try it has 300 messages: more than the threshold of a storm, and more than this rule admits.
  await writeFile(join(data, "limits.toml"), '[[rule]]\nid = "user-1m"\nlevel = "user"\ncalls = ["send"]\nwindow = "1m"\nlimit = 150\n');
  [node, browser] = await Promise.all([startNode({ data, env: { TIDEGATE__LIMITS__RULES_FILE: join(data, "limits.toml") } }), launch()]);
});
after(async () => {
  await browser?.close();
  await node?.stop();
});

/** A test of a page whose requests are changed first. */
const stated = (name, path, options, act) => statedPage(() => ({ browser, node }), name, path, (page) => guarding(page, options), act);

/** Bans a user from what is known of them, and lifts the ban. */
async function banned(page, user) {
  await page.selectOption(".lookup select", "user");
  await page.fill(".lookup input", user);
  await page.press(".lookup input", "Enter");
  await page.click(".lookup >> text=Ban it");
  await page.fill(`${dialog} .asked input`, "flooded");
  await page.press(`${dialog} .asked input`, "Enter");
  await page.waitForSelector(`.outcome >> text=The user ${user} is banned.`);
  await page.waitForSelector(".lookup >> text=/^It is banned until .+: flooded/");
  await page.click(`[aria-label='Lift user:${user}']`);
  await page.click(`${dialog} .danger`);
  await page.waitForSelector(`.outcome >> text=The user ${user} is no longer banned.`);
  await page.waitForSelector(".lookup >> text=It is not banned.");
}

const dialog = "dialog[open]";
const section = (name) => `section[aria-label='${name}']`;

describe("the guard", { concurrency: 3 }, () => {
  stated("storms, limits, bans and blocked chains are shown in all widths", "/guard?key=user:mallory", {}, async (page) => {
    await page.waitForSelector(".first >> text=Six groups have message storms. 318 requests were refused by limits in the last minute.");
    await page.waitForSelector(".storm .flag >> text=the 101st");
    assert.match((await page.getAttribute(".storm .strip", "aria-label")) ?? "", /^Messages in each second from .+, at most 8$/);
    assert.match((await page.textContent(".storm")) ?? "", /Slow mode: one message per user in 5 s.*412 of 100 in 1 min.*at its peak 441/);
    await page.waitForSelector(`${section("Message storms")} >> text=/5 storms with the most messages of 7. n3 did not answer/`);
    assert.deepEqual(await page.$$eval(".rules tbody tr:first-child td", (list) => list.map((it) => it.textContent)).then((it) => it.slice(3)), ["2,000 in 1 s", "98,112", "4,120 4 %", "212", "930", "waits up to 2 s"]);
    await page.waitForSelector(".rules >> text=The rule late of the API is not in force: max_wait: between 1ms and 2500 ms.");
    await page.waitForSelector(".state >> text=The limit now: base 10,000 x load 0.8 x history 1.1 = 8,800");
    await page.waitForSelector(".lookup >> text=It is banned without an end: flooded g:release");
    await page.waitForSelector(`${section("Blocked chains")} >> text=has a chain that waits for d-18`);
    assert.match((await page.textContent(section("Breakers"))) ?? "", /The load level is 2 on n1\.Redis openOn n1: logins wait/);
    assert.equal(await page.$eval(".guard-figures", (it) => it.textContent), "Storms7Refused, 1 min318Chains blocked, 15 min3Bans3 or more");
    const findings = await accessibility(page);
    for (const width of [1440, 1024, 360]) {
      await page.setViewportSize({ width, height: 800 });
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, `it scrolls sideways at ${width} px`);
      const theme = { 1440: "light", 360: "dark" }[width];
      if (theme) assert.deepEqual(await findings(theme), [], `${theme}, ${width} px`);
    }
  });

  const asks = [];
  stated("a subject is banned and a ban is lifted, each after a question", "/guard", { asks }, async (page) => {
    await page.waitForSelector(`${section("Bans")} .entry >> nth=2`);
    await page.click(".busiest >> text=user:mallory");
    await page.waitForSelector(".lookup .state >> text=user-1s");
    await page.click(`${section("Bans")} .row .button`);
    await page.selectOption(`${dialog} .pair select`, "network");
    await page.fill(`${dialog} .pair input`, "203.0.113.0/24");
    assert.ok(await page.isDisabled(`${dialog} .danger`), "a ban has a reason");
    await page.fill(`${dialog} .asked input`, "31 bad tokens");
    await page.selectOption(`${dialog} .asked select`, { label: "1 hour" });
    await page.waitForSelector(`${dialog} >> text=That concerns everybody behind these addresses.`);
    const findings = await accessibility(page);
    assert.deepEqual(await findings("light"), []);
    await page.press(`${dialog} .asked input`, "Enter");
    await page.waitForSelector(".outcome >> text=203.0.113.0/24 is banned. n3 follows within two seconds.");
    await page.click("[aria-label='Lift user:mallory']");
    await page.waitForSelector(`${dialog} >> text=Lift the ban of the user mallory?`);
    await page.click(`${dialog} .danger`);
    await page.waitForSelector(".outcome >> text=The user mallory is no longer banned.");
    await until(page, () => document.querySelectorAll("section[aria-label='Bans'] .entry").length === 3);
    await page.click("[aria-label='Remove network:192.0.2.0/24']");
    await page.click(`${dialog} .danger`);
    await page.waitForSelector(".outcome >> text=192.0.2.0/24 is no longer on the allow-list.");
    assert.deepEqual(asks, [
      ["POST", "/v1/bans", { subject: "network:203.0.113.0/24", reason: "31 bad tokens", ttlMs: 3_600_000 }],
      ["DELETE", "/v1/bans/user%3Amallory", null],
      ["DELETE", "/v1/allow/192.0.2.0%2F24", null],
    ]);
  });

  const fewer = ["/v1/limits", "/v1/rules", "/v1/rules/{rule}", "/v1/bans", "/v1/bans/{subject}", "/v1/allow", "/v1/allow/{network}", "/v1/suspensions", "/v1/suspensions/{subject}", "/v1/evidence", "/v1/subjects/{subject}"];
  stated("what a node does not have has no part in its page", "/guard?key=user:mallory", { without: fewer }, async (page) => {
    await page.waitForSelector(".lookup .state");
    await page.waitForSelector(section("Message storms"));
    for (const name of ["Limits in use", "Bans", "Suspensions", "Evidence", "Never banned"]) assert.equal(await page.$(section(name)), null, name);
    assert.equal(await page.$("text=It is banned"), null);
    assert.equal(await page.$eval(".guard-figures", (it) => it.textContent?.includes("Bans")), false);
  });

  stated("a console that only reads bans nobody, and an error stays in its part", "/guard", { more: { console: "read" } }, async (page) => {
    await page.waitForSelector(".note >> text=This console is read-only, so that it bans nobody");
    await page.waitForSelector(`${section("Bans")} .entry`);
    assert.equal(await page.$(`${section("Bans")} button:not(.link), .entry button`), null);
    await page.route("**/v1/limits", (route) => route.fulfill({ status: 503, json: { code: 4002, name: "BUSY", message: "Too much to do.", cure: "Wait.", temporary: true } }));
    await page.waitForSelector(`${section("Limits in use")} .failed >> text=4002 BUSY`);
    assert.ok(await page.$(".rules tbody tr"), "what was read stays");
    assert.ok(await page.$(".storm"), "so do the other parts");
  });

  test("a flood from Try it is seen on the page", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await open(browser, node.url, "/try/group");
    try {
      await page.waitForSelector(".chat-2 .link-state >> text=Connected");
      await page.click("[data-break=flood]");
      await page.click(".nav >> text=Guard");
      await page.waitForSelector(".first >> text=/^g:.+ has a message storm\\. .+ refused by limits in the last minute\\.$/");
      await until(page, () => document.querySelector(".storm-count b")?.textContent === "150");
      await page.waitForSelector(".storm .flag >> text=the 101st");
      await page.fill(".lookup input", "bob");
      await page.press(".lookup input", "Enter");
      await page.waitForSelector(".state >> text=/^150 of 150 used in the last 1 min\\. The next request is admitted in \\d/");
      const { paths } = await fetch(`${node.url}/v1/openapi.json`).then((it) => it.json());
      if (paths["/v1/limits"]) await page.waitForSelector(".rules tr:has-text('user-1m') td.amber");
      const group = await page.textContent(".storm b");
      await page.selectOption(".lookup select", "conversation");
      await page.fill(".lookup input", group);
      await page.press(".lookup input", "Enter");
      await page.waitForSelector(".lookup >> text=150 messages in the last 1 min; more than 100 are a message storm. It has one.");
      if (paths["/v1/bans"]) await banned(page, "bob");
      assert.deepEqual(unexpected(wrong), []);
    } catch (error) {
      throw await explain(page, error);
    } finally {
      await context.close();
    }
  });
});
