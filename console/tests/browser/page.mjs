// Opens the page in a browser and records what must not happen: errors, violations of the policy, other hosts.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { basename, join } from "node:path";
import { test } from "node:test";
import { chromium } from "playwright-core";

const dist = new URL("../../dist/", import.meta.url).pathname;
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TYPES = { ".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2", ".svg": "image/svg+xml", ".txt": "text/plain" };

/** The browser of this process. */
let browser;

/** Starts the browser at the first call; the tests of one process share it and its warm contexts. */
export const launch = () => (browser ??= start());

function start() {
  const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
  // A page whose files the test supplies counts as one from elsewhere, which may not connect to loopback.
  if (process.env.TIDEGATE_CONSOLE !== "embedded") flags.push("--disable-features=LocalNetworkAccessChecks");
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium-headless-shell", args: flags });
}

/** Empty page that the browser's driver answers. It names an empty icon, because the browser would ask the server for one. */
const BLANK = { url: "http://127.0.0.1/blank", body: "<!doctype html><link rel=icon href=data:,>" };

const WIDE = { width: 1440, height: 900 };

/** Contexts whose test has ended, by their browsers: a load in one of them costs a quarter of what a new one does. */
const idle = new Map();
/** The test that a page is of at present. */
const uses = new WeakMap();

async function create(browser, options) {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  const it = { page, context, end: context.close.bind(context), wrong: [] };
  const note = (text) => it.wrong.push(text);
  page.on("console", (message) => message.type() === "error" && note(`console: ${message.text()}`));
  page.on("pageerror", (error) => note(`error: ${error.message}`));
  page.on("request", (request) => new URL(request.url()).hostname !== "127.0.0.1" && !/^(blob|about):/.test(request.url()) && note(`other host: ${request.url()}`));
  page.on("websocket", (socket) => new URL(socket.url()).hostname !== "127.0.0.1" && note(`other host: ${socket.url()}`));
  await page.exposeFunction("reportViolation", (text) => note(`policy: ${text}`));
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => window.reportViolation(`${event.violatedDirective} ${event.blockedURI}`));
    // `explain` prints these: a page that got no processor time is not a page that waits for a node.
    window.stalls = [];
    new PerformanceObserver((list) => {
      for (const { startTime, duration } of list.getEntries()) if (duration > 500 && window.stalls.length < 20) window.stalls.push(`${Math.round(duration)} ms at ${Math.round(startTime)}`);
    }).observe({ type: "longtask", buffered: true });
  });
  return it;
}

/** Makes a context as if it was new: nothing of the test that has ended stays, and its connections end. */
async function reset({ page, context }) {
  // Answers that a test changes on their way may be outstanding when it ends.
  await context.unrouteAll({ behavior: "ignoreErrors" });
  await page.unrouteAll({ behavior: "ignoreErrors" });
  await page.evaluate(() => {
    localStorage.clear();
    sessionStorage.clear();
  });
  // An empty page of the same site keeps the renderer process, which `about:blank` replaces by a new one.
  await page.route(BLANK.url, (route) => route.fulfill({ body: BLANK.body, contentType: "text/html" }));
  await page.goto(BLANK.url);
  await page.unroute(BLANK.url);
  await page.emulateMedia({ colorScheme: null, reducedMotion: "reduce" });
  await context.clearPermissions();
}

/**
 * Opens a page of a node; `context.close` gives it back. The files are those of `dist/`, with the headers of the node; with
 * `TIDEGATE_CONSOLE=embedded` they are those that the node's program contains. `prepare` gets the page before it is loaded.
 */
export async function open(browser, url, path, { prepare, viewport = WIDE, ...options } = {}) {
  const isPlain = Object.keys(options).length === 0;
  const free = idle.get(browser) ?? [];
  idle.set(browser, free);
  const it = (isPlain && free.pop()) || (await create(browser, options));
  const { page, context } = it;
  const use = { isOver: false };
  uses.set(page, use);
  it.wrong = [];
  context.close = async () => {
    use.isOver = true;
    if (isPlain && (await reset(it).then(() => true, () => false))) free.push(it);
    else await it.end();
  };
  await page.setViewportSize(viewport);
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
  return { page, context, wrong: it.wrong };
}

