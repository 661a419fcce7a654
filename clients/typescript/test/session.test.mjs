import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { reconnectWait } from '../dist/backoff.js';
import { fromClose, local } from '../dist/error.js';
import { Machine } from './support/machine.mjs';

const vectors = (name) => JSON.parse(readFileSync(new URL(`../../../protocol/vectors/${name}.json`, import.meta.url), 'utf8'));
const KEY = 'd:alice:bob';

test('takes every frame of a node, and ignores kinds that it does not know', () => {
  for (const { name, json, expect } of vectors('server')) {
    if (expect !== 'frame' || json.close) continue;
    const machine = new Machine();
    machine.login();
    machine.frame(json);
    machine.frame({ future: { code: 1 } });
    assert.equal(machine.session.state.name, 'live', name);
  }
});

test('writes only frames and fields of the schema', () => {
  const known = new Map();
  for (const { json } of vectors('client')) {
    for (const [kind, body] of Object.entries(json ?? {})) {
      if (kind === 'id') continue;
      known.set(kind, new Set([...(known.get(kind) ?? []), ...Object.keys(body)]));
    }
  }
  const machine = new Machine({ chain: true, settings: { unread: 'direct' } });
  machine.login({}, [{ conversation: KEY, maxSeq: 3, minSeq: 1 }]);
  machine.send('hi');
  machine.push(5);
  machine.tick(60_000);
  machine.session.close(() => {});
  for (const { conn, id, ...frame } of machine.written) {
    for (const [kind, body] of Object.entries(frame)) {
      assert.ok(known.has(kind), `${kind} of ${conn}/${id}`);
      for (const field of Object.keys(body)) assert.ok(known.get(kind).has(field), `${kind}.${field}`);
    }
  }
  for (const kind of ['hello', 'sync', 'send', 'pull', 'ping']) assert.ok(machine.frames(kind).length > 0, kind);
});

/** Plays the part of the client in a transcript: compares the sends, feeds the frames of the node. */
function replay(name, device, options) {
  const machine = new Machine(options);
  const ids = new Map();
  let sends = 0;
  for (const line of vectors(`transcripts/${name}`).lines) {
    if (!line.conn.startsWith(device)) continue;
    if (line.open) {
      if (machine.session.state.name === 'waiting') machine.tick(machine.session.state.retryAt - machine.now);
      machine.open();
    } else if (line.closed === 'client') {
      machine.lost();
    } else if (line.client?.hello) {
      ids.set(line.client.id, machine.frames('hello').at(-1).id);
      const { device: name, nextId } = machine.frames('hello').at(-1).hello;
      assert.equal(name, line.client.hello.device);
      if (options.chain) assert.equal(nextId, line.client.hello.nextId);
    } else if (line.client?.send) {
      const wanted = line.client.send;
      let frame = machine.frames('send').find((it) => it.send.msgId === wanted.msgId && (it.send.attempt ?? 0) === (wanted.attempt ?? 0));
      if (!frame) {
        machine.send(wanted.content.text, wanted.toUser ?? wanted.conversation, options.chain ? {} : { msgId: wanted.msgId });
        frame = machine.frames('send').at(-1);
      }
      assert.deepEqual({ ...frame.send, nextId: undefined }, { ...wanted, nextId: undefined });
      if (options.chain) assert.equal(frame.send.nextId, wanted.nextId);
      ids.set(line.client.id, frame.id);
      sends++;
    } else if (line.server) {
      const { id, ...frame } = line.server;
      if (id === undefined || ids.has(id)) machine.frame(id === undefined ? frame : { id: ids.get(id), ...frame });
    }
  }
  return { machine, sends };
}

test('continues its chain on another node, as in the transcript', () => {
  const { machine, sends } = replay('resume', 'alice/phone', { chain: true });
  assert.equal(sends, 2);
  assert.deepEqual(machine.of('accepted').map((it) => it.seq), [1, 2]);
});

test('talks as in the transcripts', () => {
  const { machine } = replay('direct_chat', 'alice/phone', {});
  assert.deepEqual(machine.of('sent').map((it) => it.seq), [1]);
  assert.deepEqual(machine.of('message').map((it) => [it.seq, it.content.text]), [[2, 'hey']]);
  const left = replay('slow_and_storm', 'alice/phone', {});
  assert.deepEqual(left.machine.of('shed'), [{ room: 'live', count: 40 }]);
  assert.equal(left.machine.session.state.name, 'closed');
  assert.equal(left.machine.session.state.error.name, 'KICKED');
});

test('passes on the numbers of a room', () => {
  const machine = new Machine({});
  machine.login({}, []);
  const stats = { room: 'hall', members: 7, reactions: [{ kind: 'like', sum: 2, total: 9 }] };
  machine.frame({ roomStats: stats });
  assert.deepEqual(machine.of('roomStats'), [stats]);
});

