// Adapter of the conformance kit for a browser: bridges JSON lines between stdin, stdout and a page in Chromium, in which
// the bundle of the client runs.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openPage } from './chromium.mjs';
import { eachLine } from './lines.mjs';

const profile = mkdtempSync(join(tmpdir(), 'tidegate-kit-'));
const { page, close } = await openPage(profile);
await page.exposeFunction('emitLine', (line) => void process.stdout.write(line + '\n'));
await page.evaluate(async () => {
  const [{ connect, indexedDbStore }, { createDriver }] = await Promise.all([import('/dist/browser.js'), import('/kit/driver.mjs')]);
  window.command = createDriver({
    connect,
    makeStore: (name) => indexedDbStore(`kit:${name}`),
    emit: (event) => window.emitLine(JSON.stringify(event)),
    transports: ['ws-json'],
    can: ['random', 'store', 'tabs', 'online', 'refresh', 'react', 'edit', 'edits', 'flags', 'json', 'roomStats', 'watch'],
  });
});

let isOver = false;
const end = async () => {
  isOver = true;
  await close();
  rmSync(profile, { recursive: true, force: true });
  process.exit(0);
};
const run = (line) => page.evaluate((it) => window.command(JSON.parse(it)), line).catch((error) => isOver || console.error(String(error)));
eachLine(process.stdin, run, end);
