// The try-out page against a real node: TIDEGATE_BIN names its program.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import { startNode } from "./node.mjs";
import { explain, judged, launch, open, say, sentence, unexpected, until } from "./page.mjs";

/** Tests that run at once, each with a node of its own: they wait for timers of the protocol. More lanes load cold contexts. */
const LANES = 4;
const free = [];
const waiting = [];
let nodes = [];
let browser;
before(async () => {
  nodes = await Promise.all(Array.from({ length: LANES }, () => startNode()));
  free.push(...nodes);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await Promise.all(nodes.map((node) => node.stop()));
});

/** Takes a node that no other test uses. */
async function take() {
  return free.pop() ?? new Promise((resolve) => waiting.push(resolve));
}

/** Gives a node back. */
function give(node) {
  const next = waiting.shift();
  if (next) next(node);
  else free.push(node);
}

/** Opens the page, lets everybody connect, and hands over to a test; nothing may have gone wrong at its end. */
function tried(name, path, act, { mayFail = false } = {}) {
  test(name, { timeout: 120_000 }, async () => {
    const node = await take();
    const { page, context, wrong } = await open(browser, node.url, path);
    try {
      await until(page, () => document.querySelectorAll(".link-state .dot").length >= 2 && [...document.querySelectorAll(".link-state")].every((it) => it.textContent.includes("Connected")));
      await act(page, node);
      assert.deepEqual(mayFail ? unexpected(wrong) : wrong, []);
    } catch (error) {
      if (process.env.SHOTS) await page.screenshot({ path: join(process.env.SHOTS, `${name.slice(0, 24)}.png`) });
      throw await explain(page, error);
    } finally {
      await context.close();
      give(node);
    }
  });
}

const press = async (page, key) => {
  await page.evaluate(() => document.activeElement?.blur());
  await page.keyboard.press(key);
};
const texts = (page, index) => page.$$eval(`.chat-${index} .bubble:not(.own) p`, (list) => list.map((it) => it.textContent));

/** Presses Tab until the focus is on a part that matches. */
async function tabTo(page, selector) {
  for (let presses = 0; presses < 80; presses += 1) {
    await page.keyboard.press("Tab");
    if (await page.evaluate((it) => document.activeElement?.matches(it) ?? false, selector)) return;
  }
  throw new Error(`Tab never reaches ${selector}`);
}

/** Saves the recording, and returns what the history checker says about it; without `TIDEGATE_LAB`, that all is well. */
async function checked(page, node, save = () => page.click("text=Save the recording")) {
  const [download] = await Promise.all([page.waitForEvent("download"), save()]);
  const file = join(node.data, "recording.jsonl");
  await download.saveAs(file);
  const lines = (await readFile(file, "utf8")).trim().split("\n").map((line) => JSON.parse(line));
  assert.ok(lines.some((line) => line.send_ok), "the recording has no ack");
  if (!process.env.TIDEGATE_LAB) return "";
  return promisify(execFile)(process.env.TIDEGATE_LAB, ["check", file]).then(() => "", (error) => error.stderr);
}

test("two people are connected within a second of loading the page", { timeout: 60_000 }, async () => {
  const { page, context } = await open(browser, nodes[0].url, "/try");
  const times = [];
  // The best of some loads, because other programs of the machine may take the time of one.
  for (let load = 0; load < 4 && !(Math.min(...times) < 1000); load += 1) {
    await page.reload();
    await until(page, () => performance.getEntriesByName("connected").length === 1);
    times.push(await page.evaluate(() => performance.getEntriesByName("connected")[0].startTime));
  }
  assert.ok(Math.min(...times) < 1000, `connected after ${times.map(Math.round).join(", ")} ms`);
  await context.close();
});

test("a first message arrives within a minute of the start of a new node", { timeout: 90_000 }, async (t) => {
  const began = Date.now();
  const node = await startNode();
  const started = Date.now() - began;
  const { page, context } = await open(browser, node.url, "/try");
  await say(page, 0, "hello");
  await page.waitForSelector(".chat-1 .bubble:not(.own) >> text=hello");
  const delivered = Date.now() - began;
  t.diagnostic(`node ready after ${started} ms, first message delivered after ${delivered} ms`);
  assert.ok(delivered < 60_000);
  await context.close();
  await node.stop();
});

