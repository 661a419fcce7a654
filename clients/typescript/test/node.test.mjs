// The client in Node against a real node, through a proxy that cuts connections.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import 'fake-indexeddb/auto';
import { connect } from '../dist/index.js';
import { limits, startNode, startProxy } from './support/real_node.mjs';

let node;
let proxy;
const clients = [];

before(async () => {
  if (limits.skip) return;
  node = await startNode();
  proxy = await startProxy(node.port);
});

after(async () => {
  if (limits.skip) return;
  for (const client of clients) client.drop();
  proxy.stop();
  await node.stop();
});

/** Transport of the clients. */
const SCHEME = process.env.SCHEME ?? 'tcp';

function open(user, options = {}) {
  const client = connect({ addresses: [`${SCHEME}://127.0.0.1:${options.port ?? node.port}`], token: () => node.token(user), device: 'one', ...options });
  clients.push(client);
  return client;
}

/** Resolves with the first event that fits. */
const event = (client, name, fits = () => true) =>
  new Promise((resolve) => {
    const off = client.on(name, (value) => {
      if (!fits(value)) return;
      off();
      resolve(value);
    });
  });

test('sends across cut connections: nothing is lost, doubled or out of order', limits, async () => {
  const alice = open('alice', { port: proxy.port, random: () => 0.1 });
  const bob = open('bob', { port: proxy.port, random: () => 0.1 });
  const got = [];
  bob.on('message', (it) => got.push(it));
  await Promise.all([event(alice, 'synced'), event(bob, 'synced')]);
  const texts = Array.from({ length: 60 }, (_, at) => `message ${at + 1}`);
  const last = event(bob, 'message', (it) => it.content.text === texts.at(-1));
  const sends = [];
  for (const [at, text] of texts.entries()) {
    sends.push(alice.send('bob', text));
    if (at % 20 === 10) {
      // The node accepts what is on its way, and its answers are lost with the connection.
      proxy.deaf = true;
      await new Promise((resolve) => setImmediate(resolve));
      proxy.cut();
      proxy.deaf = false;
      await event(alice, 'state', (it) => it.name === 'live');
    }
  }
  const sent = await Promise.all(sends);
  await last;
  assert.ok(proxy.connections > 2, 'connections were cut');
  assert.deepEqual(sent.map((it) => it.seq), texts.map((_, at) => at + 1));
  assert.deepEqual(got.map((it) => [it.seq, it.content.text]), texts.map((text, at) => [at + 1, text]));
  const history = await bob.history('d:alice:bob', { after: 0, limit: 200 });
  assert.deepEqual(history.entries.map((it) => it.content.text), texts);
  assert.equal(history.complete, true);
  await Promise.all([alice.close(), bob.close()]);
});

test('reads, recalls, hides and clears on all devices', limits, async () => {
  const [carol, dave, phone] = [open('carol'), open('dave'), open('dave', { device: 'phone' })];
  await Promise.all([event(carol, 'synced'), event(dave, 'synced'), event(phone, 'synced')]);
  const third = event(dave, 'message', (it) => it.seq === 3);
  const onPhone = event(phone, 'message', (it) => it.seq === 3);
  for (const text of ['one', 'two', 'three']) await carol.send('dave', text);
  await Promise.all([third, onPhone]);
  const key = 'd:carol:dave';
  assert.equal(dave.unread(), 3);
  const receipt = event(phone, 'receipt');
  await dave.read(key);
  assert.deepEqual(await receipt, { conversation: key, seq: 3 });
  assert.equal(dave.unread(), 0);
  assert.equal(phone.unread(), 0);

  const recall = event(phone, 'recall');
  assert.deepEqual(await carol.recall(key, 2), { seq: 4, duplicate: false });
  assert.equal((await recall).recalled, 2);
  assert.deepEqual(await carol.recall(key, 2), { seq: 4, duplicate: true });

  const hidden = event(phone, 'hidden');
  await dave.hide(key, [3]);
  assert.deepEqual(await hidden, { conversation: key, seqs: [3] });
  const cleared = event(phone, 'cleared');
  await dave.clear(key, 1);
  assert.deepEqual(await cleared, { conversation: key, seq: 1 });
  const { entries } = await phone.history(key, { after: 0 });
  assert.deepEqual(entries.map((it) => [it.kind, it.seq]), [['expired', 1], ['recalled', 2], ['expired', 3], ['recall', 4]]);
});

test('follows groups, rooms and signals', limits, async () => {
  const [erin, frank] = [open('erin'), open('frank')];
  await Promise.all([event(erin, 'synced'), event(frank, 'synced')]);
  const created = event(frank, 'change');
  await node.api('/v1/groups', { id: 'team', members: ['erin', 'frank'] });
  assert.equal((await created).change, 'CREATED');
  const inGroup = event(frank, 'message');
  const { seq } = await erin.send('g:team', { data: new Uint8Array([0, 1, 255]) });
  assert.deepEqual((await inGroup).content.data, new Uint8Array([0, 1, 255]));
  const edits = [erin, frank].map((it) => event(it, 'edit'));
  const edit = await erin.edit('g:team', seq, { text: 'better', mentions: ['frank'] });
  assert.deepEqual(edit, { seq: seq + 1, duplicate: false });
  for (const { sender, edited, content } of await Promise.all(edits)) assert.deepEqual([sender, edited, content], ['erin', seq, { text: 'better', mentions: ['frank'] }]);
  await assert.rejects(frank.edit('g:team', seq, 'mine'), { name: 'FORBIDDEN' });
  const signal = event(frank, 'signal');
  await erin.signal('g:team', 'typing', 'soon');
  assert.deepEqual(await signal, { conversation: 'g:team', sender: 'erin', kind: 'typing', content: { text: 'soon' } });
  const left = event(erin, 'change', (it) => it.change === 'LEFT');
  await frank.leave('g:team');
  assert.deepEqual((await left).users, ['frank']);
  assert.equal((await left).seq, edit.seq + 1);
  await assert.rejects(frank.send('g:team', 'still here?'), { name: 'NOT_A_MEMBER', code: 2004, temporary: false, cure: /Join first/ });

  await Promise.all([erin.join('r:hall'), frank.join('hall')]);
  frank.offline();
  frank.online();
  await event(frank, 'synced');
  // The room is entered again at some time after the login; what was sent there before is lost by design.
  let wave;
  frank.on('message', (it) => (wave ??= it));
  while (!wave) await erin.send('r:hall', 'wave');
  assert.deepEqual([wave.room, wave.content.text], [true, 'wave']);
  const likes = event(erin, 'roomStats', (it) => it.reactions);
  await frank.react('r:hall', 'like');
  assert.deepEqual(await likes, { room: 'hall', reactions: [{ kind: 'like', sum: 1, total: 1 }] });
  await assert.rejects(frank.react('elsewhere', 'like'), { name: 'NOT_A_MEMBER' });
});