test('waits before a reconnect as the class of the close demands', () => {
  const now = fromClose({ code: 3002, reconnect: 'RECONNECT_NOW' });
  const after = fromClose({ code: 3005, reconnect: 'RECONNECT_AFTER', afterMs: 5000 });
  assert.deepEqual([0, 1, 2, 6, 50].map((tries) => reconnectWait(tries, now, 0.5)), [250, 500, 1000, 10_000, 10_000]);
  assert.equal(reconnectWait(0, undefined, 0), 0);
  assert.equal(reconnectWait(0, after, 0.5), 5250);
  assert.ok(reconnectWait(5, after, 0) >= 5000);
  assert.equal(fromClose({ code: 3777 }).reconnect, 'never');
  const unclassed = fromClose({ code: 4999 });
  assert.deepEqual([unclassed.reconnect, unclassed.retryAfterMs], ['after', 1000]);
});

test('counts attempts in a row until it was live for ten seconds', () => {
  const machine = new Machine();
  const waits = [];
  for (let n = 0; n < 3; n++) {
    machine.lost();
    waits.push(machine.session.state.retryAt - machine.now);
    machine.tick(waits.at(-1));
  }
  machine.login();
  machine.tick(9000);
  machine.lost();
  waits.push(machine.session.state.retryAt - machine.now);
  machine.tick(waits.at(-1));
  machine.login();
  machine.tick(10_000);
  machine.lost();
  waits.push(machine.session.state.retryAt - machine.now);
  assert.deepEqual(waits, [250, 500, 1000, 2000, 250]);
});

test('stays closed after it was replaced, and asks for another token when one is refused', () => {
  const machine = new Machine();
  machine.login();
  machine.frame({ close: { code: 3500, name: 'REPLACED', reconnect: 'RECONNECT_NEVER' } });
  machine.tick(60_000);
  assert.equal(machine.opens.length, 1);
  assert.equal(machine.session.state.name, 'closed');

  const expired = { close: { code: 2002, name: 'TOKEN_EXPIRED', reconnect: 'RECONNECT_NEVER' } };
  const other = new Machine();
  other.open('old');
  other.frame(expired);
  other.tick(1000);
  assert.equal(other.opens.length, 2);
  other.open('new');
  assert.equal(other.frames('hello').length, 2);
  other.frame(expired);
  other.tick(1000);
  other.open('new');
  assert.equal(other.session.state.name, 'closed');
  assert.equal(other.session.state.error.name, 'TOKEN_EXPIRED');
  assert.equal(other.frames('hello').length, 2);
});

test('logs in by cookies again after their end, until they are refused', () => {
  const expired = { close: { code: 2002, name: 'TOKEN_EXPIRED', reconnect: 'RECONNECT_NEVER' } };
  const machine = new Machine();
  machine.login({}, [], '');
  machine.frame(expired);
  machine.tick(1000);
  machine.open('');
  assert.equal(machine.frames('hello').length, 2);
  machine.frame(expired);
  machine.tick(1000);
  machine.open('');
  assert.equal(machine.session.state.name, 'closed');
  assert.equal(machine.frames('hello').length, 2);
});

test('moves to an alternate in its slot, and expects to be replaced', () => {
  const machine = new Machine({ chain: true });
  machine.login();
  machine.states();
  const [old] = machine.opens;
  machine.frame({ goAway: { afterMs: 1000, windowMs: 500, alternates: ['ws://b'] } });
  const sent = machine.send('on the old one');
  machine.tick(1249);
  assert.equal(machine.opens.length, 1);
  machine.tick(1);
  assert.deepEqual(machine.opens[1].alternates, ['ws://b']);
  machine.open();
  machine.send('written during the move');
  assert.equal(machine.frames('send').length, 1);
  machine.frame({ close: { code: 3500, name: 'REPLACED', reconnect: 'RECONNECT_NEVER' } }, old.conn);
  machine.frame({ id: machine.frames('hello')[1].id, welcome: { session: 's2', node: 'n2' } });
  assert.deepEqual(machine.states(), ['live']);
  const resent = machine.frames('send').slice(1).map((it) => [it.conn, it.send.content.text, it.send.attempt]);
  assert.deepEqual(resent, [[2, 'on the old one', 1], [2, 'written during the move', undefined]]);
  assert.equal(sent.sent, undefined);
});

test('keeps the alternates for the reconnect when the connection ends before the move', () => {
  for (const close of [{ code: 3001, name: 'DRAINING', reconnect: 'RECONNECT_AFTER', afterMs: 1000 }, undefined]) {
    const machine = new Machine();
    machine.login();
    machine.frame({ goAway: { afterMs: 1000, windowMs: 1000, alternates: ['ws://b', 'ws://c'] } });
    machine.tick(1400);
    if (close) machine.frame({ close });
    else machine.lost();
    machine.tick(close ? 999 : 249);
    assert.equal(machine.opens.length, 1, 'the wait of the close counts');
    machine.tick(101);
    assert.deepEqual(machine.opens[1].alternates, ['ws://b', 'ws://c']);
    machine.lost();
    machine.tick(1000);
    assert.deepEqual(machine.opens[2].alternates, ['ws://b', 'ws://c'], 'no login has succeeded yet');
    machine.login();
    machine.lost();
    machine.tick(4000);
    assert.deepEqual(machine.opens[3].alternates, [], 'they were of the node that is left');
  }
});

