// Follows, drains and kills nodes of a cluster of three from its page: TIDEGATE_BIN names the program, TIDEGATE_SERVICES the list of Kafka, Redis and Postgres that `cargo xtask services up` writes. They have to be new: for a while the nodes of a former run look alive in them.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { judged, launch, open, say, sentence, unexpected, until } from "./page.mjs";

const { TIDEGATE_BIN: binary, TIDEGATE_SERVICES: services } = process.env;
const limits = { timeout: 120_000, skip: !services };

/** Starts a cluster; returns the admin address of its first node, and how to stop it. */
async function startCluster() {
  const data = await mkdtemp(join(tmpdir(), "tidegate-console-"));
  const { kafka, redis7, postgres } = JSON.parse(await readFile(services, "utf8"));
  const env = {
    ...process.env, TIDEGATE__KAFKA__BROKERS: kafka.address, TIDEGATE__KAFKA__REPLICATION: "1",
    TIDEGATE__REDIS__URLS: redis7.url, TIDEGATE__POSTGRES__URL: postgres.url,
  };
  const child = spawn(binary, ["up", "--nodes", "3", "--port", "0", "--data", data], { env, stdio: ["ignore", "pipe", "pipe"] });
  const stop = async () => {
    if (child.exitCode === null) {
      child.kill("SIGINT");
      await once(child, "exit");
    }
    await rm(data, { recursive: true, force: true });
  };
  let log = "";
  const url = await new Promise((resolve) => {
    const take = (bytes) => {
      log += bytes;
      const found = /open (http:\S+) in a browser/.exec(log)?.[1];
      if (found) resolve(found);
    };
    for (const stream of [child.stdout, child.stderr]) stream.on("data", take);
    child.on("exit", () => resolve(undefined));
  });
  if (url) return { url, data, stop };
  await stop();
  throw new Error(`the cluster did not start:\n${log}`);
}

