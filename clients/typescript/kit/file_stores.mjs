// Outboxes in files, for Node: each is a log of JSON lines that outlives the process, also one that is killed.
import { closeSync, existsSync, fdatasync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { lease } from './driver.mjs';

const syncData = promisify(fdatasync);
/**
 * Wait before an answered message is removed. Its answer is reported before that, so after a crash in between it is sent
 * again and answered again, but never forgotten without an answer.
 */
const REMOVE_MS = 5;

/** Applies a line to what the file holds. */
function apply(state, { put, remove, positions, tail }) {
  if (put) state.items.set(put.msgId, put);
  if (remove) state.items.delete(remove);
  if (positions) state.positions = { ...state.positions, ...positions };
  state.tail = put?.tail ?? tail ?? state.tail;
}

function openStore(path) {
  const state = { items: new Map(), positions: undefined, tail: undefined };
  // What follows the last LF was being written when the process was killed.
  const lines = existsSync(path) ? readFileSync(path, 'utf8').split('\n').slice(0, -1) : [];
  for (const line of lines) apply(state, JSON.parse(line));
  // The file begins again with what it holds, so it does not grow over many runs.
  const fd = openSync(`${path}.new`, 'w');
  const append = (entry) => void writeSync(fd, JSON.stringify(entry) + '\n');
  append({ positions: state.positions, tail: state.tail });
  for (const put of state.items.values()) append({ put });
  fsyncSync(fd);
  renameSync(`${path}.new`, path);

  const write = (entry) => {
    apply(state, entry);
    append(entry);
  };
  // One sync serves all that was written before it begins.
  let last = Promise.resolve();
  let next;
  const begin = () => {
    next = undefined;
    return (last = syncData(fd));
  };
  const synced = () => (next ??= last.then(begin, begin));
  return {
    async load() {
      const items = [...state.items.values()].sort((a, b) => a.at - b.at);
      return structuredClone({ items, positions: state.positions, tail: state.tail });
    },
    async put(item) {
      write({ put: structuredClone(item) });
      await synced();
    },
    async remove(msgId, isCurrent) {
      await new Promise((resolve) => setTimeout(resolve, REMOVE_MS));
      if (isCurrent()) write({ remove: msgId });
    },
    // Written at once, but not synced: after a power failure entries are reported again.
    savePositions: async (positions) => write({ positions }),
  };
}

/** Returns a function that opens the store of a name in a directory; one process opens each file once. */
export function fileStores() {
  const all = new Map();
  return (directory, name) => {
    const path = join(directory, `${encodeURIComponent(name)}.jsonl`);
    let store = all.get(path);
    if (!store) {
      mkdirSync(directory, { recursive: true });
      const folder = openSync(directory, 'r');
      all.set(path, (store = openStore(path)));
      // The name of the file is durable, too.
      fsyncSync(folder);
      closeSync(folder);
    }
    return lease(store);
  };
}
