import type { OutboxItem, OutboxStore } from './types.js';

const DATABASE = 'tidegate';
const ITEMS = 'items';
const STATE = 'state';

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
        request.result.createObjectStore(STATE);
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
      const transaction = (await database()).transaction([ITEMS, STATE]);
      const state = transaction.objectStore(STATE);
      const [items, positions, tail] = await Promise.all([
        result<OutboxItem[]>(transaction.objectStore(ITEMS).getAll()),
        result<Record<string, number> | undefined>(state.get('positions')),
        result<string | undefined>(state.get('tail')),
      ]);
      return { items: items.sort((a, b) => a.at - b.at), positions, tail };
    },
    put: (item) =>
      change([ITEMS, STATE], (items, state) => {
        items!.put(item);
        if (item.tail) state!.put(item.tail, 'tail');
      }),
    remove: (msgId) => change([ITEMS], (items) => items!.delete(msgId)),
    savePositions: (positions) => change([STATE], (state) => state!.put(positions, 'positions')),
  };
}
