// Watches of conversations: the machine, and the client over a socket that the test plays.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { connect } from '../dist/index.js';
import { Machine } from './support/machine.mjs';

const TEA = 'g:tea';
const WATCH = { features: ['watch'] };

/** A machine that is live at a node with watches. `ask` records how its calls end. */
function live(welcome = WATCH) {
  const machine = new Machine();
  if (welcome) machine.login(welcome);
  machine.outcomes = [];
  machine.ask = (method, conversation = TEA) =>
    machine.session.watches[method](conversation, {
      done: () => machine.outcomes.push(method),
      fail: (error) => machine.outcomes.push(error.name),
    });
  /** Answers the last watch, and sends the complete report that follows. */
  machine.answer = (online, error) => {
    const { id, watch } = machine.frames('watch').at(-1);
    machine.frame({ id, ...(error ? { error } : { done: {} }) });
    if (online) machine.report({ conversation: watch.conversation, online, complete: true });
  };
  machine.report = (presence) => machine.frame({ presence: { conversation: TEA, ...presence } });
  machine.again = (then = WATCH) => {
    const { length } = machine.opens;
    machine.lost();
    while (machine.opens.length === length) machine.tick(100);
    machine.login(then);
  };
  return machine;
}

const lists = (machine) => machine.of('presence').map((it) => it.online);

test('gives the whole list of those online with each report', () => {
  const machine = live();
  machine.ask('enter');
  assert.deepEqual(machine.frames('watch').map((it) => it.watch), [{ conversation: TEA }]);
  machine.answer(['zoe', 'bob']);
  machine.report({ online: ['carol'] });
  machine.report({ online: ['alice'], offline: ['bob', 'nobody'] });
  machine.report({ online: ['dave'], complete: true });
  machine.report({ complete: true });
  assert.deepEqual(machine.outcomes, ['enter']);
  assert.deepEqual(machine.of('presence').map((it) => it.conversation), Array(5).fill(TEA));
  assert.deepEqual(lists(machine), [['bob', 'zoe'], ['bob', 'carol', 'zoe'], ['alice', 'carol', 'zoe'], ['dave'], []]);
});

test('ignores reports of what it does not watch, and changes without a complete report before', () => {
  const machine = live();
  machine.report({ online: ['bob'], complete: true });
  machine.ask('enter');
  machine.report({ online: ['bob'] });
  machine.answer(['bob']);
  machine.frame({ presence: { conversation: 'g:other', online: ['eve'], complete: true } });
  assert.deepEqual(lists(machine), [['bob']]);
  machine.ask('leave');
  assert.deepEqual(machine.frames('watch').at(-1).watch, { conversation: TEA, stop: true });
  machine.report({ online: ['carol'] });
  machine.report({ online: ['carol'], complete: true });
  assert.deepEqual(lists(machine), [['bob'], undefined], 'the list is unknown once the application has ended the watch');
});

test('watches again after each login, and takes changes only after a complete report', () => {
  const machine = live();
  machine.ask('enter');
  machine.answer(['bob']);
  // Not answered before the end of the connection: the request repeats itself.
  machine.ask('enter', 'd:alice:bob');
  machine.again();
  const watched = machine.frames('watch').slice(2).map((it) => it.watch.conversation);
  assert.deepEqual(watched.sort(), ['d:alice:bob', TEA]);
  machine.report({ online: ['carol'] });
  assert.deepEqual(lists(machine), [['bob'], undefined], 'unknown without a connection');
  machine.report({ online: ['carol'], complete: true });
  assert.deepEqual(lists(machine), [['bob'], undefined, ['carol']]);
});

test('does not watch again what was refused or ended', () => {
  const machine = live();
  machine.ask('enter');
  machine.answer(undefined, { code: 2004, name: 'NOT_A_MEMBER' });
  machine.report({ online: ['bob'], complete: true });
  machine.again();
  assert.equal(machine.frames('watch').length, 1);
  machine.ask('enter');
  machine.answer(['bob']);
  machine.ask('leave');
  machine.answer();
  machine.again();
  assert.equal(machine.frames('watch').length, 3);
  assert.deepEqual(machine.outcomes, ['NOT_A_MEMBER', 'enter', 'leave']);
  // The user was removed from the group meanwhile: nobody is to believe the former list.
  machine.ask('enter');
  machine.answer(['bob']);
  machine.again();
  machine.answer(undefined, { code: 2004, name: 'NOT_A_MEMBER' });
  machine.again();
  assert.equal(machine.frames('watch').length, 5);
  assert.equal(lists(machine).at(-1), undefined);
});

