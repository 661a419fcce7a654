// The try-out page against a real node: TIDEGATE_BIN names its program.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import { startNode } from "./node.mjs";
import { judged, launch, open, say, sentence, until } from "./page.mjs";

/** Tests that run at once, each with a node of its own: most of their time they wait for a timer of the protocol. */
const LANES = 5;
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
    const { page, context, wrong } = await open(browser, node.url, path, { acceptDownloads: true });
    try {
      await until(page, () => document.querySelectorAll(".link-state .dot").length >= 2 && [...document.querySelectorAll(".link-state")].every((it) => it.textContent.includes("Connected")));
      await act(page, node);
      if (!mayFail) assert.deepEqual(wrong, []);
    } catch (error) {
      if (process.env.SHOTS) await page.screenshot({ path: join(process.env.SHOTS, `${name.slice(0, 24)}.png`) });
      throw error;
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
async function checked(page, node) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("text=Save the recording")]);
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

describe("the try-out page", { concurrency: LANES }, () => {
  tried("two people chat, and the counter ends checked at zero", "/try", async (page) => {
    assert.equal(await page.evaluate(() => document.getSelection()?.toString() ?? ""), "hello");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".chat-1 .bubble >> text=hello");
    await say(page, 1, "hey <b>alice</b>");
    await page.waitForSelector(".chat-0 .bubble >> text=hey <b>alice</b>");
    assert.deepEqual(await judged(page), ["0", "0", "0"]);
    await page.waitForSelector(".chat-0 .ticks.read");
    await page.waitForSelector(".arrow.synced >> text=/synced in [0-9.]+ m?s/");
  });

  tried("the page names its promise once both are connected", "/try", async (page) => {
    assert.match((await page.textContent(".sentence p")) ?? "", /^Alice and bob are connected to n1\. The promise: once a message is acked it is on disk/);
  });

  tried("the page is played by keyboard alone", "/try", async (page) => {
    await page.keyboard.type("by keyboard");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".chat-1 .bubble >> text=by keyboard");
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

  tried("a frozen client gets pushes again and is closed as SLOW", "/try", async (page) => {
    await press(page, "2");
    assert.match(await sentence(page), /never acked\. The broker sent it .+ more times?, then closed the link as SLOW after .+ Nothing lost/);
  });

  tried("a skipped id is given up, and refused when it comes", "/try", async (page) => {
    await press(page, "5");
    assert.match(await sentence(page), /held the two behind it, warned bob after .+, gave it up after .+ refused: ORDER_SKIPPED\. It was never acked, so it does not count as lost\. Nothing lost/);
    await page.waitForSelector(".bubble.refused >> text=refused, came too late");
    await page.waitForSelector(".count .label >> text=Refused");
  });

  tried("a person who was offline fetches what was kept; pressing again ends it", "/try", async (page) => {
    await press(page, "3");
    await page.waitForSelector(".chat-1 >> text=Offline");
    await say(page, 0, "for later");
    await press(page, "3");
    assert.match(await sentence(page), /^Bob was away for .+ fetched .+ in order\. Nothing lost/);
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

  tried("a group of three", "/try/group", async (page) => {
    await say(page, 0, "to both");
    for (const index of [1, 2]) await page.waitForSelector(`.chat-${index} .bubble >> text=to both`);
    assert.deepEqual(await judged(page), ["0", "0", "0"]);
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

  tried("a second tab takes the people over, and the first takes them back", "/try", async (page, node) => {
    const other = await open(browser, node.url, "/try");
    await page.waitForSelector(".sentence p >> text=/^Another tab took over alice and bob\\./");
    assert.equal((await page.$$(".tile.blocked")).length, 8);
    assert.equal((await page.$$(".composer button:disabled")).length, 2);
    await other.context.close();
    await page.click(".sentence >> text=Take back");
    await page.waitForSelector(".sentence p >> text=/^Alice and bob are connected/");
  });

  tried("the breaks are in sight on small screens", "/try", async (page) => {
    for (const [width, height] of [[390, 844], [360, 740], [320, 640], [768, 1024], [768, 900]]) {
      await page.setViewportSize({ width, height });
      const seen = await page.evaluate(() => {
        const [tile, tabs] = [".tile", ".tabs"].map((it) => document.querySelector(it).getBoundingClientRect());
        return { isInSight: tile.top > 0 && tile.bottom <= (tabs.height > 0 ? tabs.top : innerHeight), wide: document.documentElement.scrollWidth - innerWidth };
      });
      assert.deepEqual(seen, { isInSight: true, wide: 0 }, `${width}x${height}`);
    }
  });

  tried("a planted fault turns Lost red and names the rule", "/try?plant=2", async (page, node) => {
    await page.waitForSelector(".sentence >> text=/A fault was planted: this page hides message 2 from bob/");
    await say(page, 0, "arrives");
    await say(page, 0, "is hidden");
    await page.waitForSelector(".judged.broken[data-cell=lost] code >> text=never-got", { timeout: 20_000 });
    assert.match((await page.textContent(".sentence p")) ?? "", /^A promise is broken: bob never got .+ The rule is never-got\. The fault was planted/);
    if (process.env.TIDEGATE_LAB) assert.match(await checked(page, node), /never-got/);
  });

  tried("a planted fault in a live room is a message that was dropped in silence", "/try/room?plant=1", async (page) => {
    await page.waitForSelector(".listeners >> text=/^12 in the room/");
    await say(page, 0, "is hidden");
    await page.waitForSelector(".judged.broken[data-cell=lost] code >> text=shed-untold");
    assert.match((await page.textContent(".sentence p")) ?? "", /^A promise is broken: bob missed 1 of the room, and 0 were announced\. The rule is shed-untold\./);
  });

  test("a killed node loses nothing that was acked, and takes what was written meanwhile", { timeout: 60_000 }, async () => {
    const own = await startNode();
    const { page, context } = await open(browser, own.url, "/try");
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
    await context.close();
    await again.stop();
  });
});
