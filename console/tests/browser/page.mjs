// Opens the page in a browser and records what must not happen: errors, violations of the policy, other hosts.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { basename, join } from "node:path";
import { chromium } from "playwright-core";

const dist = new URL("../../dist/", import.meta.url).pathname;
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TYPES = { ".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2", ".svg": "image/svg+xml", ".txt": "text/plain" };

/** Starts the browser. */
export function launch() {
  const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
  // A page whose files the test supplies counts as one from elsewhere, which may not connect to loopback.
  if (process.env.TIDEGATE_CONSOLE !== "embedded") flags.push("--disable-features=LocalNetworkAccessChecks");
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: flags });
}

/**
 * Opens a page of a node. The files are those of `dist/`, with the headers of the node; with `TIDEGATE_CONSOLE=embedded`
 * they are those that the node's program contains. `prepare` gets the page before it is loaded.
 */
export async function open(browser, url, path, { prepare, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => message.type() === "error" && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("request", (request) => new URL(request.url()).hostname !== "127.0.0.1" && !request.url().startsWith("blob:") && wrong.push(`other host: ${request.url()}`));
  await page.exposeFunction("reportViolation", (text) => wrong.push(`policy: ${text}`));
  await page.addInitScript(() => document.addEventListener("securitypolicyviolation", (event) => window.reportViolation(`${event.violatedDirective} ${event.blockedURI}`)));
  if (process.env.TIDEGATE_CONSOLE !== "embedded") {
    await page.route("**/assets/*", async (route) => {
      const file = join(dist, "assets", basename(new URL(route.request().url()).pathname));
      if (!existsSync(file)) return route.fulfill({ status: 404 });
      const contentType = TYPES[file.slice(file.lastIndexOf("."))] ?? "application/octet-stream";
      return route.fulfill({ body: await readFile(file), contentType });
    });
    await page.route((at) => at.origin === url && !at.pathname.startsWith("/v1/") && !at.pathname.startsWith("/assets/"), async (route) => {
      if (route.request().resourceType() !== "document") return route.continue();
      const response = await route.fetch();
      return route.fulfill({ response, body: await readFile(join(dist, "index.html"), "utf8") });
    });
  }
  await prepare?.(page);
  await page.goto(url + path);
  const end = context.close.bind(context);
  // Answers that a test changes on their way may be outstanding when it ends.
  context.close = async () => {
    ending.add(page);
    await context.unrouteAll({ behavior: "ignoreErrors" });
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await end();
  };
  return { page, context, wrong };
}

/** Pages whose test has ended. */
const ending = new WeakSet();

/** Changes the JSON that the page gets from a path; `change` gets it and returns another. What is outstanding at the end of the test is dropped. */
export const changed = (page, path, change) =>
  page.route(path, async (route) => {
    try {
      const response = await route.fetch();
      await route.fulfill({ response, json: change(await response.json()) });
    } catch (error) {
      if (!ending.has(page)) throw error;
    }
  });

/**
 * Waits until a function in the page returns true. It is asked from outside, because the policy of the page forbids the
 * `eval` by which the browser's driver would wait inside.
 */
export async function until(page, condition, argument, timeout = 20_000) {
  const limit = Date.now() + timeout;
  while (!(await page.evaluate(condition, argument))) {
    if (Date.now() > limit) throw new Error(`it never held: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Waits until the three figures are judged, and returns them. */
export async function judged(page, timeout = 20_000) {
  await until(page, () => document.querySelectorAll(".judged[data-checked=true]").length === 3, undefined, timeout);
  return page.$$eval(".judged .figure", (list) => list.map((it) => it.textContent));
}

/** Waits until a break is over and judged, and returns its sentence. */
export async function sentence(page, timeout = 40_000) {
  await until(page, () => document.querySelector(".sentence p[data-over=true] b") !== null, undefined, timeout);
  return page.textContent(".sentence p");
}

/** Writes a text as a person, and waits until the node has accepted it. */
export async function say(page, index, text) {
  await page.fill(`.chat-${index} .composer input`, text);
  await page.press(`.chat-${index} .composer input`, "Enter");
  await until(
    page,
    ([person, words]) => [...document.querySelectorAll(`.chat-${person} .bubble.own`)].some((it) => it.textContent.includes(words) && it.querySelector(".ticks svg")),
    [index, text],
  );
}

/** Loads axe into the page, and returns how to ask what it finds in there, in a theme. */
export async function accessibility(page) {
  await page.evaluate(axe);
  return async (colorScheme) => {
    await page.emulateMedia({ colorScheme });
    await until(page, (it) => document.documentElement.dataset.theme === it, colorScheme);
    const { violations, passes } = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"], resultTypes: ["violations"] }));
    assert.ok(passes.length > 5, "axe looked at nothing");
    return violations.flatMap((it) => it.nodes.map((one) => `${it.id}: ${one.target.join(" ")}: ${one.any[0]?.message ?? one.all[0]?.message ?? ""}`));
  };
}
