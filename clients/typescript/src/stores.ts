import type { OutboxItem, OutboxStore } from './types.js';

const DATABASE = 'tidegate';
const ITEMS = 'items';
const TAIL = 'tail';
const POSITIONS = 'positions';

const result = <T>(request: IDBRequest<T>): Promise<T> =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** Returns an outbox in IndexedDB; `name` keeps users and devices of one origin apart. */
export function indexedDbStore(name: string, factory: IDBFactory = indexedDB): OutboxStore {
  let opening: Promise<IDBDatabase> | undefined;
  const database = () =>
    (opening ??= (() => {
      const request = factory.open(`${DATABASE}:${name}`, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore(ITEMS, { keyPath: 'msgId' });
        request.result.createObjectStore(TAIL);
        request.result.createObjectStore(POSITIONS);
      };
      return result(request);
    })());
  const change = async (stores: string[], run: (...stores: IDBObjectStore[]) => void): Promise<void> => {
    const transaction = (await database()).transaction(stores, 'readwrite', { durability: 'strict' });
    run(...stores.map((it) => transaction.objectStore(it)));
    await new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
  };
  return {
    async load() {
      const transaction = (await database()).transaction([ITEMS, TAIL, POSITIONS]);
      const [items, tail, conversations, seqs] = await Promise.all([
        result<OutboxItem[]>(transaction.objectStore(ITEMS).getAll()),
        result<string | undefined>(transaction.objectStore(TAIL).get(0)),
        result<IDBValidKey[]>(transaction.objectStore(POSITIONS).getAllKeys()),
        result<number[]>(transaction.objectStore(POSITIONS).getAll()),
      ]);
      const positions = seqs.length > 0 ? Object.fromEntries(conversations.map((it, at) => [it, seqs[at]!])) : undefined;
      return { items: items.sort((a, b) => a.at - b.at), tail, positions };
    },
    put: (item) =>
      change([ITEMS, TAIL], (items, tail) => {
        items!.put(item);
        if (item.tail) tail!.put(item.tail, 0);
      }),
    remove: (msgId) => change([ITEMS], (items) => items!.delete(msgId)),
    savePositions: (changed) =>
      change([POSITIONS], (store) => {
        for (const [conversation, seq] of Object.entries(changed)) store!.put(seq, conversation);
      }),
  };
}