test('keeps no alternates while the application keeps it offline', () => {
  const machine = new Machine();
  machine.login();
  machine.frame({ goAway: { afterMs: 1000, windowMs: 500, alternates: ['ws://b'] } });
  machine.session.offline();
  machine.session.online();
  assert.deepEqual(machine.opens[1].alternates, []);
});

/** A machine whose move to another node has failed, and its connection. */
function afterFailedMove() {
  const machine = new Machine();
  machine.login();
  const [old] = machine.opens;
  machine.frame({ goAway: { alternates: ['ws://b'] } });
  machine.tick(0);
  machine.open();
  machine.lost();
  return { machine, old };
}

test('stays where it is when the move fails, also if the node had replaced it by then', () => {
  const { machine, old } = afterFailedMove();
  machine.send('still here');
  assert.equal(machine.frames('send').at(-1).conn, old.conn);
  machine.frame({ close: { code: 3500, name: 'REPLACED', reconnect: 'RECONNECT_NEVER' } }, old.conn);
  assert.equal(machine.session.state.name, 'waiting');
});

test('closes when another client replaces it long after a move that failed', () => {
  for (const [wait, state] of [[29_000, 'waiting'], [31_000, 'closed']]) {
    const { machine, old } = afterFailedMove();
    machine.tick(wait);
    machine.frame({ close: { code: 3500, name: 'REPLACED', reconnect: 'RECONNECT_NEVER' } }, old.conn);
    assert.equal(machine.session.state.name, state);
  }
});

test('comes again when a node completes a login late that the client gave up', () => {
  const replaced = { close: { code: 3500, name: 'REPLACED', reconnect: 'RECONNECT_NEVER' } };
  for (const [wait, state] of [[10_000, 'waiting'], [31_000, 'closed']]) {
    const machine = new Machine();
    machine.open();
    machine.lost();
    machine.tick(1000);
    machine.login();
    machine.tick(wait);
    machine.frame(replaced);
    assert.equal(machine.session.state.name, state);
  }
});

test('waits longer each time when each node sends it away at once', () => {
  const machine = new Machine();
  const waits = [];
  for (let n = 0; n < 4; n++) {
    machine.login();
    machine.frame({ goAway: {} });
    const from = machine.now;
    while (machine.opens.length < n + 2) machine.tick(1);
    waits.push(machine.opens.at(-1).at - from);
  }
  assert.deepEqual(waits, [0, 500, 1000, 2000]);
  machine.login();
  machine.tick(10_000);
  machine.frame({ goAway: {} });
  machine.tick(0);
  assert.equal(machine.opens.length, 6);
});

for (const [kind, has] of [['rooms', (it, stops) => (stops ? it.leave : it.join)], ['watches', (it, stops) => it.watch && !it.watch.stop === !stops]]) {
  test(`the start of ${kind} does not overtake the end that follows it, nor an end the start`, () => startAndEnd(kind, has));
}

function startAndEnd(kind, has) {
  const busy = { code: 4013, name: 'BUSY', temporary: true };
  const machine = new Machine();
  machine.login({ features: ['watch'] });
  const outcomes = [];
  const ask = (method) => machine.session[kind][method]('hall', { done: () => outcomes.push(method), fail: (error) => outcomes.push(error.name) });
  for (const [first, second] of [['enter', 'leave'], ['leave', 'enter']]) {
    outcomes.length = 0;
    const before = machine.written.length;
    ask(first);
    ask(second);
    const [one, two] = machine.written.slice(before);
    machine.frame({ id: one.id, error: busy });
    machine.frame({ id: two.id, done: {} });
    machine.tick(5000);
    assert.deepEqual(machine.written.slice(before).map((it) => (has(it, false) ? 'enter' : has(it, true) ? 'leave' : 'ping')).filter((it) => it !== 'ping'), [first, second]);
    assert.deepEqual(outcomes, [second, first]);
  }
}

test('gives a sign of life in each heartbeat, and leaves a silent node', () => {
  const machine = new Machine();
  machine.login({ heartbeatMs: 10_000 });
  machine.tick(24_000);
  assert.ok(machine.frames('ping').length >= 2);
  assert.equal(machine.session.state.name, 'live');
  machine.tick(1000);
  assert.equal(machine.session.state.name, 'waiting');
  assert.deepEqual(machine.ended, [1]);
});

