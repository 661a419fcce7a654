// The client in Chromium against a real node: WebSocket, tabs that share a connection, tabs with devices of their own.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { openPage } from '../../kit/chromium.mjs';
import { limits, startNode } from '../support/real_node.mjs';

let node;
let browser;
const profile = mkdtempSync(join(tmpdir(), 'tidegate-tabs-'));

before(async () => {
  if (limits.skip) return;
  browser = await openPage(profile);
  node = await startNode({ origins: [browser.origin] });
});

after(async () => {
  if (limits.skip) return;
  await browser.close();
  await node.stop();
  rmSync(profile, { recursive: true, force: true });
});

/** Opens a tab with a client `window.client` whose events are in `window.seen`. */
async function tab(user, options) {
  const page = await browser.more();
  const all = { addresses: [`ws://127.0.0.1:${node.port}`], token: node.token(user), user, ...options };
  await page.evaluate(async (it) => {
    const { connect } = await import('/dist/browser.js');
    window.seen = [];
    window.client = connect(it);
    for (const name of ['message', 'sent', 'state', 'synced']) window.client.on(name, (value) => window.seen.push({ name, value }));
    await window.client.live();
    if (!window.seen.some((event) => event.name === 'synced')) await window.client.sync();
  }, all);
  return page;
}

const send = (page, to, text) => page.evaluate(([a, b]) => window.client.send(a, b), [to, text]);
/** Waits until the tab has these texts, in order, among its events of one name. */
const texts = async (page, name, wanted) => {
  const read = (it) => window.seen.filter((event) => event.name === it).map((event) => event.value.content.text);
  await page.waitForFunction(([it, count]) => window.seen.filter((event) => event.name === it).length >= count, [name, wanted.length]);
  assert.deepEqual(await page.evaluate(read, name), wanted);
};
const connected = async (user) => (await (await fetch(`${node.admin}/v1/users/${user}/presence`)).json()).devices.map((it) => it.device).sort();

test('tabs share one connection, and another tab takes over', limits, async () => {
  const bob = await tab('bob', { device: 'desk' });
  const options = { device: 'web', tabs: 'shared' };
  const first = await tab('alice', options);
  const second = await tab('alice', options);
  assert.deepEqual(await connected('alice'), ['web']);

  const one = await send(second, 'bob', 'from the second tab');
  assert.equal(one.seq, 1);
  await texts(first, 'sent', ['from the second tab']);
  await texts(second, 'sent', ['from the second tab']);
  await send(bob, 'alice', 'for both');
  await texts(first, 'message', ['for both']);
  await texts(second, 'message', ['for both']);
  const denied = await second.evaluate(() => window.client.send('g:none', 'x').catch((error) => [error.name, error.code, error instanceof Error]));
  assert.deepEqual(denied, ['NOT_FOUND', 4005, true]);

  // The tab with the connection is closed: the other one continues from the same position, with the same device.
  await first.close();
  await second.waitForFunction(() => window.seen.filter((event) => event.name === 'state' && event.value.name === 'live').length >= 2);
  await send(bob, 'alice', 'after the take-over');
  await texts(second, 'message', ['for both', 'after the take-over']);
  assert.equal((await send(second, 'bob', 'still here')).seq, 4);
  await texts(second, 'sent', ['from the second tab', 'still here']);
  await texts(bob, 'message', ['from the second tab', 'still here']);
  assert.deepEqual(await connected('alice'), ['web']);
});

test('a tab that closes its client leaves the calls of the others to the next one', limits, async () => {
  const bob = await tab('gina', { device: 'desk' });
  const options = { device: 'web', tabs: 'shared' };
  const first = await tab('harry', options);
  const second = await tab('harry', options);
  // While offline the message waits in the tab that has the connection.
  await second.evaluate(() => {
    window.client.offline();
    window.pending = window.client.send('gina', 'taken over');
  });
  await first.waitForFunction(() => window.client.state.name === 'offline');
  await first.evaluate(() => window.client.close());
  assert.equal((await second.evaluate(() => window.pending)).seq, 1);
  await texts(bob, 'message', ['taken over']);
  assert.equal(await second.evaluate(() => window.seen.some((event) => event.value.name === 'closed')), false);
});

test('tabs have devices of their own, and a name that is free is used again', limits, async () => {
  // The addresses come from the node, by a request of another origin.
  const options = { device: 'web', tabs: 'own', addresses: [], assign: `http://127.0.0.1:${node.port}` };
  const first = await tab('carol', options);
  const second = await tab('carol', options);
  assert.deepEqual(await connected('carol'), ['web-1', 'web-2']);
  await send(first, 'dave', 'seen by the other tab');
  await texts(second, 'message', ['seen by the other tab']);
  await first.close();
  await tab('carol', options);
  assert.deepEqual(await connected('carol'), ['web-1', 'web-2']);
});

test('an outbox in IndexedDB outlives the page', limits, async () => {
  const options = { device: 'web', outbox: 'indexeddb' };
  const erin = await tab('erin', options);
  await erin.evaluate(() => {
    window.client.offline();
    window.client.send('frank', 'written offline').catch(() => {});
    // Resolves once the message is stored: writes of a store are in order.
    return new Promise((resolve) => {
      const check = async () => {
        const names = (await indexedDB.databases()).map((it) => it.name).filter((it) => it.startsWith('tidegate:erin'));
        const request = indexedDB.open(names[0]);
        request.onsuccess = () => {
          const count = request.result.transaction('items').objectStore('items').count();
          count.onsuccess = () => {
            request.result.close();
            if (count.result > 0) resolve();
            else requestAnimationFrame(check);
          };
        };
      };
      void check();
    });
  });
  await erin.close();
  const frank = await tab('frank', { device: 'desk' });
  await tab('erin', options);
  await texts(frank, 'message', ['written offline']);
});
