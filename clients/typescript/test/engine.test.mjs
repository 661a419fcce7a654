// The driver with a socket, a clock and a storage that the test controls.
import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import 'fake-indexeddb/auto';
import { connect } from '../dist/index.js';

/** A socket that records what is written; the test plays the node. */
class FakeSocket {
  static all = [];
  sent = [];
  constructor(url) {
    this.url = url;
    FakeSocket.all.push(this);
  }
  send(text) {
    this.sent.push(JSON.parse(text));
  }
  close() {}
  frame(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
  }
}

/** Lets everything run that waits for no timer. */
const settle = () => new Promise((resolve) => setImmediate(resolve));

const limits = { timeout: 10_000 };

/** Waits until `isDone` returns true. */
async function until(isDone) {
  while (!isDone()) await settle();
}

async function open(options = {}) {
  FakeSocket.all = [];
  const client = connect({ addresses: ['ws://a', 'ws://b'], token: 't', user: 'alice', random: () => 0.5, webSocket: (url) => new FakeSocket(url), ...options });
  await settle();
  return client;
}

/** Lets the last socket log in; returns it. */
function login() {
  const socket = FakeSocket.all.at(-1);
  socket.onopen();
  const { hello, id } = socket.sent[0];
  socket.frame({ id, welcome: { session: 's', node: 'n1', nextId: hello.nextId } });
  return socket;
}

test('never connects again after it was dropped', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    let stored;
    const store = {
      load: async () => ({ items: [], positions: undefined, tail: undefined }),
      put: () => new Promise((resolve) => (stored = resolve)),
      remove: async () => {},
      savePositions: async () => {},
    };
    const client = await open({ outbox: store });
    assert.equal(FakeSocket.all.length, 1);
    client.send('bob', 'hi').catch(() => {});
    await settle();
    client.drop();
    await settle();
    stored();
    await settle();
    for (let n = 0; n < 5; n++) {
      mock.timers.tick(20_000);
      await settle();
    }
    assert.equal(FakeSocket.all.length, 1);
  } finally {
    mock.timers.reset();
  }
});

test('tries the next address when one fails', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    const client = await open();
    const names = [];
    client.on('state', (it) => names.push(it.name));
    FakeSocket.all[0].onclose();
    mock.timers.tick(250);
    await settle();
    assert.deepEqual(FakeSocket.all.map((it) => it.url), ['ws://a', 'ws://b']);
    assert.deepEqual(names, ['waiting', 'connecting']);
    client.drop();
    await settle();
  } finally {
    mock.timers.reset();
  }
});

test('names the reason while it waits: no token, no connection, or none that is known', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    const refuse = (what) => () => {
      throw new Error(what);
    };
    const failing = await open({ token: refuse('signed out') });
    await settle();
    const { error } = failing.state;
    assert.deepEqual([failing.state.name, error.name, error.message, error.temporary], ['waiting', 'NO_TOKEN', 'Error: signed out', true]);
    assert.match(error.cure, /token/);
    failing.drop();

    const invalid = await open({ webSocket: refuse('invalid URL') });
    assert.deepEqual([invalid.state.name, invalid.state.error.name], ['waiting', 'UNREACHABLE']);
    invalid.drop();

    const client = await open();
    FakeSocket.all[0].onerror({ message: 'refused' });
    assert.deepEqual([client.state.error.name, client.state.error.message], ['UNREACHABLE', 'ws://a: refused']);
    mock.timers.tick(1000);
    await settle();
    login().onclose();
    assert.deepEqual([client.state.name, client.state.error], ['waiting', undefined]);
    client.drop();
  } finally {
    mock.timers.reset();
  }
});

test('tries the next address when a node refuses the login, or does not answer it', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    for (const refuses of [true, false]) {
      const client = await open();
      FakeSocket.all[0].onopen();
      if (refuses) FakeSocket.all[0].frame({ close: { code: 3005, name: 'OVERLOADED', reconnect: 'RECONNECT_AFTER', afterMs: 500 } });
      mock.timers.tick(15_000);
      mock.timers.tick(1000);
      await settle();
      assert.deepEqual(FakeSocket.all.map((it) => it.url), ['ws://a', 'ws://b'], `refuses: ${refuses}`);
      client.drop();
    }
  } finally {
    mock.timers.reset();
  }
});