test('resends the first unanswered message on demand, and names the next unanswered one', () => {
  const machine = new Machine({ chain: true });
  machine.login();
  for (const text of ['one', 'two', 'three']) machine.send(text);
  const [one, two, three] = machine.frames('send');
  assert.deepEqual([one, two].map((it) => it.send.nextId), [two.send.msgId, three.send.msgId]);
  machine.frame({ id: two.id, sendAck: { conversation: KEY, msgId: two.send.msgId, seq: 1 } });
  machine.frame({ notice: { kind: 'NOTICE_KIND_ORDER_BLOCKED', expected: one.send.msgId } });
  const again = machine.frames('send').at(-1);
  assert.deepEqual([again.send.msgId, again.send.attempt, again.send.nextId], [one.send.msgId, 1, three.send.msgId]);
  // The answer to the first copy is an answer as well.
  machine.frame({ id: one.id, error: { code: 4003, name: 'ORDER_SKIPPED' } });
  assert.deepEqual(machine.of('failed').map((it) => it.error.name), ['ORDER_SKIPPED']);
});

test('sends what was given back in order, after the wait', () => {
  const machine = new Machine({ chain: true });
  machine.login();
  for (const text of ['one', 'two']) machine.send(text);
  const busy = { code: 4014, name: 'RATE_LIMITED', temporary: true };
  const [one, two] = machine.frames('send');
  machine.frame({ id: one.id, error: { ...busy, retryAfterMs: 1000 } });
  machine.send('three');
  machine.frame({ id: two.id, error: { ...busy, retryAfterMs: 990 } });
  machine.tick(995);
  assert.equal(machine.frames('send').length, 2, 'nothing overtakes the refused message');
  machine.tick(5);
  assert.deepEqual(machine.frames('send').slice(2).map((it) => it.send.content.text), ['one', 'two', 'three']);
});

test('a message to a room waits for an earlier one that waits for its retry', () => {
  const machine = new Machine({ chain: true });
  machine.login();
  machine.send('one', 'r:hall');
  machine.frame({ id: machine.frames('send')[0].id, error: { code: 4014, name: 'RATE_LIMITED', temporary: true, retryAfterMs: 1000 } });
  for (const [text, to, options] of [['two', 'r:hall'], ['else', 'r:attic'], ['hi', 'bob'], ['now', 'r:hall', { chain: false }], ['later', 'r:hall']]) machine.send(text, to, options);
  const texts = () => machine.frames('send').map((it) => it.send.content.text);
  assert.deepEqual(texts(), ['one', 'else', 'hi', 'now'], 'other rooms, the chain, and what is outside of the order do not wait');
  machine.tick(1000);
  assert.deepEqual(texts().slice(4), ['one', 'two', 'later']);
  assert.ok(machine.frames('send').every(({ send }) => !send.nextId === !!send.conversation), 'only the chain has successors');
  const loose = new Machine();
  loose.login();
  loose.send('one', 'r:hall');
  loose.frame({ id: loose.frames('send')[0].id, error: { code: 4014, name: 'RATE_LIMITED', temporary: true, retryAfterMs: 1000 } });
  loose.send('two', 'r:hall');
  assert.equal(loose.frames('send').length, 2, 'without `chain` nothing waits');
});

test('flags go with a message, also when it is repeated, and come with it', () => {
  const machine = new Machine();
  machine.login();
  machine.send('psst', 'bob', { flags: 2 });
  machine.lost();
  machine.tick(60_000);
  machine.login();
  assert.deepEqual(machine.frames('send').map(({ send }) => [send.flags, send.attempt]), [[2, undefined], [2, 1]]);
  const { id, send } = machine.frames('send').at(-1);
  machine.frame({ id, sendAck: { conversation: KEY, msgId: send.msgId, seq: 1 } });
  machine.push(2, { flags: 65538 });
  assert.deepEqual([machine.of('sent')[0].flags, machine.of('message')[0].flags], [2, 65538]);
});

test('pulls a hole, hands over in order, and acknowledges once', () => {
  const machine = new Machine();
  machine.login({}, [{ conversation: KEY, maxSeq: 2, minSeq: 1 }]);
  machine.push(3);
  machine.push(6);
  machine.push(6);
  assert.deepEqual(machine.of('message').map((it) => it.seq), [3]);
  machine.tick(1000);
  const [{ id, pull }] = machine.frames('pull');
  assert.deepEqual(pull, { conversation: KEY, cursor: 3, limit: 200, direction: 'DIRECTION_FORWARD' });
  const page = { conversation: KEY, messages: [{ conversation: KEY, seq: 7, recall: { seq: 4 } }], recalled: [4], expired: [{ first: 5, last: 5 }], completeTo: 7 };
  machine.frame({ id, page });
  machine.tick(1000);
  assert.deepEqual(machine.of('message').map((it) => it.seq), [3, 6]);
  assert.deepEqual(machine.of('recall').map((it) => it.recalled), [4]);
  assert.deepEqual(machine.frames('ack').map((it) => it.ack.seq), [3, 7]);
});

