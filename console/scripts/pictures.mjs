// Takes the pictures of `docs/img` again: the page of a node that this program starts, and the river and the guard of clusters that it makes up.
// Then takes every view in both themes, wide and on a phone, to be looked at; these are kept in `.pictures/` only.
import { execFile } from "node:child_process";
import { mkdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { END_MS, guarding } from "../tests/browser/guarding.mjs";
import { startNode } from "../tests/browser/node.mjs";
import { changed, judged, launch, open, say, sentence } from "../tests/browser/page.mjs";
import { pretend, rollout } from "../tests/browser/rollout.mjs";

/** Folder of the pictures of every view. */
const all = new URL("../.pictures/", import.meta.url).pathname;
const folder = process.env.TIDEGATE_PICTURES ?? new URL("../../docs/img/", import.meta.url).pathname;
const run = promisify(execFile);

/** The width of all pictures is 1440 px of the page; their density makes small words readable where a page scales them down. */
const LOOK = { viewport: { width: 1440, height: 900 }, deviceScaleFactor: 1.25, timezoneId: "UTC" };

/** Second at which the river of the pictures ends, so that it is the same each time. */
const END = Date.UTC(2026, 0, 2, 14, 22, 51) / 1000;

const THEMES = ["light", "dark"];

/** The layout that differs most from that of a desk. */
const PHONE = { width: 390, height: 844 };

/** Takes a picture of a page in each theme; `name` without a theme is one picture in light. */
async function take(page, name, themes = THEMES) {
  for (const theme of themes) {
    await page.emulateMedia({ colorScheme: theme });
    await page.waitForTimeout(300);
    const file = join(folder, themes.length > 1 ? `${name}-${theme}.png` : `${name}.png`);
    await page.screenshot({ path: file });
    await run("pngquant", ["--force", "--skip-if-larger", "--speed", "1", "--strip", "--output", file, "256", file]).catch((error) => {
      // 98 and 99 say that the picture is as small as it is.
      if (error.code === "ENOENT") console.log("pngquant is not installed, so the pictures are large");
      else if (error.code !== 98 && error.code !== 99) throw error;
    });
    console.log(`${String((await stat(file)).size).padStart(8)}  ${file}`);
  }
}

const PAIR = [[1, "The rain has stopped."], [0, "Good."], [1, "Which boat do you take?"], [0, "The 12:30, I think."], [0, "Ferry is on time, pier 4."]];
const GROUP = [[0, "Ferry is on time, pier 4."], [1, "Good."]];
const ROOM = [[0, "Doors are open."], [1, "Good evening, pier 4!"], [0, "We begin in five minutes."]];

async function talk(page, lines) {
  for (const [person, words] of lines) await say(page, person, words);
  await judged(page);
}

/** Breaks the link of bob, and waits until it was judged; prints what the picture says, which a machine under load makes long. */
async function cut(page) {
  await page.click("[data-break=cut]");
  console.log(await sentence(page));
  await judged(page);
  await page.mouse.move(0, 0);
}

/** Steps of two messages to a group of three on three nodes: n1 receives them, n2 owns the conversation, and carol is on n1, bob on n3. */
function steps() {
  const message = (trace, msg, seq, from, factor) => {
    const step = (ms, node, name, more) => ({ step: name, node, timeUs: from * 1000 + Math.round(ms * factor * 1000), trace, msg, conversation: "g:harbour", ...more });
    const to = (user) => ({ user, device: "phone" });
    return [
      step(0, "n1", "received", { ...to("alice"), note: "attempt 0" }), step(2.91, "n1", "appended"), step(3.34, "n2", "decided", { seq, note: "partition 17: accepted" }), step(5.72, "n2", "archived", { seq }), step(5.79, "n2", "answered"),
      step(6.31, "n1", "answered"), step(6.4, "n1", "pushed", to("carol")), step(6.52, "n3", "arrived"), step(6.6, "n3", "pushed", to("bob")), step(29.8, "n1", "acked", to("carol")), step(41.2, "n3", "acked", to("bob")),
    ];
  };
  return [...message("t2", "5f1c3e9a7d20b84c6e91a0d3", 412, END * 1000, 1), ...message("t1", "2b7e151628aed2a6abf71588", 411, END * 1000 - 4100, 1.2)];
}

const views = {
  async pair(browser, url) {
    const { page, context } = await open(browser, url, "/try", LOOK);
    await page.waitForSelector(".chat-1 .link-state >> text=Connected");
    await talk(page, PAIR);
    await cut(page);
    await page.focus(".chat-0 .composer input");
    await page.keyboard.type("Thanks, see you at");
    await page.waitForSelector(".chat-1 .dots");
    await take(page, "try-it");
    await context.close();
  },
  async phone(browser, url) {
    const { page, context } = await open(browser, url, "/try", { ...LOOK, viewport: PHONE, deviceScaleFactor: 2 });
    await page.waitForSelector(".chat-1 .link-state >> text=Connected");
    await talk(page, PAIR.slice(2));
    await cut(page);
    await take(page, "phone");
    await context.close();
  },
  async messages(browser, url) {
    const { page, context } = await open(browser, url, "/messages?user=alice", { ...LOOK, prepare: async (page) => {
      await changed(page, "**/v1/console", (it) => ({ ...it, node: "n1", nodes: 3, peers: ["n2", "n3"].map((node) => ({ node, ws: [], admin: "" })) }));
      await page.route("**/v1/trace?*", (route) => route.fulfill({ json: { node: "n1", steps: steps(), silent: [], watchedMs: 540_000 } }));
    } });
    await page.waitForSelector(".falls-row");
    await take(page, "messages");
    await context.close();
  },
  async room(browser, url) {
    const { page, context } = await open(browser, url, "/try/room", LOOK);
    await page.waitForSelector(".listeners >> text=/^12 in the room/");
    await talk(page, ROOM);
    await cut(page);
    await page.focus(".chat-0 .composer input");
    await take(page, "room");
    await context.close();
  },
  async river(browser, url) {
    const { page, context } = await open(browser, url, "/errors", LOOK);
    await page.waitForSelector(".code");
    await pretend(page, rollout(END, 400, 50));
    await page.goto(`${url}/nodes`);
    await page.waitForSelector(".phases >> text=n1");
    await take(page, "river");
    await context.close();
  },
  async guard(browser, url) {
    const { page, context } = await open(browser, url, "/guard", { ...LOOK, prepare: async (page) => {
      await page.clock.setFixedTime(END_MS);
      await guarding(page, { isWhole: true });
    } });
    await page.waitForSelector(".storm:last-child .during");
    await page.waitForSelector(".entry");
    await take(page, "guard");
    await context.close();
  },
};

/** Every view by the name of its pictures, with a part that it has once it is complete. */
const EVERY = {
  try: ["/try", ".chat-1 .link-state >> text=Connected"], "try-group": ["/try/group", ".chat-2 .link-state >> text=Connected"], "try-room": ["/try/room", ".listeners >> text=/^12 in the room/"],
  overview: ["/overview", ".event-row"], messages: ["/messages?user=alice", ".falls-row"], events: ["/events", ".event-row"], feed: ["/events?of=all", ".event-row"], errors: ["/errors", ".code"], nodes: ["/nodes", ".cell"],
  connections: ["/connections", ".connections td"], people: ["/people?user=alice", ".person .event-row"], groups: ["/groups?group=team", "[aria-label=Members] td"], rooms: ["/rooms", "[aria-label=Members] td"],
  webhooks: ["/webhooks", ".webhook"], guard: ["/guard", ".lookup"], styleguide: ["/styleguide", ".guide .falls-row"],
};

/** Takes every view in both themes, wide and on a phone, while people of a live room talk. */
async function every(browser, url) {
  const send = (method, path, body) => fetch(`${url}${path}`, { method, headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  // Nothing listens there, so the endpoint fails.
  await send("PUT", "/v1/webhooks/crm", { url: "http://127.0.0.1:1/", types: ["tidegate.*"], from: "oldest" });
  await send("POST", "/v1/groups", { id: "team", members: ["alice", "bob", "carol"], owner: "alice", name: "The team", meta: { color: "red" }, settings: { history: "all", retention: "30d" } });
  let crowd;
  for (const [name, [path, ready]] of Object.entries(EVERY)) {
    // Its people have the names of those of the other pages, which would take them over.
    if (!path.startsWith("/try") && !crowd) {
      crowd = await open(browser, url, "/try/room", LOOK);
      await crowd.page.waitForSelector(EVERY["try-room"][1]);
      await talk(crowd.page, ROOM);
    }
    const { page, context } = await open(browser, url, path, LOOK);
    // The feed begins with what is accepted once it is followed.
    if (name === "feed") await page.waitForSelector(".empty");
    if (name === "feed") for (const text of ["one", "two"]) await send("POST", "/v1/messages", { to: "bob", from: "alice", content: { text } });
    await page.waitForSelector(ready);
    if (path.startsWith("/try")) await talk(page, path === "/try/room" ? ROOM : GROUP);
    for (const [width, viewport] of [["wide", LOOK.viewport], ["phone", PHONE]]) {
      await page.setViewportSize(viewport);
      for (const theme of THEMES) {
        await page.emulateMedia({ colorScheme: theme });
        await page.waitForTimeout(300);
        await page.screenshot({ path: join(all, `${name}-${width}-${theme}.png`), fullPage: true });
      }
    }
    await context.close();
  }
  await crowd?.context.close();
  console.log(`${Object.keys(EVERY).length} views in ${all}`);
}

for (const it of [folder, all]) await mkdir(it, { recursive: true });
const wanted = process.argv.slice(2);
const [node, browser] = await Promise.all([startNode(), launch()]);
try {
  for (const [name, view] of Object.entries({ ...views, every })) if (wanted.length === 0 || wanted.includes(name)) await view(browser, node.url);
} finally {
  await browser.close();
  await node.stop();
}
