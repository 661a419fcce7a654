// A headless Chromium with one page of an origin on loopback that serves the files of this package.
import { createReadStream, existsSync } from 'node:fs';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const TYPES = { '.js': 'text/javascript', '.mjs': 'text/javascript', '.html': 'text/html' };

/** Serves `dist` and `kit`, and an empty page at `/`. */
async function serve() {
  const server = createServer((request, response) => {
    const path = normalize(new URL(request.url, 'http://localhost').pathname);
    if (path === '/') return response.writeHead(200, { 'content-type': 'text/html' }).end('<!doctype html><title>Tidegate</title>');
    const file = join(ROOT, path);
    if (!/^\/(dist|kit)\//.test(path) || !existsSync(file)) return response.writeHead(404).end();
    response.writeHead(200, { 'content-type': TYPES[extname(path)] ?? 'application/octet-stream' });
    createReadStream(file).pipe(response);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return server;
}

/** Opens the page with the data of a browser in `profile`; `more` opens further tabs of the same origin. */
export async function openPage(profile) {
  const server = await serve();
  const origin = `http://127.0.0.1:${server.address().port}`;
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium-headless-shell',
    headless: true,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
  const more = async () => {
    const page = await context.newPage();
    await page.goto(origin);
    page.on('pageerror', (error) => console.error(String(error)));
    return page;
  };
  return {
    origin,
    page: await more(),
    more,
    async close() {
      await context.close();
      server.close();
    },
  };
}