test('hands over what was pushed above the bound of the user, and pulls the hole below it once', () => {
  const machine = new Machine();
  machine.login({}, [{ conversation: KEY, maxSeq: 3, minSeq: 1 }]);
  machine.push(7);
  machine.tick(1000);
  const [{ id, pull }] = machine.frames('pull');
  assert.equal(pull.cursor, 3);
  machine.push(8);
  machine.frame({ id, page: { conversation: KEY, expired: [{ first: 4, last: 8 }], completeTo: 8 } });
  machine.push(9);
  // A sync and a lower bound move nothing back.
  machine.session.sync();
  machine.frame({ id: machine.frames('sync').at(-1).id, conversationState: { conversation: KEY, maxSeq: 2, minSeq: 1 } });
  machine.tick(5000);
  assert.deepEqual(machine.of('message').map((it) => it.seq), [7, 8, 9]);
  assert.deepEqual([machine.frames('pull').length, machine.frames('ack').at(-1).ack.seq], [1, 9]);
});

test('does not hand over the content of a message whose recall is known', () => {
  const machine = new Machine();
  machine.login();
  machine.push(2, { content: undefined, recall: { seq: 1 } });
  machine.push(1);
  assert.deepEqual(machine.of('message'), []);
  assert.deepEqual(machine.of('recall').map((it) => [it.seq, it.recalled]), [[2, 1]]);
});

test('an edit replaces a content, and is no message that could be unread', () => {
  const machine = new Machine();
  machine.login();
  machine.push(1);
  machine.push(2, { content: undefined, edit: { seq: 1, content: { text: 'better', mentions: ['bob'] } } });
  machine.push(3, { flags: 2 });
  assert.deepEqual(machine.of('edit').map((it) => [it.seq, it.edited, it.content]), [[2, 1, { text: 'better', mentions: ['bob'] }]]);
  assert.deepEqual(machine.of('message').map((it) => it.seq), [1, 3]);
  assert.equal(machine.of('conversation').at(-1).unread, 1, 'neither the edit nor the silent message');
});

/** Text of the last entry, by the latest event of its conversation. */
const lastText = (machine) => machine.of('conversation').at(-1).last.content?.text;
const editOf = (seq, text) => ({ content: undefined, edit: { seq, ...(text ? { content: { text } } : {}) } });

test('the last entry of a conversation has the content of the newest edit', () => {
  const machine = new Machine();
  machine.login();
  machine.push(1);
  const before = machine.of('conversation').at(-1);
  machine.push(2, editOf(1, 'better'));
  assert.deepEqual([before.last.content.text, lastText(machine)], ['t1', 'better'], 'what the application got before stays');
  machine.push(3, editOf(1, 'best'));
  const { kind, seq, sender, edit } = machine.of('conversation').at(-1).last;
  assert.deepEqual([kind, seq, sender, edit, lastText(machine)], ['message', 1, 'bob', 3, 'best']);
  machine.push(4);
  machine.push(5, editOf(1, 'late'));
  assert.equal(lastText(machine), 't4', 'an edit of an earlier message');
  machine.push(6, { content: undefined, recall: { seq: 4 } });
  machine.push(7, editOf(4, 'secret'));
  assert.deepEqual(machine.of('conversation').at(-1).last, { kind: 'recalled', conversation: KEY, seq: 4 });
});

test('the last entry keeps its newest content over a reconnect, whether a state or a page has it', () => {
  const machine = new Machine();
  const last = (text, edit) => ({ conversation: KEY, seq: 1, sender: 'bob', msgId: 'b1', time: 1, content: { text }, edited: { seq: edit, time: edit } });
  const pulled = (...messages) => machine.frame({ id: machine.frames('pull').at(-1).id, page: { conversation: KEY, messages, completeTo: 9 } });
  machine.login();
  machine.push(1);
  machine.push(2, editOf(1, 'two'));
  machine.lost();
  machine.tick(5000);
  machine.login({}, [{ conversation: KEY, maxSeq: 4, last: last('four', 4) }]);
  assert.equal(lastText(machine), 'four');
  machine.push(3, editOf(1, 'three'));
  assert.equal(lastText(machine), 'four', 'an earlier edit arrives late');
  pulled({ conversation: KEY, seq: 4, ...editOf(1) });
  assert.equal(lastText(machine), 'four', 'a page has no content of what is edited again');
  machine.lost();
  machine.tick(5000);
  machine.login({}, [{ conversation: KEY, maxSeq: 6 }]);
  pulled({ conversation: KEY, seq: 5, ...editOf(1) }, { conversation: KEY, seq: 6, ...editOf(1, 'six') });
  assert.equal(lastText(machine), 'six', 'a state leaves out an entry that is far from the end');
});

