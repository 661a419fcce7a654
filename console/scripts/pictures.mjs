// Takes the pictures of `docs/img` again: the page of a node that this program starts, and the river and the guard of clusters that it makes up.
import { execFile } from "node:child_process";
import { mkdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { END_MS, guarding } from "../tests/browser/guarding.mjs";
import { startNode } from "../tests/browser/node.mjs";
import { judged, launch, open, say, sentence } from "../tests/browser/page.mjs";
import { pretend, rollout } from "../tests/browser/rollout.mjs";

const folder = process.env.TIDEGATE_PICTURES ?? new URL("../../docs/img/", import.meta.url).pathname;
const run = promisify(execFile);

/** The width of all pictures is 1440 px of the page; their density makes small words readable where a page scales them down. */
const LOOK = { viewport: { width: 1440, height: 900 }, deviceScaleFactor: 1.25, timezoneId: "UTC" };

/** Second at which the river of the pictures ends, so that it is the same each time. */
const END = Date.UTC(2026, 0, 2, 14, 22, 51) / 1000;

const THEMES = ["light", "dark"];

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

/** Breaks the link of bob, and waits until it was judged. */
async function cut(page) {
  await page.click("[data-break=cut]");
  await sentence(page);
  await judged(page);
  await page.mouse.move(0, 0);
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
  async group(browser, url) {
    const { page, context } = await open(browser, url, "/try/group", LOOK);
    await page.waitForSelector(".chat-2 .link-state >> text=Connected");
    await talk(page, GROUP);
    await page.goto(`${url}/messages?user=alice`);
    await page.waitForSelector(".falls-row");
    await take(page, "messages", ["light"]);
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

await mkdir(folder, { recursive: true });
const wanted = process.argv.slice(2);
const [node, browser] = await Promise.all([startNode(), launch()]);
try {
  for (const [name, view] of Object.entries(views)) if (wanted.length === 0 || wanted.includes(name)) await view(browser, node.url);
} finally {
  await browser.close();
  await node.stop();
}
