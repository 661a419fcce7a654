import type { OutboxItem, OutboxStore } from './types.js';

const DATABASE = 'tidegate';
const ITEMS = 'items';
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
        request.result.createObjectStore(POSITIONS);
      };
      return result(request);
    })());
  const change = async (store: string, run: (store: IDBObjectStore) => void): Promise<void> => {
    const transaction = (await database()).transaction(store, 'readwrite', { durability: 'strict' });
    run(transaction.objectStore(store));
    await new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
  };
  return {
    async load() {
      const transaction = (await database()).transaction([ITEMS, POSITIONS]);
      const items = result<OutboxItem[]>(transaction.objectStore(ITEMS).getAll());
      const positions = result<Record<string, number> | undefined>(transaction.objectStore(POSITIONS).get(0));
      return { items: (await items).sort((a, b) => a.at - b.at), positions: await positions };
    },
    put: (item) => change(ITEMS, (store) => store.put(item)),
    remove: (msgId) => change(ITEMS, (store) => store.delete(msgId)),
    savePositions: (positions) => change(POSITIONS, (store) => store.put(positions, 0)),
  };
}