test('a state that was read before an edit arrived does not bring the former content back', () => {
  const machine = new Machine();
  machine.login();
  machine.push(1);
  machine.session.sync();
  const { id } = machine.frames('sync').at(-1);
  machine.push(2, editOf(1, 'better'));
  machine.frame({ id, conversationState: { conversation: KEY, maxSeq: 1, last: { conversation: KEY, seq: 1, sender: 'bob', content: { text: 't1' } } } });
  machine.frame({ id, syncEnd: {} });
  assert.equal(lastText(machine), 'better');
});

test('the last entry of a first state has the edits and recalls that came before the state', () => {
  const last = { conversation: KEY, seq: 5, sender: 'bob', time: 5, msgId: 'b5', content: { text: 't5' } };
  const after = (changes, state) => {
    const machine = new Machine({ positions: { [KEY]: 5 }, fresh: false });
    machine.open();
    machine.frame({ id: machine.frames('hello').at(-1).id, welcome: { session: 's1', node: 'n1' } });
    for (const [at, change] of changes.entries()) machine.push(6 + at, { content: undefined, msgId: undefined, ...change });
    const { id } = machine.frames('sync').at(-1);
    machine.frame({ id, conversationState: { conversation: KEY, maxSeq: 5, minSeq: 1, last, ...state } });
    return machine.session.feed.conversations.get(KEY).last;
  };
  const edit = (text) => ({ edit: { seq: 5, content: { text } } });
  const edited = after([edit('one'), edit('two'), { edit: { seq: 4, content: { text: 'of another' } } }]);
  assert.deepEqual([edited.content, edited.edit], [{ text: 'two' }, 7]);
  assert.deepEqual(after([{ recall: { seq: 5 } }]), { kind: 'recalled', conversation: KEY, seq: 5 });
  const newer = after([edit('one')], { maxSeq: 9, last: { ...last, content: { text: 'nine' }, edited: { seq: 9, time: 9 } } });
  assert.deepEqual([newer.content, newer.edit], [{ text: 'nine' }, 9], 'the state has a later edit');
  assert.deepEqual(after([]).content, { text: 't5' });
});

test('begins at the start of a conversation, also if a push comes and the first sync is slow', () => {
  const machine = new Machine({ fromStart: true });
  machine.open();
  machine.frame({ id: machine.frames('hello').at(-1).id, welcome: { session: 's1', node: 'n1', heartbeatMs: 30_000 } });
  machine.push(2);
  machine.tick(3000);
  assert.deepEqual(machine.of('message'), [], 'the first message is missing');
  const { id, pull } = machine.frames('pull').at(-1);
  assert.equal(pull.cursor, 0);
  const entry = (seq) => ({ conversation: KEY, seq, sender: 'bob', msgId: `b${seq}`, time: seq, content: { text: `t${seq}` } });
  machine.frame({ id, page: { conversation: KEY, messages: [entry(1), entry(2)], completeTo: 2 } });
  assert.deepEqual(machine.of('message').map((it) => it.seq), [1, 2]);
});

test('hands over a push that the state of the first sync covers', () => {
  const machine = new Machine();
  machine.login({}, [{ conversation: KEY, maxSeq: 5, minSeq: 1 }]);
  machine.push(5);
  machine.push(5);
  machine.push(6);
  assert.deepEqual(machine.of('message').map((it) => it.seq), [5, 6]);
});

test('holds a limited number of pushes above a hole, and pulls the others', () => {
  const machine = new Machine();
  machine.login();
  const last = 1200;
  for (let seq = 2; seq <= last; seq++) machine.push(seq);
  for (let pulls = 0; machine.of('message').length < last && pulls < 10; pulls++) {
    machine.tick(250);
    const { id, pull } = machine.frames('pull').at(-1);
    const messages = Array.from({ length: 200 }, (_, at) => ({ conversation: KEY, seq: pull.cursor + 1 + at, sender: 'bob', msgId: `b${pull.cursor + 1 + at}` }));
    machine.frame({ id, page: { conversation: KEY, messages: messages.filter((it) => it.seq <= last), completeTo: last } });
  }
  assert.deepEqual(machine.of('message').map((it) => it.seq), Array.from({ length: last }, (_, at) => at + 1));
  assert.deepEqual(machine.frames('pull').map((it) => it.pull.cursor), [0, 1001]);
});

test('goes on behind a hole that can never be filled', () => {
  const machine = new Machine();
  machine.login();
  machine.push(1, { conversation: 'g:x' });
  machine.push(4, { conversation: 'g:x' });
  machine.tick(500);
  machine.frame({ id: machine.frames('pull')[0].id, error: { code: 2004, name: 'NOT_A_MEMBER' } });
  assert.deepEqual(machine.of('gap'), [{ conversation: 'g:x', first: 2, last: 3 }]);
  assert.deepEqual(machine.of('message').map((it) => it.seq), [1, 4]);
});

