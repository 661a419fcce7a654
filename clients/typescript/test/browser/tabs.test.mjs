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
async function tab(user, options, at = node) {
  const page = await browser.more();
  const all = { addresses: [`ws://127.0.0.1:${at.port}`], tokens: [at.token(user)], user, ...options };
  await page.evaluate(async (it) => {
    const { connect } = await import('/dist/browser.js');
    window.seen = [];
    const { tokens, spread, ...options } = it;
    window.asked = 0;
    const token = () => tokens[Math.min(window.asked++, tokens.length - 1)];
    window.client = connect({ ...options, token, ...(spread ? { random: () => spread } : {}) });
    for (const name of ['message', 'sent', 'state', 'synced', 'refresh']) window.client.on(name, (value) => window.seen.push({ name, value }));
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
const connected = async (user, at = node) => (await (await fetch(`${at.admin}/v1/users/${user}/presence`)).json()).devices.map((it) => it.device).sort();

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
  assert.deepEqual(denied, ['NOT_A_MEMBER', 2004, true]);

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

test('tabs that share a connection replace its token once, and all of them see that', limits, async () => {
  const options = { device: 'web', tabs: 'shared', tokens: [node.token('kate', '--ttl', '6'), node.token('kate')], spread: 0.99 };
  const first = await tab('kate', options);
  const second = await tab('kate', options);
  for (const page of [first, second]) {
    await page.waitForFunction(() => window.seen.some((event) => event.name === 'refresh'));
    assert.deepEqual(await page.evaluate(() => window.seen.filter((event) => event.name === 'refresh').map((event) => event.value.error)), [undefined]);
    assert.equal(await page.evaluate(() => window.client.state.name), 'live');
  }
  assert.deepEqual(await Promise.all([first, second].map((page) => page.evaluate(() => window.asked))), [2, 0]);
  assert.equal(await node.metric('tidegate_token_refreshes_total'), 1);
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

test('tabs of a browser do not end each other on a node with one session for each user, but another device ends them all', limits, async () => {
  const strict = await startNode({ origins: [browser.origin], settings: ['login.devices=user'] });
  try {
    const state = (page) => page.evaluate(() => [window.client.state.name, window.client.state.error?.name]);
    const ended = (page) => page.waitForFunction(() => window.client.state.name === 'closed');
    const tabs = [];
    for (const mode of ['shared', 'shared', 'own', 'own']) tabs.push(await tab(mode === 'own' ? 'nina' : 'mike', { device: 'web-7f3a', tabs: mode }, strict));
    assert.deepEqual([await connected('mike', strict), await connected('nina', strict)], [['web-7f3a'], ['web-7f3a-1', 'web-7f3a-2']]);
    for (const page of tabs) assert.deepEqual(await state(page), ['live', undefined]);
    for (const user of ['mike', 'nina']) await tab(user, { device: 'phone' }, strict);
    for (const page of tabs) {
      await ended(page);
      assert.deepEqual(await state(page), ['closed', 'REPLACED']);
    }
    assert.deepEqual([await connected('mike', strict), await connected('nina', strict)], [['phone'], ['phone']]);
    // Without `tabs` a second tab is the same device: it replaces the first one, on any node.
    const single = await tab('pia', { device: 'web-7f3a' }, strict);
    await tab('pia', { device: 'web-7f3a' }, strict);
    await ended(single);
    assert.deepEqual(await state(single), ['closed', 'REPLACED']);
  } finally {
    await strict.stop();
  }
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