test('repeats a watch after a temporary refusal', () => {
  const machine = live();
  machine.ask('enter');
  machine.answer(undefined, { code: 4014, name: 'RATE_LIMITED', temporary: true, retryAfterMs: 300 });
  machine.tick(299);
  assert.equal(machine.frames('watch').length, 1);
  machine.tick(1);
  machine.answer();
  assert.deepEqual([machine.frames('watch').length, machine.outcomes], [2, ['enter']]);
});

test('fails at once where the node has no watches, and watches again where one has them', () => {
  const machine = live({ features: ['react'] });
  machine.ask('enter');
  machine.ask('leave');
  assert.deepEqual([machine.outcomes, machine.frames('watch')], [['UNSUPPORTED', 'UNSUPPORTED'], []]);
  // Without a login it is not known what the node has.
  const early = live(null);
  early.ask('enter');
  assert.deepEqual(early.outcomes, []);
  early.login();
  assert.deepEqual([early.outcomes, early.frames('watch')], [['UNSUPPORTED'], []]);
  const other = live();
  other.ask('enter');
  other.answer(['bob']);
  other.again({});
  assert.equal(other.frames('watch').length, 1);
  other.again();
  assert.equal(other.frames('watch').length, 2, 'a node of a former version ends no watch');
});

/** Lets everything run that waits for no timer. */
const settle = () => new Promise((resolve) => setImmediate(resolve));

/** A client over sockets of the test, live at a node with watches; `lists` has the lists that its application got. */
async function client() {
  const sockets = [];
  const made = connect({
    addresses: ['ws://a'],
    token: 't',
    user: 'alice',
    chain: false,
    random: () => 0,
    settings: { presence: 'off' },
    webSocket: () => {
      const socket = { sent: [], send: (text) => socket.sent.push(JSON.parse(text)), close() {}, frame: (frame) => socket.onmessage({ data: JSON.stringify(frame) }) };
      sockets.push(socket);
      return socket;
    },
  });
  const lists = [];
  made.on('presence', ({ conversation, online }) => lists.push([conversation, online]));
  const login = async (at) => {
    while (sockets.length <= at) await settle();
    const socket = sockets[at];
    socket.onopen();
    socket.frame({ id: socket.sent[0].id, welcome: { session: 's', node: 'n', ...WATCH } });
    return socket;
  };
  return { client: made, lists, login };
}

test('has the list of the last report, and none without a connection', { timeout: 10_000 }, async () => {
  const { client: alice, lists, login } = await client();
  const first = await login(0);
  const { settings, features } = first.sent[0].hello;
  assert.deepEqual([settings, features.includes('watch')], [{ presence: 'off' }, true]);
  const done = alice.watch(TEA);
  await settle();
  const { id } = first.sent.find((it) => it.watch);
  first.frame({ id, done: {} });
  assert.equal(await done, undefined);
  assert.equal(alice.presence(TEA), undefined);
  first.frame({ presence: { conversation: TEA, online: ['bob'], complete: true } });
  assert.deepEqual(alice.presence(TEA), ['bob']);
  first.onclose();
  assert.equal(alice.presence(TEA), undefined);
  const second = await login(1);
  const [again, ...others] = second.sent.filter((it) => it.watch);
  assert.deepEqual([again.watch, others], [{ conversation: TEA }, []]);
  second.frame({ id: again.id, done: {} });
  second.frame({ presence: { conversation: TEA, online: ['bob', 'carol'], complete: true } });
  // The move to another node keeps the list until that one reports.
  second.frame({ goAway: {} });
  const third = await login(2);
  assert.deepEqual(alice.presence(TEA), ['bob', 'carol']);
  third.frame({ presence: { conversation: TEA, online: ['carol'], complete: true } });
  alice.unwatch(TEA).catch(() => {});
  await settle();
  assert.equal(alice.presence(TEA), undefined);
  assert.deepEqual(lists, [[TEA, ['bob']], [TEA, undefined], [TEA, ['bob', 'carol']], [TEA, ['carol']], [TEA, undefined]]);
  alice.drop();
});