test('makes no gap of a pull that ends with the connection', () => {
  const kicked = { close: { code: 3501, name: 'KICKED', reconnect: 'RECONNECT_NEVER' } };
  for (const end of [(it) => it.session.close(() => {}), (it) => it.frame(kicked)]) {
    const machine = new Machine();
    machine.login();
    machine.push(1);
    machine.push(4);
    machine.tick(500);
    assert.equal(machine.frames('pull').length, 1);
    end(machine);
    machine.tick(5000);
    assert.deepEqual([machine.of('gap'), machine.session.inbox.positions()], [[], [{ conversation: KEY, seq: 1 }]]);
  }
});

test('repeats a request after a reconnect, and knows that it was carried out', () => {
  const machine = new Machine();
  machine.login();
  const outcome = [];
  const leave = { body: { leave: { conversation: 'g:x' } }, doneBy: 'NOT_A_MEMBER', done: () => outcome.push('done'), fail: (error) => outcome.push(error.name) };
  const answer = () => machine.frame({ id: machine.frames('leave').at(-1).id, error: { code: 2004, name: 'NOT_A_MEMBER' } });
  machine.session.requests.add(leave);
  answer();
  machine.session.requests.add(leave);
  machine.lost();
  machine.tick(1000);
  machine.login();
  assert.equal(machine.frames('leave').length, 3);
  answer();
  assert.deepEqual(outcome, ['NOT_A_MEMBER', 'done']);
});

test('refuses a request that is no JSON, and keeps what waits', () => {
  const machine = new Machine();
  const outcome = { done() {}, fail() {} };
  machine.session.requests.add({ body: { leave: { conversation: 'g:x' } }, ...outcome });
  assert.throws(() => machine.session.requests.add({ body: { edit: { conversation: KEY, content: { json: 1n } } }, ...outcome }), TypeError);
  machine.session.requests.add({ body: { leave: { conversation: 'g:y' } }, ...outcome });
  machine.login();
  assert.deepEqual(machine.frames('leave').map((it) => it.leave.conversation), ['g:x', 'g:y']);
});

test('counts unread messages between two syncs', () => {
  const machine = new Machine();
  machine.login({}, [{ conversation: KEY, maxSeq: 4, minSeq: 1, readSeq: 2, unread: 2 }]);
  machine.push(5);
  machine.push(6, { sender: 'alice', msgId: 'of another device' });
  assert.equal(machine.session.feed.conversations.get(KEY).unread, 3);
  machine.frame({ receipt: { conversation: KEY, seq: 6 } });
  assert.equal(machine.session.feed.conversations.get(KEY).unread, 0);
});

test('a message to a room that is repeated after a reconnect comes after the join', () => {
  const machine = new Machine();
  machine.login();
  machine.session.rooms.enter('hall', { done() {}, fail() {} });
  machine.frame({ id: machine.frames('join')[0].id, done: {} });
  machine.send('hi', 'r:hall');
  const before = machine.written.length;
  machine.lost();
  machine.tick(60_000);
  machine.login();
  const kinds = machine.written.slice(before).map((it) => ['join', 'send', 'sync'].find((kind) => it[kind]));
  assert.deepEqual(kinds.filter(Boolean), ['join', 'send', 'sync']);
});

test('a client that was removed from a room enters it again only when the application asks', () => {
  const machine = new Machine();
  machine.login();
  const join = (room) => machine.session.rooms.enter(room, { done() {}, fail() {} });
  join('hall');
  machine.frame({ id: machine.frames('join')[0].id, done: {} });
  // Its answer is still due.
  join('attic');
  for (const room of ['hall', 'attic']) machine.frame({ notice: { kind: 'NOTICE_KIND_ROOM_REMOVED', conversation: `r:${room}` } });
  machine.lost();
  machine.tick(60_000);
  machine.login();
  machine.tick(60_000);
  const rooms = () => machine.frames('join').map((it) => it.join.room);
  assert.deepEqual(rooms(), ['hall', 'attic']);
  join('hall');
  assert.deepEqual(rooms(), ['hall', 'attic', 'hall']);
});

/** A live machine whose token ends `seconds` after the login, by the clock of the node, which is an hour ahead. */
function expiring(seconds, random = () => 0.5, features = ['refresh'], heartbeatMs = 1e9) {
  const machine = new Machine({}, random);
  const ahead = 3_600_000;
  machine.exp = (left) => (typeof left === 'number' ? (machine.now + ahead) / 1000 + left : left);
  machine.login({ features, serverTime: machine.now + ahead, heartbeatMs }, [], 't1', { exp: machine.exp(seconds) });
  machine.loginAt = machine.now;
  return machine;
}