test('goes to an alternate when its node closes it before the move, and past those that fail', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    const client = await open();
    const socket = login();
    socket.frame({ goAway: { afterMs: 5000, windowMs: 1000, alternates: ['tcp://x', 'ws://c', 'ws://d'] } });
    mock.timers.tick(5400);
    socket.frame({ close: { code: 3001, name: 'DRAINING', reconnect: 'RECONNECT_AFTER', afterMs: 1000 } });
    for (let n = 0; n < 3; n++) {
      mock.timers.tick(3000);
      await settle();
      FakeSocket.all.at(-1).onclose();
    }
    // The node that drains is the last one to be asked again.
    assert.deepEqual(FakeSocket.all.map((it) => it.url), ['ws://a', 'ws://c', 'ws://d', 'ws://b']);
    client.drop();
  } finally {
    mock.timers.reset();
  }
});

test('moves to another address that it knows when goAway names none', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    for (const addresses of [['ws://a', 'ws://b'], ['ws://a']]) {
      const client = await open({ addresses });
      login().frame({ goAway: {} });
      mock.timers.tick(0);
      await settle();
      assert.deepEqual(FakeSocket.all.map((it) => it.url), ['ws://a', addresses.at(-1)]);
      client.drop();
    }
  } finally {
    mock.timers.reset();
  }
});

test('tries addresses that are added to its list later', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    const addresses = ['ws://a'];
    const client = await open({ addresses });
    addresses.push('ws://b');
    FakeSocket.all[0].onclose();
    await settle();
    mock.timers.tick(1000);
    await settle();
    assert.deepEqual(FakeSocket.all.map((it) => it.url), ['ws://a', 'ws://b']);
    client.drop();
  } finally {
    mock.timers.reset();
  }
});

test('asks the application for another token while it is connected, and goes on when it has none', limits, async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    const tokenUntil = (seconds) => `h.${btoa(JSON.stringify({ sub: 'alice', exp: Date.now() / 1000 + seconds }))}.s`;
    const answers = [() => tokenUntil(600), () => Promise.reject(new Error('signed out')), () => tokenUntil(3600)];
    const client = await open({ token: () => answers.shift()() });
    const outcomes = [];
    client.on('refresh', ({ error }) => outcomes.push(error?.name ?? 'done'));
    const socket = FakeSocket.all.at(-1);
    socket.onopen();
    const { hello, id } = socket.sent[0];
    socket.frame({ id, welcome: { session: 's', node: 'n1', nextId: hello.nextId, heartbeatMs: 1e9, serverTime: Date.now(), features: ['refresh'] } });
    socket.frame({ id: socket.sent[1].id, syncEnd: {} });
    mock.timers.tick(375_000);
    await settle();
    assert.deepEqual([outcomes, client.state.name], [['NO_TOKEN'], 'live']);
    mock.timers.tick(200_000);
    await settle();
    const { id: request } = socket.sent.find((it) => it.refresh);
    socket.frame({ id: request, done: {} });
    assert.deepEqual([outcomes, client.state.name, FakeSocket.all.length, answers.length], [['NO_TOKEN', 'done'], 'live', 1, 0]);
    client.drop();
  } finally {
    mock.timers.reset();
  }
});

test('sends reactions only to a node that has them', limits, async () => {
  for (const features of [undefined, ['refresh'], ['react']]) {
    const client = await open();
    await assert.rejects(client.react('r:hall', 'like'), { name: 'OFFLINE' });
    const socket = FakeSocket.all.at(-1);
    socket.onopen();
    const { hello, id } = socket.sent[0];
    socket.frame({ id, welcome: { session: 's', node: 'n1', nextId: hello.nextId, features } });
    const outcome = client.react('r:hall', 'like').catch((error) => error);
    await settle();
    const sent = socket.sent.filter((it) => it.react);
    for (const { id } of sent) socket.frame({ id, done: {} });
    const error = await outcome;
    client.drop();
    if (features?.includes('react')) {
      assert.deepEqual([error, sent.map((it) => it.react)], [undefined, [{ room: 'hall', kind: 'like' }]]);
    } else {
      assert.deepEqual([error.name, error.code, error.message, sent], ['UNSUPPORTED', 0, 'The node lacks react', []]);
      assert.match(error.cure, /version/);
    }
  }
});