let cluster;
let browser;
before(async () => {
  if (!services) return;
  [cluster, browser] = await Promise.all([startCluster(), launch()]);
  // The policy of a page allows connections to the nodes that its node knew when it was loaded.
  const limit = Date.now() + 30_000;
  while ((await (await fetch(`${cluster.url}/v1/console`)).json()).nodes < 3) {
    if (Date.now() > limit) throw new Error("the first node does not know all others");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
});
after(async () => {
  await browser?.close();
  await cluster?.stop();
});

/** Waits until all people of the page are connected, and returns the names of their nodes. */
async function connected(page) {
  await until(page, () => document.querySelectorAll(".link-state").length >= 2 && [...document.querySelectorAll(".link-state")].every((it) => /Connected|Back/.test(it.textContent)));
  return page.$$eval(".chat-head", (list) => list.map((it) => /on (n\d)/.exec(it.textContent)?.[1]).filter(Boolean));
}

/** Uses a break on a person, and returns its sentence once it is judged. */
async function use(page, key, name) {
  await page.click(`.deck .segmented >> text=${name}`);
  await page.keyboard.press(key);
  return sentence(page, 60_000);
}

test("the waterfall of a message shows every step, over all nodes that it passed", limits, async () => {
  const { page, context, wrong } = await open(browser, cluster.url, "/try/group");
  const nodes = await connected(page);
  assert.ok(new Set(nodes).size > 1, `all are on ${nodes[0]}`);
  await say(page, 0, "followed");
  for (const index of [1, 2]) await page.waitForSelector(`.chat-${index} .bubble >> text=followed`);
  await page.waitForSelector(".chat-0 .ticks.read");
  await page.goto(`${cluster.url}/messages?user=alice`);
  await page.waitForSelector(".falls-row");
  // The last acks arrive after the first look.
  await until(page, () => [...document.querySelectorAll(".falls code")].filter((it) => it.textContent === "acked").length >= 2);
  const shown = await page.$$eval(".falls .lane", (lanes) => lanes.flatMap((lane) => [...lane.querySelectorAll("code")].map((it) => [lane.querySelector(".node").textContent, it.textContent])));
  const names = new Set(shown.map(([, step]) => step));
  for (const step of ["received", "appended", "decided", "archived", "answered", "arrived", "pushed", "acked"]) assert.ok(names.has(step), `no ${step} in ${JSON.stringify(shown)}`);
  assert.ok(new Set(shown.map(([node]) => node)).size > 1, "the steps of one node only");
  const lanes = await page.$$eval(".falls .lane", (list) => list.map((lane) => [lane.querySelector(".node").textContent, lane.querySelector(".names .quiet").textContent]));
  assert.match(lanes[0][1], /^alice is here/);
  assert.ok(lanes.some(([, part]) => /owns partition \d+$/.test(part)), JSON.stringify(lanes));
  assert.ok(lanes.every(([node], index) => node !== lanes[index - 1]?.[0]), JSON.stringify(lanes));
  assert.deepEqual(wrong, []);
  await context.close();
});

test("the feed on the page of one node has what others accept, and its other events say whose they are", limits, async () => {
  const { page: events, context: other, wrong: odd } = await open(browser, cluster.url, "/events");
  await events.waitForSelector(".others >> text=/Those of n\\d and n\\d are on their own consoles/");
  await events.click(".sources >> text=feed of all nodes");
  await events.waitForSelector(".empty");
  const { page, context, wrong } = await open(browser, cluster.url, "/try");
  await connected(page);
  await say(page, 1, "from another node");
  await events.waitForSelector(".event-row >> text=/d:alice:bob has message \\d+ from bob/");
  assert.deepEqual([...wrong, ...odd], []);
  for (const it of [other, context]) await it.close();
});

test("connections of all nodes are listed on the page of one, and ended from there", limits, async () => {
  const { page, context, wrong } = await open(browser, cluster.url, "/try");
  const [, node] = await connected(page);
  const { page: admin, context: other } = await open(browser, cluster.url, "/connections");
  await admin.selectOption(".pick select", node);
  await admin.fill("[data-filter]", "bob");
  await until(admin, () => document.querySelectorAll(".connections tbody tr").length === 1);
  assert.equal(await admin.textContent(".connections .node"), node);
  const { node: own } = await (await fetch(`${cluster.url}/v1/console`)).json();
  assert.notEqual(node, own, "bob is on the node of the page");
  await admin.click("[aria-label='Kick bob’s phone']");
  await admin.fill("dialog .asked input", "from another node");
  await admin.click("dialog .danger");
  await admin.waitForSelector(".outcome >> text=One connection was closed.");
  await page.waitForSelector(".chat-1 .remark >> text=Closed by the node: KICKED, “from another node”");
  assert.deepEqual(wrong, []);
  for (const it of [other, context]) await it.close();
});

test("a drain moves a client to another node within its slot, and the river shows it cross", limits, async () => {
  const { page, context, wrong } = await open(browser, cluster.url, "/try");
  const [, from] = await connected(page);
  await say(page, 0, "before the drain");
  const text = await use(page, "7", "bob");
  assert.match(text, new RegExp(`^${from} asked bob to leave within [0-9.]+ m?s, and said where to go\\. Bob was on n\\d .+ later\\. The drain stopped after this request: ${from} goes on\\..*Nothing lost`));
  assert.deepEqual(await judged(page), ["0", "0", "0"]);
  const [, to] = await connected(page);
  assert.notEqual(to, from);
  // Each node counts the clients that came to it, and where from.
  const { page: nodes, context: other, wrong: odd } = await open(browser, cluster.url, "/nodes");
  await nodes.click("text=Show as table");
  await nodes.waitForSelector(`.river-table >> text=${from} to ${to} 1`);
  assert.deepEqual([...wrong, ...odd], []);
  for (const it of [other, context]) await it.close();
});

test("the page outlives the death of any node, also of its own", limits, async () => {
  const { page, context, wrong } = await open(browser, cluster.url, "/try");
  await page.waitForSelector(".where >> text=3 nodes");
  const [, node] = await connected(page);
  await say(page, 0, "before");
  assert.match(await use(page, "8", "bob"), new RegExp(`^${node} died\\. Bob was on n\\d after .+ (Alice’s link stayed: one|Alice was on ${node} too, .+ One) message sent meanwhile was on disk and acked within .+ Nothing lost`));
  assert.deepEqual(await judged(page), ["0", "0", "0"]);
  const [last] = await connected(page);
  // From outside, so that the page learns of it as of any crash.
  const { pid } = JSON.parse(await readFile(join(cluster.data, last, "node.json"), "utf8"));
  process.kill(pid, "SIGKILL");
  await until(page, (gone) => ![...document.querySelectorAll(".chat-head")].some((it) => it.textContent.includes(`on ${gone}`)), last, 60_000);
  await connected(page);
  await say(page, 0, "after");
  assert.deepEqual(await judged(page, 60_000), ["0", "0", "0"]);
  await page.waitForSelector(".chat-1 .bubble >> text=after");
  assert.deepEqual(unexpected(wrong), []);
  await context.close();
});
