// Tabs that share a connection, over a channel and locks that the test controls; each tab has an engine that only records.
import assert from 'node:assert/strict';
import { beforeEach, test } from 'node:test';
import { TidegateError } from '../dist/index.js';
import { SharedCore } from '../dist/tabs.js';

let channels;
let posted;
let waiting;

/** A channel whose posts are delivered by `deliver`, in order. */
class FakeChannel {
  constructor() {
    channels.push(this);
  }
  postMessage(data) {
    posted.push({ from: this, data: structuredClone(data) });
  }
  close() {
    channels = channels.filter((it) => it !== this);
  }
}

/** One lock, whose requests the test grants. */
const locks = {
  request: (name, { signal }, run) =>
    new Promise((resolve, reject) => {
      const grant = () => resolve(run());
      waiting.push(grant);
      signal.addEventListener('abort', () => {
        waiting = waiting.filter((it) => it !== grant);
        reject(signal.reason);
      });
    }),
};

/** Gives the lock to the tab that has waited longest. */
const grant = () => waiting.shift()();

beforeEach(() => {
  [channels, posted, waiting] = [[], [], []];
  globalThis.BroadcastChannel = FakeChannel;
  Object.defineProperty(globalThis, 'navigator', { value: { locks }, configurable: true });
});

/** Delivers what was posted, and what is posted meanwhile. */
async function deliver() {
  await new Promise((resolve) => setImmediate(resolve));
  for (let it; (it = posted.shift()); ) {
    for (const channel of [...channels]) if (channel !== it.from) channel.onmessage({ data: it.data });
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Opens a tab; `calls` collects the calls that its engine gets while it leads. */
function tab() {
  const calls = [];
  const events = [];
  const lent = {
    engine: () => ({ call: (method, args) => new Promise((resolve, reject) => calls.push({ method, args, resolve, reject })), close: async () => {}, drop() {} }),
    plain: (error) => (error instanceof TidegateError ? error : new TidegateError({ code: 0, name: 'BAD_REQUEST', message: String(error), temporary: false, reconnect: 'never' })).toJSON(),
    revive: (error) => new TidegateError(error),
    closed: () => new TidegateError({ code: 0, name: 'CLOSED', message: '', temporary: false, reconnect: 'never' }),
  };
  const core = new SharedCore('name', lent, (event) => events.push(event));
  return { core, calls, events };
}

const SEND = [{ toUser: 'bob' }, { text: 'hi' }, {}];
const ITEM = { msgId: 'm1', at: 0, to: { toUser: 'bob' }, content: { text: 'hi' }, chained: false };

test('a call that crosses an announcement of the leader is carried out once', async () => {
  const leader = tab();
  grant();
  const follower = tab();
  await deliver();
  // A third tab says hello, so the leader announces itself again while the call is on its way.
  tab();
  const outcome = follower.core.call('send', SEND);
  await deliver();
  assert.equal(leader.calls.length, 1);
  leader.calls[0].args.at(-1)(ITEM);
  leader.calls[0].resolve({ seq: 1 });
  await deliver();
  assert.deepEqual(await outcome, { seq: 1 });
});

test('a call that is made before a leader is known is carried out once', async () => {
  const leader = tab();
  const follower = tab();
  const outcome = follower.core.call('send', SEND);
  grant();
  await deliver();
  assert.equal(leader.calls.length, 1);
  leader.calls[0].resolve({ seq: 1 });
  await deliver();
  assert.deepEqual(await outcome, { seq: 1 });
});

test('the next leader carries out what the last one has not finished, under the same id', async () => {
  const leader = tab();
  grant();
  const [second, third] = [tab(), tab()];
  await deliver();
  void third.core.call('send', SEND);
  void third.core.call('history', ['d:a:b', {}]);
  await deliver();
  leader.calls[0].args.at(-1)(ITEM);
  await deliver();
  leader.core.drop();
  await deliver();
  grant();
  await deliver();
  assert.deepEqual(second.calls.map((it) => it.method), ['resend', 'history']);
  assert.deepEqual(second.calls[0].args, [ITEM]);
});

test('an item of a call that is over changes nothing', async () => {
  tab();
  grant();
  const follower = tab();
  await deliver();
  follower.core.call('send', SEND).catch(() => {});
  const { tab: name, id } = posted.at(-1).data;
  assert.doesNotThrow(() => channels[1].onmessage({ data: { kind: 'item', tab: name, id: id + 1, item: ITEM } }));
});

test('a call whose arguments can not be copied rejects, and leaves the others alone', async () => {
  const leader = tab();
  grant();
  const follower = tab();
  await deliver();
  await assert.rejects(follower.core.call('send', [{ toUser: 'bob' }, { text: 'hi', extra: () => {} }, {}]), { name: 'BAD_REQUEST' });
  await assert.rejects(leader.core.call('send', [{ toUser: 'bob' }, { text: 'hi', extra: () => {} }, {}]), { name: 'BAD_REQUEST' });
  await deliver();
  assert.deepEqual(leader.calls, []);
  const outcome = follower.core.call('sync', []);
  leader.core.drop();
  const next = tab();
  await deliver();
  waiting.pop()();
  await deliver();
  assert.deepEqual(next.calls.map((it) => it.method), ['sync']);
  next.calls[0].resolve('synced');
  await deliver();
  assert.equal(await outcome, 'synced');
});
