// The driver with a socket, a clock and a storage that the test controls.
import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
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

async function open(options = {}) {
  FakeSocket.all = [];
  const client = connect({ addresses: ['ws://a', 'ws://b'], token: 't', user: 'alice', random: () => 0.5, webSocket: (url) => new FakeSocket(url), ...options });
  await settle();
  return client;
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