test('refuses what is no message, without a hole in the chain', limits, async () => {
  const client = await open();
  const socket = login();
  const sends = () => socket.sent.filter((it) => it.send).map((it) => it.send);
  client.send('bob', 'one').catch(() => {});
  await settle();
  const bad = { code: 0, name: 'BAD_REQUEST', temporary: false };
  for (const content of [{ text: 'two', count: 1n }, null]) await assert.rejects(client.send('bob', content), bad);
  client.send('bob', 'two').catch(() => {});
  client.send('bob', 'mine', { msgId: 'id' }).catch(() => {});
  await assert.rejects(client.send('bob', 'mine', { msgId: 'id' }), bad);
  await settle();
  assert.deepEqual(sends().map((it) => it.content.text), ['one', 'two', 'mine']);
  assert.equal(sends()[0].nextId, sends()[1].msgId);
  client.drop();
});

test('stores a message before it is sent, and forgets it when it is answered', async () => {
  const items = new Map();
  let release;
  const store = {
    load: async () => ({ items: [], positions: undefined, tail: undefined }),
    async put(item) {
      await new Promise((resolve) => (release = resolve));
      items.set(item.msgId, item);
    },
    remove: async (msgId) => void items.delete(msgId),
    savePositions: async () => {},
  };
  const client = await open({ outbox: store });
  const [socket] = FakeSocket.all;
  socket.onopen();
  const { hello, id } = socket.sent[0];
  socket.frame({ id, welcome: { session: 's', node: 'n1', nextId: hello.nextId } });
  const sent = client.send('bob', 'hi');
  await settle();
  assert.equal(socket.sent.some((it) => it.send), false);
  release();
  await settle();
  const frame = socket.sent.find((it) => it.send);
  assert.equal(frame.send.msgId, hello.nextId);
  assert.equal(items.size, 1);
  socket.frame({ id: frame.id, sendAck: { conversation: 'd:alice:bob', msgId: frame.send.msgId, seq: 1, time: 5 } });
  assert.deepEqual(await sent, { conversation: 'd:alice:bob', msgId: frame.send.msgId, seq: 1, time: 5, duplicate: false });
  assert.equal(items.size, 0);
  client.drop();
  await settle();
});

/** Returns a token whose only claim is the user. */
const tokenOf = (user) => `head.${Buffer.from(JSON.stringify({ sub: user })).toString('base64url')}.signature`;

test('keeps users without an option `user` apart, by their first tokens', limits, async () => {
  const names = async () => (await indexedDB.databases()).map((it) => it.name).sort();
  for (const user of ['ann', 'ben']) {
    const client = await open({ user: undefined, token: tokenOf(user), device: 'web', outbox: 'indexeddb' });
    await client.close();
  }
  assert.deepEqual(await names(), ['tidegate:ann:ws://a:web', 'tidegate:ben:ws://a:web']);

  const shared = [];
  const { navigator, BroadcastChannel } = globalThis;
  const locks = { request: async (name) => void shared.push(name) };
  Object.defineProperty(globalThis, 'navigator', { value: { locks }, configurable: true });
  globalThis.BroadcastChannel = class {
    constructor(name) {
      shared.push(name);
    }
    postMessage() {}
    close() {}
  };
  try {
    for (const user of ['ann', 'ben']) {
      const client = await open({ user: undefined, token: async () => tokenOf(user), device: 'web', tabs: 'shared' });
      await until(() => shared.length === (user === 'ann' ? 3 : 6));
      client.drop();
    }
  } finally {
    globalThis.BroadcastChannel = BroadcastChannel;
    Object.defineProperty(globalThis, 'navigator', { value: navigator, configurable: true });
  }
  // The channel, the lock of the connection, and the lock of the tab.
  const mine = shared.map((it) => it.replace(/:web:\w+$/, ':web'));
  assert.deepEqual([...new Set(mine)], ['tidegate:ann:ws://a:web', 'tidegate:ben:ws://a:web']);
});

