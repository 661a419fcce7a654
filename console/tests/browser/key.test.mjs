// The console of a node whose admin port asks for keys: signing in, what an operator does to connections and users, and who did it.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import { openApp, startApp } from "./app.mjs";
import { startNode } from "./node.mjs";
import { accessibility, launch, open, unexpected, until } from "./page.mjs";

const run = promisify(execFile);
let folder;
let keys;
let node;
let app;
let browser;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), "tidegate-keys-"));
  const file = join(folder, "admin.keys");
  const key = async (name, scope) => {
    await run(process.env.TIDEGATE_BIN, ["key", "add", name, "--scope", scope, "--file", file, "--out", join(folder, name)]);
    return (await readFile(join(folder, name), "utf8")).trim();
  };
  keys = { ops: await key("ops", "users"), viewer: await key("viewer", "read") };
  [node, app, browser] = await Promise.all([startNode({ env: { TIDEGATE__ADMIN__KEYS_FILE: file } }), startApp(), launch()]);
});
after(async () => {
  await browser?.close();
  app?.stop();
  await node?.stop();
  await rm(folder, { recursive: true, force: true });
});

/** Opens a view, and signs in with a key. */
async function signIn(key, path) {
  const it = await open(browser, node.url, path);
  await it.page.fill(".keyform input", key);
  await it.page.press(".keyform input", "Enter");
  await until(it.page, () => document.querySelector(".keyform") === null);
  return it;
}

/** Goes to a view without a load, which would forget the key. */
async function go(page, path) {
  await page.evaluate((to) => {
    const link = document.body.appendChild(Object.assign(document.createElement("a"), { href: to }));
    link.click();
    link.remove();
  }, path);
}

/** Creates a token for a user. */
async function minted(page, user) {
  await go(page, `/people?user=${user}`);
  await page.waitForSelector(`.person h2 >> text=${user}`);
  await page.click("text=Create a token");
  const token = await page.textContent(".minted code");
  await page.click("text=Hide it");
  return token;
}

/** Waits until the application shows a state, and the reason of its last end. */
const shows = (page, state, error) => until(page, ([name, words]) => document.getElementById("state").textContent === name && document.getElementById("error").textContent.includes(words), [state, error]);

/** Everything that the browser keeps for the origin of a page. */
const kept = (page) => page.evaluate(async () => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, await indexedDB.databases(), await caches.keys(), history.state, location.href]));

describe("a node with keys", { concurrency: 2 }, () => {
  test("an operator signs in, ends a connection, revokes and blocks, and the audit says who did it", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await signIn(keys.ops, "/people?user=bob");
    const phones = await browser.newContext();
    const bob = await openApp(phones, app, node, await minted(page, "bob"), { device: "phone" });
    const eve = await openApp(phones, app, node, await minted(page, "eve"), { device: "tablet" });
    for (const it of [bob, eve]) await shows(it, "live", "");

    await go(page, "/connections");
    await until(page, () => document.querySelectorAll(".connections tbody tr").length === 2);
    await page.fill("[data-filter]", "bob");
    await until(page, () => document.querySelectorAll(".connections tbody tr").length === 1);
    await page.click("[aria-label='Kick bob’s phone']");
    await page.fill("dialog .asked input", "left the company");
    await page.click("dialog .danger");
    await page.waitForSelector(".outcome >> text=One connection was closed.");
    await shows(bob, "closed", "3501 KICKED: left the company");
    await shows(eve, "live", "");
    await page.waitForSelector(".empty >> text=No connection matches.");

    // The client connects again because its application asks for that, and its token is good until it is revoked.
    await bob.evaluate(() => window.client.online());
    await shows(bob, "live", "");
    await go(page, "/people?user=bob");
    await page.waitForSelector(".connections td >> text=phone");
    await page.click(".blocks summary");
    await page.fill(".blocks input", "eve");
    await page.press(".blocks input", "Enter");
    await page.waitForSelector(".blocks >> text=bob blocks eve.");
    assert.deepEqual(await eve.evaluate(() => window.client.send("bob", "hi").catch((error) => [error.code, error.name])), [2003, "FORBIDDEN"]);
    await page.click("[aria-label='Unblock eve']");
    await page.waitForSelector(".blocks >> text=bob no longer blocks eve.");
    assert.equal(await eve.evaluate(async () => (await window.client.send("bob", "hello again")).seq), 1);
    await bob.waitForSelector("li >> text=eve: hello again");

    await page.click("text=Revoke tokens");
    await page.click("dialog .danger");
    await page.waitForSelector(".outcome >> text=Revoked. One connection was closed.");
    await page.waitForSelector(".person li >> text=All tokens, issued before");
    await shows(bob, "closed", "2010 TOKEN_REVOKED");
    // A token that is issued in the second of the revocation counts as issued before it.
    await bob.evaluate(() => new Promise((done) => setTimeout(done, 1000 - (Date.now() % 1000))));
    const fresh = await minted(page, "bob");
    await bob.evaluate((token) => {
      window.token = token;
      window.client.online();
    }, fresh);
    await shows(bob, "live", "");

    await go(page, "/events?type=audit");
    for (const line of [/ops sent DELETE \/v1\/connections\/\{id\}.*: 200/, /ops sent PUT \/v1\/users\/\{user\}\/blocks\/\{other\} \(other eve, user bob\): 200/, /ops sent DELETE \/v1\/users\/\{user\}\/blocks\/\{other\}.*: 200/, /ops sent POST \/v1\/users\/\{user\}\/revoke .*user bob.*: 200/]) {
      await until(page, (it) => [...document.querySelectorAll(".event-line")].some((one) => new RegExp(it).test(one.textContent)), line.source);
    }
    assert.deepEqual(unexpected(wrong), []);
    for (const it of [phones, context]) await it.close();
  });

  test("the page keeps a key in memory only, and a key without the scope is told which one it lacks", { timeout: 60_000 }, async () => {
    const { page, context, wrong } = await open(browser, node.url, "/people?user=carol");
    await page.waitForSelector(".keyform");
    const findings = await accessibility(page);
    await page.fill(".keyform input", `${keys.viewer.slice(0, -1)}!`);
    await page.press(".keyform input", "Enter");
    await page.waitForSelector(".keyform >> text=The node refused this key.");
    await page.setViewportSize({ width: 360, height: 800 });
    for (const theme of ["light", "dark"]) assert.deepEqual(await findings(theme), [], theme);
    await page.fill(".keyform input", keys.viewer);
    await page.press(".keyform input", "Enter");
    await page.waitForSelector(".person >> text=carol");
    const before = await kept(page);
    for (const part of keys.viewer.split("_").filter((it) => it.length > 5)) assert.ok(!before.includes(part), before);
    assert.equal((await context.cookies()).length, 0);

    await page.click("text=Create a token");
    await page.waitForSelector(".failed >> text=/2008 SCOPE_MISSING .*users/");
    await page.click("text=Revoke tokens");
    await page.click("dialog .danger");
    await page.waitForSelector("dialog .failed >> text=/2008 SCOPE_MISSING .*users/");
    await page.keyboard.press("Escape");

    await page.reload();
    await page.waitForSelector(".keyform");
    assert.equal(await page.inputValue(".keyform input"), "");
    assert.deepEqual(unexpected(wrong), []);
    await context.close();
  });
});