/** Returns an error that says what the page shows: a failure that needs the load of other programs is not soon seen again. */
export async function explain(page, error) {
  const state = () => `${location.pathname}${location.search}, ${Math.round(performance.now())} ms old, its stalls: ${window.stalls?.join(", ") || "none"}. It showed: ${document.body.innerText}`;
  const shown = await page.evaluate(state).catch((reason) => `nothing: ${reason.message}`);
  // On one line, because a report keeps the last lines of a log.
  return new Error(`${error.message}\nThe page was ${shown.replaceAll(/\s*\n\s*/g, " | ").slice(0, 3000)}`, { cause: error });
}

/**
 * Adds a test that opens a page whose requests `prepare` changes first, and hands the page to `act`. A refused request is an
 * error in the browser's console. `parts` returns the browser and the node, which start after the tests are listed.
 */
export function stated(parts, name, path, prepare, act) {
  test(name, { timeout: 60_000 }, async () => {
    const { browser, node } = parts();
    const { page, context, wrong } = await open(browser, node.url, path, { prepare });
    try {
      await act(page);
      assert.deepEqual(wrong.filter((it) => !it.includes("Failed to load resource")), []);
    } catch (error) {
      throw await explain(page, error);
    } finally {
      await context.close();
    }
  });
}

/** What went wrong, without the requests and links that fail because a test ends or refuses them. */
export const unexpected = (wrong) => wrong.filter((it) => !/^console: .*(Failed to load resource|WebSocket connection to|net::ERR_)/.test(it));

/** Changes the JSON that the page gets from a path; `change` gets it and returns another. What is outstanding at the end of the test is dropped. */
export const changed = (page, path, change) => {
  const use = uses.get(page);
  return page.route(path, async (route) => {
    try {
      const response = await route.fetch();
      await route.fulfill({ response, json: change(await response.json()) });
    } catch (error) {
      if (!use.isOver) throw error;
    }
  });
};

/**
 * Waits until a function in the page returns true. It is asked from outside, because the policy of the page forbids the
 * `eval` by which the browser's driver would wait inside.
 */
export async function until(page, condition, argument, timeout = 20_000) {
  const limit = Date.now() + timeout;
  // Many pages wait at once, and each question costs three processes a turn.
  for (let pause = 30; !(await page.evaluate(condition, argument)); pause = Math.min(200, pause * 1.4)) {
    if (Date.now() > limit) throw new Error(`it never held: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, pause));
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
    ([person, words]) => [...document.querySelectorAll(`.chat-${person} .bubble.own`)].some((it) => it.textContent.includes(words) && it.querySelector(".ticks:not(.refused) svg")),
    [index, text],
  );
}

/** Rules of axe that depend on colours, in which alone the themes differ. */
const COLOURS = ["color-contrast", "link-in-text-block"];
const ALL = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"];

/** Loads axe into the page, and returns how to ask what it finds in there, in a theme: in the dark one, which comes after the light one, by the colours alone. */
export async function accessibility(page) {
  await page.evaluate(axe);
  return async (colorScheme) => {
    // A page in the background may draw no frame, and only with a frame it is notified of the theme.
    await page.bringToFront();
    await page.emulateMedia({ colorScheme });
    await until(page, (it) => document.documentElement.dataset.theme === it, colorScheme);
    const { violations, passes } = await page.evaluate((runOnly) => window.axe.run(document, { runOnly, resultTypes: ["violations"] }), colorScheme === "dark" ? COLOURS : ALL);
    assert.ok(passes.some((it) => it.id === "color-contrast"), "axe looked at nothing");
    return violations.flatMap((it) => it.nodes.map((one) => `${it.id}: ${one.target.join(" ")}: ${one.any[0]?.message ?? one.all[0]?.message ?? ""}`));
  };
}