test('asks for the first token until it has one, or until it is closed', limits, async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    let asked = 0;
    const token = async () => {
      if (++asked < 3) throw new Error('no network');
      return tokenOf('cleo');
    };
    const options = { user: undefined, device: 'web', outbox: 'indexeddb' };
    const client = await open({ ...options, token });
    await settle();
    const { error, retryAt } = client.state;
    assert.deepEqual([error.name, error.message, error.temporary, retryAt > Date.now()], ['NO_TOKEN', 'Error: no network', true, true]);
    for (let n = 0; n < 5; n++) {
      mock.timers.tick(1000);
      await settle();
    }
    await until(() => FakeSocket.all.length === 1);
    client.drop();
    const hopeless = await open({ ...options, token: () => new Promise(() => {}) });
    const sent = hopeless.send('bob', 'hi');
    await hopeless.close();
    await assert.rejects(sent, { name: 'CLOSED' });
    assert.equal(hopeless.state.name, 'closed');
    let fail;
    const late = await open({ ...options, token: () => new Promise((_, reject) => (fail = reject)) });
    await late.close();
    fail(new Error('late'));
    await settle();
    assert.equal(late.state.name, 'closed');
  } finally {
    mock.timers.reset();
  }
});

test('names what a browser says of a connection that could not be made', async () => {
  const { navigator } = globalThis;
  try {
    for (const [onLine, words] of [[true, 'see the console of the browser'], [false, 'the browser is offline'], [undefined, 'no connection']]) {
      Object.defineProperty(globalThis, 'navigator', { value: { onLine }, configurable: true });
      const client = await open();
      FakeSocket.all[0].onerror({});
      assert.deepEqual([client.state.error.name, client.state.error.message], ['UNREACHABLE', `ws://a: ${words}`]);
      client.drop();
    }
  } finally {
    Object.defineProperty(globalThis, 'navigator', { value: navigator, configurable: true });
  }
});

test('is closed with an error when the platform lacks what the options need', limits, async () => {
  // Node has no Web Locks of its own, or none in its older versions.
  const { navigator } = globalThis;
  Object.defineProperty(globalThis, 'navigator', { value: {}, configurable: true });
  try {
    const client = await open({ tabs: 'shared' });
    await assert.rejects(client.live(), { name: 'UNSUPPORTED' });
    await assert.rejects(client.send('bob', 'hi'), { name: 'UNSUPPORTED' });
    await client.close();
  } finally {
    Object.defineProperty(globalThis, 'navigator', { value: navigator, configurable: true });
  }
});

test('is closed with an error when no address can be used', limits, async () => {
  for (const options of [{ addresses: [] }, { addresses: ['udp://a'] }]) {
    const client = await open(options);
    await assert.rejects(client.live(), { name: 'NO_ADDRESS' });
    client.drop();
  }
});

test('stores no positions after a storage that could not be read', async () => {
  const saved = [];
  const store = { load: async () => Promise.reject(new Error('broken')), put: async () => {}, remove: async () => {}, savePositions: async (changed) => void saved.push(changed) };
  const client = await open({ outbox: store });
  const socket = login();
  await settle();
  socket.frame({ id: socket.sent[1].id, conversationState: { conversation: 'd:alice:bob', maxSeq: 7 } });
  socket.frame({ id: socket.sent[1].id, syncEnd: {} });
  await settle();
  assert.equal(client.conversations().length, 1);
  assert.deepEqual(saved, []);
  client.drop();
});

test('gives up a connection with a malformed frame, and hands over what was lost with it', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    const push = (seq, more = {}) => ({ conversation: 'd:alice:bob', seq, sender: 'bob', msgId: `b${seq}`, content: { text: `t${seq}` }, ...more });
    for (const text of ['null', '{', '{"push":{}}', JSON.stringify({ push: push(2, { content: { data: '!' } }) })]) {
      const client = await open();
      const seqs = [];
      client.on('message', (it) => seqs.push(it.seq));
      const socket = login();
      socket.frame({ id: socket.sent[1].id, syncEnd: {} });
      socket.frame({ push: push(1) });
      assert.doesNotThrow(() => socket.onmessage({ data: text }), text);
      assert.equal(client.state.name, 'waiting', text);
      mock.timers.tick(1000);
      await settle();
      const next = login();
      assert.deepEqual(next.sent[1].sync.positions, [{ conversation: 'd:alice:bob', seq: 1 }], text);
      next.frame({ push: push(2) });
      assert.deepEqual(seqs, [1, 2], text);
      client.drop();
    }
  } finally {
    mock.timers.reset();
  }
});

test('gives up a connection when a push that it held is malformed', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    const client = await open();
    const socket = login();
    // Before the sync is complete pushes are held, until a timer ends the wait.
    socket.frame({ push: { conversation: 'd:alice:bob', seq: 3, content: { data: '!' } } });
    assert.doesNotThrow(() => mock.timers.tick(1000));
    assert.equal(client.state.name, 'waiting');
    client.drop();
  } finally {
    mock.timers.reset();
  }
});