test('finds a node by assign, and ends with the cure of a bad token', limits, async () => {
  const grace = open('grace', { addresses: [], assign: `http://127.0.0.1:${node.port}` });
  await grace.live();
  assert.equal(grace.user, 'grace');
  const mallory = open('mallory', { token: 'not a token' });
  await assert.rejects(mallory.live(), { name: 'TOKEN_INVALID', cure: /new token/ });
  assert.equal(mallory.state.name, 'closed');
});

test('replaces its token before it ends, on the same connection', limits, async () => {
  const asked = [];
  // The random part of the lead, as large as it gets: the refresh comes 2 s after the login.
  const token = () => node.token('olga', '--ttl', asked.push(Date.now()) === 1 ? '4' : '600');
  const olga = open('olga', { token, random: () => 0.99 });
  const refreshed = event(olga, 'refresh');
  await olga.live();
  const { session } = olga.state;
  assert.deepEqual(await refreshed, { error: undefined });
  assert.deepEqual([olga.state.name, olga.state.session, asked.length], ['live', session, 2]);
  assert.equal(await node.metric('tidegate_token_refreshes_total'), 1);
  await olga.close();
});

test('says with code and cure why a token was not replaced, and stays connected', limits, async () => {
  const tokens = [node.token('paul', '--ttl', '4'), node.token('quinn')];
  const paul = open('paul', { token: () => tokens.shift() ?? Promise.reject(new Error('signed out')), random: () => 0.99 });
  const refused = event(paul, 'refresh');
  await paul.live();
  const { error } = await refused;
  assert.equal(error.name, 'TOKEN_INVALID');
  assert.match(error.cure, /token/);
  assert.equal(paul.state.name, 'live');
  await paul.close();
});

test('is closed for ever by another login of its device', limits, async () => {
  const first = open('heidi');
  await first.live();
  const end = event(first, 'state', (it) => it.name === 'closed');
  await open('heidi').live();
  assert.equal((await end).error.name, 'REPLACED');
});

test('repeats the messages of a dropped client from IndexedDB, and hands over what came meanwhile', limits, async () => {
  const options = { outbox: 'indexeddb', port: proxy.port, user: 'ivan' };
  const judy = open('judy');
  const ivan = open('ivan', options);
  await Promise.all([event(judy, 'synced'), event(ivan, 'synced')]);
  const got = event(ivan, 'message');
  await judy.send('ivan', 'before');
  await got;
  proxy.deaf = true;
  const unanswered = [ivan.send('judy', 'one'), ivan.send('judy', 'two')];
  for (const it of unanswered) it.catch(() => {});
  await event(judy, 'message', (it) => it.content.text === 'two');
  ivan.drop();
  proxy.deaf = false;
  await judy.send('ivan', 'meanwhile');

  const again = connect({ addresses: [`${SCHEME}://127.0.0.1:${proxy.port}`], token: () => node.token('ivan'), device: 'one', ...options });
  clients.push(again);
  const heard = [];
  const accepted = [];
  again.on('message', (it) => heard.push(it.content.text));
  again.on('accepted', (it) => accepted.push([it.seq, it.duplicate]));
  await event(again, 'message', (it) => it.content.text === 'meanwhile');
  // The chain continues: a new message waits for nothing.
  const { seq } = await again.send('judy', 'three');
  assert.equal(seq, 5);
  assert.deepEqual(accepted, [[2, true], [3, true], [5, false]]);
  assert.ok(!heard.includes('before'), 'a message was handed over twice');
});

test('goes on after the node was killed', limits, async () => {
  const [kim, leo] = [open('kim', { random: () => 0.1 }), open('leo', { random: () => 0.1 })];
  await Promise.all([event(kim, 'synced'), event(leo, 'synced')]);
  const got = [];
  leo.on('message', (it) => got.push([it.seq, it.content.text]));
  const texts = Array.from({ length: 400 }, (_, at) => `message ${at + 1}`);
  const last = event(leo, 'message', (it) => it.content.text === texts.at(-1));
  const early = event(leo, 'message', (it) => it.content.text === texts[20]);
  const sends = texts.map((text) => kim.send('leo', text));
  await early;
  await node.restart();
  const sent = await Promise.all(sends);
  await last;
  assert.deepEqual(sent.map((it) => it.seq), texts.map((_, at) => at + 1));
  assert.deepEqual(got, texts.map((text, at) => [at + 1, text]));
});
