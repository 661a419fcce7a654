// Tabs that share a connection, over a channel and locks that the test controls; each tab has an engine that only records.
import assert from 'node:assert/strict';
import { beforeEach, test } from 'node:test';
import { Feed } from '../dist/feed.js';
import { local, TidegateError, typed } from '../dist/error.js';
import { SharedCore } from '../dist/tabs.js';

let channels;
let posted;
let waiting;
/** Locks of tabs, with the requests that wait for them. */
let held;
/** Grants of such locks that the test keeps back; `undefined` if it keeps none. */
let kept;

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

/** Lets the next tab have a lock that has become free. */
function free(name) {
  const next = held.get(name).shift();
  if (next) next();
  else held.delete(name);
}

/** Locks: the test grants that of the connection, a lock of a tab is granted when it is free. */
const locks = {
  request: (name, { signal }, run) =>
    new Promise((resolve, reject) => {
      const grant = () => {
        const used = run();
        resolve(used);
        if (name !== 'tidegate:name') Promise.resolve(used).then(() => free(name));
      };
      if (name !== 'tidegate:name') {
        if (held.has(name)) return void held.get(name).push(grant);
        held.set(name, []);
        return kept ? void kept.push(grant) : grant();
      }
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
  [channels, posted, waiting, held, kept] = [[], [], [], new Map(), undefined];
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
  let emit;
  const lent = {
    engine: (deliver) => ((emit = deliver), { call: (method, args) => new Promise((resolve, reject) => calls.push({ method, args, resolve, reject })), close: async () => {}, drop() {} }),
    TidegateError,
    local,
    typed,
  };
  const core = new SharedCore('name', lent, (event) => events.push(event));
  /** Delivers events of the engine, while this tab leads. */
  const say = (all) => all.forEach((event) => emit(event, {}));
  return { core, calls, events, say };
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

test('each tab has the edited content of a last entry, also one that is opened later', async () => {
  const leader = tab();
  grant();
  const follower = tab();
  await deliver();
  const feed = new Feed(() => {}, () => {});
  feed.deliver({ conversation: 'd:alice:bob', seq: 1, sender: 'bob', content: { text: 'hi' } }, false);
  feed.deliver({ conversation: 'd:alice:bob', seq: 2, sender: 'bob', edit: { seq: 1, content: { text: 'better' } } }, false);
  leader.say(feed.events);
  const late = tab();
  await deliver();
  for (const { events } of [leader, follower, late]) {
    const { value } = events.findLast((it) => it.name === 'conversation');
    assert.deepEqual([value.last.seq, value.last.content.text, value.last.edit], [1, 'better', 2]);
  }
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

/** A tab that leads, and others that follow it. */
async function tabs(count) {
  const leader = tab();
  grant();
  const others = Array.from({ length: count }, tab);
  await deliver();
  return [leader, ...others];
}

const methods = ({ calls }) => calls.map((it) => [it.method, ...it.args]);

/** Carries out a call, whose engine succeeds or fails. */
async function carried(caller, leader, method, error) {
  const before = leader.calls.length;
  const outcome = caller.core.call(method, ['g:tea']).then(() => 'done', (it) => it.name);
  await deliver();
  for (const it of leader.calls.slice(before)) {
    if (error) it.reject(error);
    else it.resolve();
  }
  await deliver();
  return outcome;
}

test('the reports of a conversation end with the last tab that watches it', async () => {
  const [leader, second, third] = await tabs(2);
  for (const it of [leader, second, third, third]) assert.equal(await carried(it, leader, 'watch'), 'done');
  // Each watch goes to the node, whose answer brings the whole list.
  assert.deepEqual(methods(leader), Array(4).fill(['watch', 'g:tea']));
  for (const it of [third, leader]) assert.equal(await carried(it, leader, 'unwatch'), 'done');
  assert.equal(leader.calls.length, 4);
  assert.equal(await carried(second, leader, 'unwatch'), 'done');
  assert.deepEqual(methods(leader).at(-1), ['unwatch', 'g:tea']);
});

test('a tab that ends watches nothing any more, and one whose watch was refused does not count', async () => {
  const [leader, second, third] = await tabs(2);
  const refused = new TidegateError({ code: 2004, name: 'NOT_A_MEMBER', message: '', temporary: false, reconnect: 'never' });
  assert.equal(await carried(third, leader, 'watch', refused), 'NOT_A_MEMBER');
  assert.equal(await carried(second, leader, 'watch'), 'done');
  second.core.drop();
  await deliver();
  assert.deepEqual(methods(leader).at(-1), ['unwatch', 'g:tea']);
  assert.equal(leader.calls.length, 3);
});

test('the next leader watches what the tabs watch', async () => {
  const [leader, second, third, fourth, fifth] = await tabs(4);
  for (const it of [second, third, fourth]) await carried(it, leader, 'watch');
  await carried(fourth, leader, 'unwatch');
  const refused = new TidegateError({ code: 2004, name: 'NOT_A_MEMBER', message: '', temporary: false, reconnect: 'never' });
  // Its second watch is refused, so the first one is over as well.
  await carried(fifth, leader, 'watch');
  await carried(fifth, leader, 'watch', refused);
  leader.core.drop();
  await deliver();
  grant();
  await deliver();
  assert.deepEqual(methods(second), Array(2).fill(['watch', 'g:tea']), 'its own watch, and that of the third tab');
  for (const it of second.calls) it.resolve();
  await deliver();
  assert.equal(await carried(second, second, 'unwatch'), 'done');
  assert.equal(second.calls.length, 2);
  third.core.drop();
  await deliver();
  assert.deepEqual(methods(second).at(-1), ['unwatch', 'g:tea']);
});

test('a watch that the node has ended is one of no tab', async () => {
  const [leader, second, third] = await tabs(2);
  leader.say([{ name: 'state', value: { name: 'live', node: 'n1', session: 's1', user: 'ann' } }]);
  for (const it of [second, third]) await carried(it, leader, 'watch');
  for (const online of [['bob'], undefined]) leader.say([{ name: 'presence', value: { conversation: 'g:tea', online } }]);
  await deliver();
  assert.equal(await carried(third, leader, 'watch'), 'done');
  assert.equal(await carried(third, leader, 'unwatch'), 'done');
  assert.deepEqual(methods(leader).at(-1), ['unwatch', 'g:tea'], 'the second tab does not count');
  leader.core.drop();
  await deliver();
  grant();
  await deliver();
  assert.deepEqual([...methods(second), ...methods(third)], [], 'nothing is watched again');
});

test('a tab does not know who is online until the next leader has a report', async () => {
  const [leader, second, third] = await tabs(2);
  const report = (it, online) => it.say([{ name: 'presence', value: { conversation: 'g:tea', online } }]);
  report(leader, ['bob']);
  await deliver();
  leader.core.drop();
  await deliver();
  grant();
  await deliver();
  report(second, ['carol']);
  await deliver();
  for (const { events } of [second, third]) {
    assert.deepEqual(events.filter((it) => it.name === 'presence').map((it) => it.value.online), [['bob'], undefined, ['carol']]);
  }
});

test('a tab calls the leader only when it has the lock that shows its end', async () => {
  const [leader] = await tabs(0);
  kept = [];
  const early = tab();
  const [enter] = kept;
  kept = undefined;
  // The leader announces itself to another tab.
  tab();
  const outcome = early.core.call('watch', ['g:tea']);
  await deliver();
  assert.deepEqual(leader.calls, []);
  enter();
  await deliver();
  assert.deepEqual(methods(leader), [['watch', 'g:tea']]);
  leader.calls[0].resolve();
  await deliver();
  await outcome;
});