test('never goes from a secure address to a plain one', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  const { fetch } = globalThis;
  globalThis.fetch = async () => ({ status: 200, json: async () => ({ addresses: [{ address: 'ws://evil' }, { address: 'wss://b' }], ttlMs: 60_000 }) });
  try {
    for (const options of [{ addresses: ['wss://a'] }, { addresses: [], assign: 'https://a' }]) {
      const client = await open(options);
      await until(() => FakeSocket.all.length === 1);
      const socket = login();
      socket.frame({ goAway: { alternates: ['ws://evil', 'WS://evil', 'c:1'] } });
      mock.timers.tick(0);
      await settle();
      const move = FakeSocket.all[1];
      assert.equal(move.url, 'wss://c:1');
      move.onclose();
      socket.onclose();
      for (let n = 0; n < 10; n++) {
        mock.timers.tick(20_000);
        await settle();
        FakeSocket.all.at(-1).onclose?.();
      }
      assert.ok(FakeSocket.all.length > 5);
      assert.deepEqual(FakeSocket.all.filter((it) => !it.url.startsWith('wss:')).map((it) => it.url), []);
      client.drop();
    }
  } finally {
    globalThis.fetch = fetch;
    mock.timers.reset();
  }
});

test('sends the cookies of a browser to assign as the option credentials says', async () => {
  const { fetch } = globalThis;
  const asked = [];
  globalThis.fetch = async (_url, { credentials }) => {
    asked.push(credentials);
    return { status: 200, json: async () => ({ addresses: [], ttlMs: 60_000 }) };
  };
  try {
    for (const credentials of ['include', 'omit', undefined]) {
      const client = await open({ addresses: [], assign: 'http://service:1', credentials });
      await until(() => FakeSocket.all.length === 1);
      client.drop();
    }
    assert.deepEqual(asked, ['include', 'omit', 'same-origin']);
  } finally {
    globalThis.fetch = fetch;
  }
});

test('asks assign again once its answer is too old, though an address of it was not tried', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  const { fetch } = globalThis;
  const answers = [['ws://dead', 'ws://alive'], ['ws://fresh']];
  const asked = [];
  globalThis.fetch = async (url) => {
    asked.push(String(url));
    return { status: 200, json: async () => ({ addresses: (answers[asked.length - 1] ?? []).map((address) => ({ address })), ttlMs: 60_000 }) };
  };
  const attempt = async (count) => {
    for (let n = 0; FakeSocket.all.length < count; n++) {
      assert.ok(n < 100, `attempt ${count} never began`);
      mock.timers.tick(100);
      await settle();
    }
    return FakeSocket.all.at(-1);
  };
  try {
    const client = await open({ addresses: [], assign: 'http://service:1' });
    (await attempt(1)).onclose();
    const second = await attempt(2);
    assert.deepEqual(FakeSocket.all.map((it) => it.url), ['ws://dead', 'ws://alive']);
    assert.equal(asked.length, 1, 'within its time the answer holds for the next address');
    login();
    mock.timers.tick(60_000);
    await settle();
    second.onclose();
    const third = await attempt(3);
    assert.equal(third.url, 'ws://alive', 'the address that worked comes first');
    third.onclose();
    assert.equal((await attempt(4)).url, 'ws://fresh', 'and then those of the new answer');
    assert.deepEqual(asked, Array(2).fill('http://service:1/v1/assign?transport=ws'));
    client.drop();
  } finally {
    globalThis.fetch = fetch;
    mock.timers.reset();
  }
});

test('closes lastingly when a later token names another user', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    for (const options of [{ user: undefined }, { user: 'ann' }]) {
      const tokens = ['ann', 'ben', 'ann'].map(tokenOf);
      const client = await open({ ...options, token: () => tokens.shift() });
      FakeSocket.all[0].onclose();
      mock.timers.tick(1000);
      await settle();
      assert.equal(client.state.error.name, 'OTHER_USER');
      await assert.rejects(client.live(), { name: 'OTHER_USER' });
      mock.timers.tick(60_000);
      await settle();
      assert.equal(FakeSocket.all.length, 1);
      client.online();
      await settle();
      assert.equal(FakeSocket.all.length, 2);
      client.drop();
    }
  } finally {
    mock.timers.reset();
  }
});
