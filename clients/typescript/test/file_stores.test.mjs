// The outboxes of the kit in files: what another process finds after a kill.
import assert from 'node:assert/strict';
import { appendFileSync, mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileStores } from '../kit/file_stores.mjs';

const item = (at, tail) => ({ msgId: `m${at}`, at, to: { toUser: 'bob' }, content: { text: `hi ${at}` }, chained: true, tail });

test('another process finds what is unanswered, and a torn line is nothing', async (context) => {
  const directory = mkdtempSync(join(tmpdir(), 'tidegate-files-'));
  context.after(() => rmSync(directory, { recursive: true, force: true }));
  const store = fileStores()(directory, 'device/1');
  assert.deepEqual(await store.load(), { items: [], positions: undefined, tail: undefined });
  await store.put(item(2, 't2'));
  await store.put(item(1, 't1'));
  await store.put(item(3, 't3'));
  await store.remove('m2');
  await store.savePositions({ 'd:a:b': 4 });
  await store.savePositions({ '': 0 });
  const expected = { items: [item(1, 't1'), item(3, 't3')], positions: { 'd:a:b': 4, '': 0 }, tail: 't3' };
  assert.deepEqual(await store.load(), expected);
  const [name] = readdirSync(directory);
  appendFileSync(join(directory, name), '{"remove":"m1"');
  const next = fileStores()(directory, 'device/1');
  assert.deepEqual(await next.load(), expected);
  await next.remove('m1');
  assert.deepEqual((await fileStores()(directory, 'device/1').load()).items, [item(3, 't3')]);
});

test('an answer is reported before its message is removed', async (context) => {
  const directory = mkdtempSync(join(tmpdir(), 'tidegate-files-'));
  context.after(() => rmSync(directory, { recursive: true, force: true }));
  const store = fileStores()(directory, 'device');
  await store.put(item(1, 't1'));
  const removed = store.remove('m1');
  // The driver reports the answer of a message from a store in a timer.
  await new Promise((resolve) => setTimeout(resolve));
  assert.equal((await store.load()).items.length, 1);
  await removed;
  assert.equal((await store.load()).items.length, 0);
});

test('a client that crashed writes nothing after the next one has opened its store', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'tidegate-stores-'));
  const open = fileStores();
  const item = (msgId, at) => ({ msgId, at, tail: `after ${msgId}` });
  const crashed = open(directory, 'phone');
  await crashed.put(item('m1', 1));
  const removal = crashed.remove('m1');
  const next = open(directory, 'phone');
  assert.equal((await next.load()).tail, 'after m1');
  let isDone = false;
  void crashed.put(item('m2', 2)).then(() => (isDone = true));
  await next.put(item('n2', 2));
  await removal;
  assert.deepEqual((await next.load()).items.map((it) => it.msgId), ['m1', 'n2']);
  assert.ok(!isDone && !readFileSync(join(directory, 'phone.jsonl'), 'utf8').includes('m2'));
  rmSync(directory, { recursive: true });
});