describe("the try-out page", { concurrency: LANES }, () => {
  // Those that take longest begin first.
  tried("a skipped id is given up, and refused when it comes", "/try", async (page) => {
    await press(page, "5");
    assert.match(await sentence(page), /held the two behind it, warned bob after .+, gave it up after .+ refused: ORDER_SKIPPED\. It was never acked, so it does not count as lost\. Nothing lost/);
    await page.waitForSelector(".bubble.refused >> text=refused, came too late");
    await page.waitForSelector(".count .label >> text=Refused");
  });

  tried("a frozen client gets pushes again and is closed as SLOW", "/try", async (page) => {
    await press(page, "2");
    assert.match(await sentence(page), /never acked\. The broker sent it .+ more times?, then closed the link as SLOW after .+ Nothing lost/);
  });

  tried("the page is played by keyboard alone", "/try", async (page) => {
    await page.keyboard.type("by keyboard");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".chat-1 .bubble >> text=by keyboard");
    await tabTo(page, ".chat-1 .composer input");
    await page.keyboard.type("answered by keyboard");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".chat-0 .bubble >> text=answered by keyboard");
    await tabTo(page, ".deck .segmented [aria-pressed=false]");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".deck .segmented [aria-pressed=true] >> text=alice");
    await page.keyboard.press("4");
    assert.match(await sentence(page), /^Alice’s client sent .+ marked as a duplicate, shown to bob once\./);
    await tabTo(page, ".wire-row");
    const row = () => page.evaluate(() => Number(document.activeElement?.dataset.row));
    const last = await row();
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("ArrowUp");
    assert.ok((await row()) < last, "the arrow key did not move");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".wire-row[aria-expanded=true]");
    assert.match((await page.textContent(".raw code")) ?? "", /^\{/);
    await page.keyboard.press("Enter");
    await until(page, () => document.querySelector(".raw") === null);
  });

  tried("each break is begun and ended, the record is saved and begun again, and the mode is chosen by keyboard", "/try", async (page, node) => {
    for (const name of ["cut", "freeze", "offline", "skip", "drain"]) {
      await tabTo(page, `.tile[data-break=${name}]`);
      await page.keyboard.press("Enter");
      await page.waitForSelector(`.tile[data-break=${name}][aria-pressed=true]`);
      // The client learns of a cut by its socket; before that the end of the break would be no end of anything.
      if (name === "cut" || name === "offline") await page.waitForSelector(".chat-1 .link-state .dot.red, .chat-1 .link-state .dot.off");
      await page.keyboard.press("Enter");
      await page.waitForSelector(`.tile[data-break=${name}][aria-pressed=false]`);
      await until(page, () => document.querySelector(".chat-1 .link-state").textContent.match(/Connected|Back/) !== null);
    }
    for (const [name, shown] of [["twice", ".mark >> text=/You sent \\d+ again/"], ["flood", ".chat-0 .bubble >> text=flood 300 of 300"]]) {
      await tabTo(page, `.tile[data-break=${name}]`);
      await page.keyboard.press("Space");
      await page.waitForSelector(shown);
    }
    assert.deepEqual(await judged(page), ["0", "0", "0"]);
    await tabTo(page, ".record .link:first-of-type");
    assert.equal(await checked(page, node, () => page.keyboard.press("Enter")), "");
    await tabTo(page, ".record .link:last-of-type");
    await page.keyboard.press("Enter");
    await until(page, () => document.querySelectorAll(".bubble").length === 0);
    await tabTo(page, ".modes a[href='/try/room']");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".modes a[aria-current=page] >> text=Live room");
    await page.waitForSelector(".listeners");
  });

  tried("a person who was offline fetches what was kept; pressing again ends it", "/try", async (page) => {
    await press(page, "3");
    await page.waitForSelector(".chat-1 >> text=Offline");
    await say(page, 0, "for later");
    const marks = () => page.$$eval(".judged", (list) => list.map((it) => [it.dataset.checked, it.querySelector("svg") !== null, it.textContent.includes("so far")]));
    // Longer than the page waits for news before it judges.
    await page.waitForTimeout(1000);
    assert.deepEqual(await marks(), Array(3).fill(["false", false, true]), "bob is away");
    await page.waitForSelector(".count >> text=/waits? for bob/");
    await press(page, "3");
    assert.match(await sentence(page), /^Bob was away for .+ fetched .+ in order\. Nothing lost/);
    assert.deepEqual(await judged(page), ["0", "0", "0"]);
    assert.deepEqual(await marks(), Array(3).fill(["true", true, false]));
  });

  tried("a group of three is the same one at the next load, and a new one after a start over", "/try/group", async (page, node) => {
    const seqs = [];
    const asked = [];
    await page.route("**/v1/groups", (route) => (asked.push(route.request().postDataJSON().id), route.continue()));
    for (const begin of [() => {}, () => page.reload(), () => page.click(".record >> text=start over")]) {
      await begin();
      await until(page, () => document.querySelectorAll(".bubble").length === 0 && [...document.querySelectorAll(".link-state")].filter((it) => it.textContent.includes("Connected")).length === 3);
      await say(page, 0, "to both");
      for (const index of [1, 2]) await page.waitForSelector(`.chat-${index} .bubble >> text=to both`);
      assert.deepEqual(await judged(page), ["0", "0", "0"]);
      seqs.push(Number(await page.textContent(".chat-0 .own .num")));
      // The recording of a group that existed before names its members.
      if (seqs.length === 2) assert.equal(await checked(page, node), "");
    }
    assert.equal(asked[0], `try-${new Date().toISOString().slice(0, 10)}`);
    assert.notEqual(asked.at(-1), asked[0]);
    assert.equal(seqs[1], seqs[0] + 1);
    assert.equal(seqs[2], 2, "the creation of a group is its first entry");
  });

  tried("a live room reaches twelve listeners, and keeps nothing for those who are away", "/try/room", async (page) => {
    await page.waitForSelector(".listeners >> text=/^12 in the room/");
    await say(page, 0, "to the room");
    await page.waitForSelector(".chat-1 .bubble >> text=to the room");
    await page.waitForSelector("[data-received='12'] >> text=newest: 12 of 12");
    assert.deepEqual(await judged(page), ["0", "0", "0"]);
    assert.equal(await page.textContent(".count:nth-child(3) .figure"), "13");
    await page.waitForSelector(".listeners >> text=Lossy: dropped frames are counted and announced. None so far.");
    await press(page, "1");
    assert.match(await sentence(page), /missed two messages.+Nothing was dropped in silence, doubled or out of order\.$/);
  });

  tried("two people chat, and the counter ends checked at zero", "/try", async (page) => {
    assert.equal(await page.evaluate(() => document.getSelection()?.toString() ?? ""), "hello");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".chat-1 .bubble >> text=hello");
    await say(page, 1, "hey <b>alice</b>");
    await page.waitForSelector(".chat-0 .bubble >> text=hey <b>alice</b>");
    assert.deepEqual(await judged(page), ["0", "0", "0"]);
    await page.waitForSelector(".chat-0 .ticks.read");
    await page.waitForSelector(".arrow.synced >> text=/synced in [0-9.]+ m?s/");
    const moving = () => page.$$eval(".bubble", (list) => list.map((it) => getComputedStyle(it).animationName));
    assert.deepEqual(new Set(await moving()), new Set(["none"]), "the test asks for reduced motion");
    await page.emulateMedia({ reducedMotion: "no-preference" });
    assert.deepEqual(new Set(await moving()), new Set(["appear"]));
    const ran = page.evaluate(() => new Promise((resolve) => document.addEventListener("animationend", (event) => resolve(event.animationName), { once: true })));
    await say(page, 0, "moves in");
    assert.equal(await ran, "appear");
  });

  tried("the page names its promise once both are connected", "/try", async (page) => {
    assert.match((await page.textContent(".sentence p")) ?? "", /^Alice and bob are connected to n1\. The promise: once a message is acked it is on disk/);
  });

  tried("a person logs in again with the token that it has", "/try", async (page) => {
    await page.route("**/v1/dev/token", (route) => route.abort());
    await press(page, "1");
    assert.match(await sentence(page), /came back.+Nothing lost/);
  }, { mayFail: true });

  for (const path of ["/try", "/try/group", "/try/room"]) {
    tried(`a recording of ${path} is judged clean by the history checker`, path, async (page, node) => {
      await say(page, 0, "one");
      await say(page, 1, "two");
      await page.waitForSelector(".chat-0 .bubble >> text=two");
      await press(page, "1");
      await until(page, () => document.querySelector(".sentence p[data-over=true]") !== null);
      await judged(page);
      assert.equal(await checked(page, node), "");
    });
  }

  tried("a cut heals, and the sentence says what was fetched", "/try", async (page) => {
    await say(page, 0, "before the cut");
    await press(page, "1");
    await page.waitForSelector(".band.gone");
    await say(page, 0, "during the cut");
    await page.waitForSelector(".mark >> text=/waits? on disk/");
    assert.match(await sentence(page), /^Bob’s link was cut for [0-9.]+ s\. Alice noticed nothing: .+ on disk and acked within .+ fetched .+\. Nothing lost, doubled or out of order\.$/);
    assert.deepEqual(await judged(page), ["0", "0", "0"]);
    const got = await texts(page, 1);
    assert.equal(got.filter((it) => it === "during the cut").length, 1);
    await page.waitForSelector(".remark.red >> text=/fetched/");
  });

  tried("the same message sent twice is the same message", "/try", async (page) => {
    await say(page, 1, "only once");
    await press(page, "4");
    assert.match(await sentence(page), /It is the same message: same number \d+, marked as a duplicate, shown to alice once\. Nothing lost/);
    assert.equal((await texts(page, 0)).filter((it) => it === "only once").length, 1);
  });

  tried("a flood arrives whole and in order", "/try", async (page) => {
    await press(page, "6");
    assert.match(await sentence(page), /300 .*Alice saw all of them\. Nothing lost/);
  });

  tried("a drain of the only node ends at the notice", "/try", async (page) => {
    await press(page, "7");
    assert.match(await sentence(page), /^n1 asked bob to leave within .+ Bob (left, and came back after|has a new link to it, and was never without one) ?.*\. The drain stopped after this request: n1 goes on\. .*Nothing lost/);
    await page.waitForSelector(".tile.blocked[data-break=kill] >> text=only in a cluster");
  });

  tried("a second tab takes the people over, and the first takes them back", "/try", async (page, node) => {
    const other = await open(browser, node.url, "/try");
    await page.waitForSelector(".sentence p >> text=/^Another tab took over alice and bob\\./");
    assert.equal((await page.$$(".tile.blocked")).length, 8);
    assert.equal((await page.$$(".composer button:disabled")).length, 2);
    assert.deepEqual(unexpected(other.wrong), []);
    await other.context.close();
    await page.click(".sentence >> text=Take back");
    await page.waitForSelector(".sentence p >> text=/^Alice and bob are connected/");
  });

  tried("a kick from the console ends the client with its reason, and a revocation refuses its token", "/try", async (page, node) => {
    const { page: admin, context, wrong } = await open(browser, node.url, "/connections");
    await admin.fill("[data-filter]", "bob");
    await until(admin, () => document.querySelectorAll(".connections tbody tr").length === 1);
    await admin.click("[aria-label='Kick bob’s phone']");
    await until(admin, () => document.activeElement?.matches("dialog .asked input"));
    await admin.keyboard.type("left the company");
    await admin.keyboard.press("Enter");
    await admin.waitForSelector(".outcome >> text=One connection was closed.");
    await admin.waitForSelector(".empty >> text=No connection matches.");
    await page.waitForSelector(".chat-1 .link-state >> text=Closed: KICKED");
    await page.waitForSelector(".chat-1 .remark >> text=Closed by the node: KICKED, “left the company”");
    await page.waitForSelector(".chat-0 .link-state >> text=Connected");
    await admin.goto(`${node.url}/people?user=alice`);
    await admin.waitForSelector(".connections td >> text=phone");
    await admin.click("text=Revoke tokens");
    await admin.click("dialog .danger");
    await admin.waitForSelector(".outcome >> text=Revoked. One connection was closed.");
    await admin.waitForSelector(".person li >> text=All tokens, issued before");
    // The page gets a token that was issued later.
    await page.waitForSelector(".wire >> text=/TOKEN_REVOKED/");
    await page.waitForSelector(".chat-0 .link-state >> text=Connected");
    assert.deepEqual(wrong, []);
    await context.close();
  });

  tried("a planted fault turns Lost red and names the rule", "/try?plant=2", async (page, node) => {
    await page.waitForSelector(".sentence >> text=/A fault was planted: this page hides message 2 from bob/");
    await say(page, 0, "arrives");
    await say(page, 0, "is hidden");
    await page.waitForSelector(".judged.broken[data-cell=lost] code >> text=never-got", { timeout: 20_000 });
    assert.match((await page.textContent(".sentence p")) ?? "", /^A promise is broken: bob never got .+ The rule is never-got\. The fault was planted/);
    await say(page, 0, "comes after");
    await page.waitForSelector(".judged.broken[data-cell=lost] code >> text=silent-skip");
    assert.equal(await page.textContent("[data-cell=lost] .figure"), "1", "one message is lost, by two rules");
    if (process.env.TIDEGATE_LAB) assert.match(await checked(page, node), /never-got/);
  });

  tried("a planted fault in a live room is a message that was dropped in silence", "/try/room?plant=1", async (page) => {
    await page.waitForSelector(".listeners >> text=/^12 in the room/");
    await say(page, 0, "is hidden");
    await page.waitForSelector(".judged.broken[data-cell=lost] code >> text=shed-untold");
    assert.match((await page.textContent(".sentence p")) ?? "", /^A promise is broken: bob missed 1 of the room, and 0 were announced\. The rule is shed-untold\./);
  });

  test("a node with a limit refuses a part of a flood for a time, and the sentence says so", { timeout: 60_000 }, async () => {
    const own = await startNode({ env: { TIDEGATE__LIMITS__SENDS_PER_SECOND: "50" } });
    const { page, context, wrong } = await open(browser, own.url, "/try");
    await page.waitForSelector(".chat-1 .link-state >> text=Connected");
    await press(page, "6");
    assert.match(await sentence(page), /of 300 were taken at once\. The rest was refused for now: RATE_LIMITED, to be sent again after .+ It was, and was taken as well\. Alice saw all of them\. Nothing lost/);
    assert.deepEqual(wrong, []);
    await context.close();
    await own.stop();
  });

  test("a killed node loses nothing that was acked, and takes what was written meanwhile", { timeout: 60_000 }, async () => {
    const own = await startNode();
    const { page, context, wrong } = await open(browser, own.url, "/try");
    await page.waitForSelector(".chat-1 .link-state >> text=Connected");
    await say(page, 0, "before the kill");
    await own.end();
    await page.waitForSelector(".chat-0 .composer.waiting");
    await page.fill(".chat-0 .composer input", "while it is dead");
    await page.press(".chat-0 .composer input", "Enter");
    await page.waitForSelector(".mark >> text=alice’s link ended");
    const again = await startNode({ data: own.data, ports: own.ports });
    await page.waitForSelector(".chat-1 .bubble >> text=while it is dead", { timeout: 30_000 });
    assert.deepEqual(await judged(page), ["0", "0", "0"]);
    assert.deepEqual(unexpected(wrong), []);
    await context.close();
    await again.stop();
  });
});
