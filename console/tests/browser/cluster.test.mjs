// Kills nodes of a cluster of three from its page: TIDEGATE_BIN names the program, TIDEGATE_SERVICES the target folder of `cargo xtask services up`.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { launch, open, say, sentence, until } from "./page.mjs";

const { TIDEGATE_BIN: binary, TIDEGATE_SERVICES: services } = process.env;

/** Starts a cluster; returns the admin address of its first node, and how to stop it. */
async function startCluster() {
  const data = await mkdtemp(join(tmpdir(), "tidegate-console-"));
  const child = spawn(binary, ["up", "--nodes", "3", "--port", "0", "--data", data], { env: { ...process.env, CARGO_TARGET_DIR: services }, stdio: ["ignore", "pipe", "pipe"] });
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
  if (url) return { url, stop };
  await stop();
  throw new Error(`the cluster did not start:\n${log}`);
}

test("the page outlives the death of any node, also of its own", { timeout: 240_000, skip: !services }, async () => {
  const [cluster, browser] = await Promise.all([startCluster(), launch()]);
  try {
    const { page } = await open(browser, cluster.url, "/try");
    const kill = async (name) => {
      await page.click(`.deck .segmented >> text=${name}`);
      await page.keyboard.press("8");
      return sentence(page, 120_000);
    };
    await until(page, () => document.querySelectorAll(".link-state").length === 2 && [...document.querySelectorAll(".link-state")].every((it) => it.textContent.includes("Connected")));
    await page.waitForSelector(".where >> text=3 nodes");
    const nodes = await page.$$eval(".head-node .node", (list) => list.map((it) => it.textContent));
    assert.equal(nodes.length, 2, "both are on one node");
    await say(page, 0, "before");
    assert.match(await kill("bob"), /^n\d died\. Bob was on n\d after .+ Nothing lost/);
    assert.match(await kill("alice"), /^n1 died\. Alice was on n\d after .+ Nothing lost/);
    await say(page, 0, "after");
    await page.waitForSelector(".chat-1 .bubble >> text=after");
  } finally {
    await browser.close();
    await cluster.stop();
  }
});