test('asks for another token some minutes before the present one ends, or after a part of a short one', () => {
  const waits = [[3600, 0, 3300], [3600, 0.999, 3000.3], [600, 0, 450], [60, 0, 45], [60, 0.999, 30.015], [3, 0.999, 2], [1, 0, 2]];
  for (const [seconds, random, wait] of waits) {
    const machine = expiring(seconds, () => random);
    machine.tick(wait * 1000 - 1);
    assert.deepEqual(machine.renewals, [], `${seconds} s`);
    machine.tick(2);
    assert.equal(machine.renewals.length, 1, `${seconds} s`);
  }
});

test('asks for none if the node has no refresh, or the end of the token is unknown or has passed', () => {
  const opaque = new Machine();
  opaque.login({ features: ['refresh'] });
  for (const machine of [opaque, expiring(60, undefined, []), expiring(-1)]) {
    machine.tick(120_000);
    assert.deepEqual(machine.renewals, []);
  }
  const foreign = expiring('soon', undefined, ['refresh'], 30_000);
  foreign.tick(25_000);
  assert.ok(Number.isFinite(foreign.session.timers.due()), 'no timer for a time that is no number');
  assert.deepEqual(opaque.frames('hello')[0].hello.features, ['refresh', 'react', 'watch']);
});

test('replaces the token of the connection, and later that one', () => {
  const machine = expiring(60);
  machine.tick(60_000);
  machine.renewed('t2', machine.exp(60));
  const [{ id, refresh }] = machine.frames('refresh');
  assert.deepEqual(refresh, { token: 't2' });
  assert.deepEqual(machine.of('refresh'), []);
  machine.frame({ id, done: {} });
  assert.deepEqual(machine.of('refresh'), [{ error: undefined }]);
  machine.tick(60_000);
  assert.equal(machine.renewals.length, 2);
  // The application keeps it until it has another one.
  machine.renewed('t2', machine.exp(60));
  assert.equal(machine.frames('refresh').length, 1);
  assert.deepEqual([machine.opens.length, machine.session.state.name], [1, 'live']);
  // The token that ended is the second one, with which the next login would end the same way.
  machine.frame({ close: { code: 2002, name: 'TOKEN_EXPIRED', reconnect: 'RECONNECT_NEVER' } });
  machine.tick(1000);
  machine.open('t2');
  assert.deepEqual([machine.session.state.name, machine.session.state.error.name], ['closed', 'TOKEN_EXPIRED']);
});

test('says why a token was not replaced, goes on, and asks again while the token lasts', () => {
  const machine = expiring(60);
  machine.tick(40_000);
  machine.renewed('', undefined, local('NO_TOKEN', 'signed out'));
  machine.tick(15_000);
  machine.renewed('old', machine.exp(1));
  const { id } = machine.frames('refresh').at(-1);
  machine.frame({ id, error: { code: 2011, name: 'TOKEN_NOT_NEWER' } });
  assert.deepEqual(machine.of('refresh').map((it) => [it.error.code, it.error.name]), [[0, 'NO_TOKEN'], [2011, 'TOKEN_NOT_NEWER']]);
  assert.equal(machine.session.state.name, 'live');
  for (let n = 0; n < 20; n++) {
    machine.tick(2000);
    if (machine.renewals.length > 2) machine.renewed('', undefined, local('NO_TOKEN'));
  }
  assert.ok(machine.renewals.length > 2 && machine.renewals.length < 10, `${machine.renewals.length} calls`);
  assert.ok(machine.renewals.every((it) => it.at <= machine.loginAt + 62_000), 'nothing after the end');
  assert.deepEqual(machine.ended, []);
});

test('repeats a refresh after a temporary refusal, not before its time, and never on another connection', () => {
  const machine = expiring(60);
  machine.tick(40_000);
  machine.renewed('t2', machine.exp(60));
  machine.frame({ id: machine.frames('refresh')[0].id, error: { code: 4014, name: 'RATE_LIMITED', temporary: true, retryAfterMs: 1500 } });
  machine.tick(1499);
  assert.equal(machine.frames('refresh').length, 1);
  machine.tick(1);
  assert.deepEqual(machine.frames('refresh').map((it) => it.refresh.token), ['t2', 't2']);
  machine.lost();
  machine.tick(1000);
  machine.login({ features: ['refresh'] }, [], 't3', { exp: machine.now / 1000 + 60 });
  assert.equal(machine.frames('refresh').length, 2);
  assert.deepEqual(machine.of('refresh'), [], 'the end of the connection is no refusal');
});

test('does not use a token for a connection that has ended or was moved away from meanwhile', () => {
  const machine = expiring(60);
  const late = machine.conn;
  machine.tick(40_000);
  machine.lost();
  machine.tick(1000);
  machine.login({ features: ['refresh'] }, [], 't2', { exp: machine.now / 1000 + 600 });
  machine.session.renewed(late, 't3', { exp: machine.now / 1000 + 600 });
  assert.deepEqual(machine.frames('refresh'), []);
  machine.session.offline();
  assert.equal(machine.session.timers.due(), Infinity, 'nothing keeps the process alive');
});
