import assert from 'node:assert/strict';
import { test } from 'node:test';
import { baseSeed } from './support/random.mjs';
import { World } from './support/world.mjs';

const RUNS = Number(process.env.RUNS ?? 100);
const MESSAGES = 40;

/** Checks what a run has left behind. */
function judge(world, outcomes, senders, receivers) {
  assert.deepEqual(world.node.violations, []);
  assert.deepEqual(outcomes.filter((it) => it.error), []);
  const texts = outcomes.map((it) => it.text);
  assert.equal(new Set(texts).size, texts.length, 'a send settled twice');
  assert.equal(texts.length, senders.length * MESSAGES, 'a send did not settle');
  for (const [conversation, log] of world.node.logs) {
    assert.equal(new Set(log.map((it) => it.msgId)).size, log.length);
    for (const client of receivers) {
      if (!conversation.split(':').includes(client.user)) continue;
      const seqs = client.heard.filter((it) => it.value.conversation === conversation).map((it) => it.value.seq);
      assert.deepEqual(seqs, log.map((it) => it.seq), `${client.user}/${client.device} in ${conversation}`);
    }
    for (const sender of senders) {
      const written = log.filter((it) => it.msgId.startsWith(`${sender.user}-${sender.device}-`)).map((it) => Number(it.content.text.split(' ')[1]));
      assert.deepEqual(written, [...written].sort((a, b) => a - b), 'the chain keeps the order');
    }
  }
}

function run(seed, options) {
  const world = new World(seed, { ...options, cuts: 0 });
  const alice = world.add('alice', 'phone');
  const bob = world.add('bob', 'web');
  const second = world.add('alice', 'desk');
  // A new device begins at what is new, so all have their first sync before anything is sent.
  world.run(1000);
  world.cuts = options.cuts;
  const outcomes = [];
  for (const client of [alice, bob]) {
    const to = client === alice ? 'bob' : 'alice';
    for (let n = 0; n < MESSAGES; n++) world.at(world.random() * 20_000, () => world.send(client, to, `${client.user} ${(client.count = (client.count ?? 0) + 1)}`, outcomes));
  }
  if (options.forget) for (let n = 0; n < 3; n++) world.at(world.random() * 20_000, () => restart(world));
  if (options.closes) {
    for (const client of [alice, bob, second]) for (let n = 0; n < 5; n++) world.at(world.random() * 20_000, () => closeLastingly(world, client));
  }
  world.run(20_000);
  // The network is well from here on: an idle client finds what it has missed by its pings.
  world.cuts = 0;
  world.run(60_000);
  judge(world, outcomes, [alice, bob], [alice, bob, second]);
}

/** Restarts the node: all connections end, and it forgets the chains. */
function restart(world) {
  for (const id of [...world.links.keys()]) world.cut(id);
  world.node.forget();
}

/** The node closes the connection of a client so that it stays closed; later the application connects again. */
function closeLastingly(world, client) {
  for (const id of [...world.links.keys()]) {
    if (world.links.get(id).client === client) world.node.kick(id);
  }
  world.at(1000 + world.random() * 1000, () => {
    world.session(client).online();
    world.drain(client);
  });
}

/** Runs the scenario with each seed; a failure names the command that repeats it. */
function forEachSeed(scenario) {
  for (let seed = baseSeed; seed < baseSeed + RUNS; seed++) {
    try {
      scenario(seed);
    } catch (error) {
      error.message = `SEED=${seed} RUNS=1: ${error.message}`;
      throw error;
    }
  }
}

for (const [name, options] of [
  ['without faults', { cuts: 0, faults: false }],
  ['with lost, doubled and delayed pushes, and refusals', { cuts: 0 }],
  ['with cut connections', { cuts: 0.02 }],
  ['with a node that restarts', { cuts: 0.01, forget: true }],
  ['with a node that closes lastingly', { cuts: 0.01, closes: true }],
]) {
  test(`loses, doubles and reorders nothing ${name}`, () => {
    forEachSeed((seed) => run(seed, options));
  });
}

test('continues the outbox and the positions of an earlier run of the device', () => {
  forEachSeed((seed) => {
    const world = new World(seed, { cuts: 0 });
    const bob = world.add('bob', 'web');
    let alice = world.add('alice', 'phone');
    world.run(1000);
    world.cuts = 0.01;
    const outcomes = [];
    const heard = [];
    for (let count = 1; count <= MESSAGES; count++) {
      world.send(alice, 'bob', `alice ${count}`, outcomes);
      if (count === MESSAGES / 2) {
        world.run(world.random() * 50);
        alice.gone = true;
        heard.push(...alice.heard);
        for (const [id, link] of [...world.links]) if (link.client === alice) world.cut(id);
        alice = world.add('alice', 'phone', { positions: alice.positions, fresh: false, items: [...alice.stored.values()], tail: alice.tail });
      }
    }
    world.cuts = 0;
    world.run(60_000);
    alice.heard.unshift(...heard);
    const log = world.node.log('d:alice:bob');
    assert.deepEqual(world.node.violations, []);
    assert.deepEqual(log.map((it) => it.content.text), Array.from({ length: MESSAGES }, (_, at) => `alice ${at + 1}`));
    assert.deepEqual(bob.heard.map((it) => it.value.seq), log.map((it) => it.seq));
    assert.deepEqual(alice.heard.map((it) => it.value.seq), log.map((it) => it.seq));
    // No message waits for an id that nobody sends: that would take the skip of the node.
    assert.ok([...world.node.conns.values()].every((it) => it.held.length === 0));
  });
});

test('continues behind what was handed over before a close', () => {
  forEachSeed((seed) => {
    const world = new World(seed, { cuts: 0 });
    const bob = world.add('bob', 'web');
    let alice = world.add('alice', 'phone');
    world.run(1000);
    const outcomes = [];
    for (let count = 1; count <= MESSAGES; count++) world.at(world.random() * 5000, () => world.send(bob, 'alice', `bob ${count}`, outcomes));
    const heard = [];
    for (let closes = 0; closes < 5; closes++) {
      world.run(world.random() * 1000);
      world.session(alice).close(() => {});
      world.run(3000);
      alice.gone = true;
      heard.push(...alice.heard);
      // What came while no client was open is pulled by the next one.
      alice = world.add('alice', 'phone', { positions: alice.positions, fresh: false });
    }
    world.run(60_000);
    heard.push(...alice.heard);
    assert.deepEqual(world.node.violations, []);
    assert.deepEqual(outcomes.filter((it) => it.error), []);
    assert.deepEqual(heard.map((it) => it.value.seq), world.node.log('d:alice:bob').map((it) => it.seq));
  });
});
