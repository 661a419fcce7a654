// What both adapters share: carries out the commands of the conformance kit on clients of this library. It runs in Node
// and in a page; `connect` and `makeStore` come from outside, `emit` takes the events.

const encode = (bytes) => btoa(String.fromCharCode(...bytes));
const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

/** Returns the content as the kit writes it: bytes in base64. */
const contentOut = ({ data, ...rest }) => (data ? { ...rest, data: encode(data) } : rest);
const contentIn = ({ data, ...rest }) => (data === undefined ? rest : { ...rest, data: decode(data) });

/** Ends of a connection or of the client, which are no answers; the promise ends, but the kit gets no event. */
const isEnd = ({ code, name }) => (code === 0 && name !== 'UNSUPPORTED') || (code >= 3000 && code < 4000);

export function createDriver({ connect, makeStore, makeFile, webSocket, emit, transports, can }) {
  const clients = new Map();

  /** Returns the outbox of a client; each message that is durable in a file is reported. */
  function outboxOf({ client, options }) {
    const { store: name, files: directory } = options;
    if (directory === undefined) return makeStore(name);
    const store = makeFile(directory, name);
    return {
      ...store,
      async put(item) {
        await store.put(item);
        const { msgId, content } = item;
        if (!clients.get(client)?.over) emit({ event: 'stored', client, msgId, content });
      },
    };
  }

  function open(command) {
    const { client: name, addresses, user, device, tokens, options = {} } = command;
    const left = [...tokens];
    const client = connect({
      addresses,
      user,
      device,
      token: async () => (left.length > 1 ? left.shift() : left[0]),
      chain: options.chain ?? false,
      from: options.history === 'all' ? 'start' : 'now',
      ...(options.settings ? { settings: options.settings } : {}),
      ...(options.random !== undefined ? { random: () => options.random } : {}),
      ...(options.store !== undefined ? { outbox: outboxOf(command) } : {}),
      ...(webSocket ? { webSocket } : {}),
      ...(options.tabs !== undefined ? { tabs: 'shared' } : {}),
    });
    // `names` has the ids and the errors of sends whose promise was settled.
    const entry = { client, names: new Set(), over: false, stored: options.store !== undefined };
    clients.set(name, entry);
    listen(name, entry);
  }

  function listen(name, entry) {
    const { client } = entry;
    const say = (event, fields) => entry.over || emit({ client: name, event, ...fields });
    client.on('state', ({ name: state, error, node, session }) => {
      if (state === 'offline') return;
      const live = state === 'live' ? { node, session } : {};
      // What the client itself finds is no close of the node.
      const close = error?.code ? error : { code: 0, name: '' };
      const code = state === 'waiting' || state === 'closed' ? { code: close.code, name: close.name } : {};
      say('state', { state, ...live, ...code });
    });
    client.on('message', ({ conversation, seq, sender, msgId, content, flags }) =>
      say('message', { conversation, seq, sender, msgId, content: contentOut(content), ...(flags ? { flags } : {}) }),
    );
    client.on('change', ({ conversation, seq, change, users, role, settings }) =>
      say('change', { conversation, seq, change: `MEMBER_CHANGE_${change}`, users, ...(role ? { role } : {}), ...(settings ? { settings } : {}) }),
    );
    client.on('recall', ({ conversation, recalled }) => say('recalled', { conversation, seq: recalled }));
    // A page leaves out the content of an edit that has a later one.
    client.on('edit', ({ conversation, seq: edit, edited: seq, content }) =>
      say('edited', { conversation, seq, edit, ...(Object.keys(content).length > 0 ? { content: contentOut(content) } : {}) }),
    );
    client.on('roomStats', (it) => say('roomStats', it));
    client.on('presence', (it) => say('presence', it));
    client.on('synced', ({ unread }) => {
      for (const it of client.conversations()) {
        const { conversation, maxSeq, readSeq, unread: count } = it;
        say('conversation', { conversation, maxSeq, readSeq, unread: count });
      }
      say('synced', { unread });
    });
    client.on('receipt', (it) => say('receipt', it));
    client.on('cleared', (it) => say('cleared', it));
    client.on('hidden', (it) => say('hidden', it));
    client.on('signal', ({ content, ...it }) => say('signal', { ...it, ...(content ? { content: contentOut(content) } : {}) }));
    client.on('notice', (it) => say('notice', it));
    client.on('shed', (it) => say('shed', it));
    client.on('refresh', ({ error }) => say('refresh', { code: error?.code ?? 0, name: error?.name ?? '' }));
    if (!entry.stored) return;
    // Messages that the store brought back have no promise here, which would have resolved before the next task.
    client.on('accepted', ({ conversation, msgId, seq, duplicate }) => {
      setTimeout(() => entry.names.has(msgId) || say('sent', { conversation, msgId, seq, duplicate }));
    });
    client.on('failed', ({ msgId, content, error }) => {
      const { code, name } = error;
      setTimeout(() => entry.names.has(error) || say('failed', { msgId, code, name, content: contentOut(content) }));
    });
  }

  const runs = {
    async send(client, { to, content, flags }, entry) {
      const { conversation, msgId, seq, duplicate } = await client.send(to, contentIn(content), flags ? { flags } : {});
      entry.names.add(msgId);
      return { event: 'sent', conversation, msgId, seq, duplicate };
    },
    read: (client, { conversation, seq }) => client.read(conversation, seq),
    recall: (client, { conversation, seq }) => client.recall(conversation, seq),
    edit: (client, { conversation, seq, content }) => client.edit(conversation, seq, contentIn(content)),
    clear: (client, { conversation, seq }) => client.clear(conversation, seq),
    hide: (client, { conversation, seqs }) => client.hide(conversation, seqs),
    leave: (client, { conversation, room }) => client.leave(conversation ?? (room.startsWith('r:') ? room : `r:${room}`)),
    join: (client, { room }) => client.join(room),
    sync: (client) => client.sync(),
    react: (client, { room, kind }) => client.react(room, kind),
    watch: (client, { conversation }) => client.watch(conversation),
    unwatch: (client, { conversation }) => client.unwatch(conversation),
    signal: (client, { to, kind, content }) => client.signal(to, kind, content && contentIn(content)),
    async pull(client, { conversation, cursor, direction, limit, seqs, time }) {
      return { page: await client.pull(conversation, JSON.parse(JSON.stringify({ cursor, direction, limit, seqs, time }))) };
    },
    close: (client) => client.close(),
  };

  async function run(command, entry) {
    const { do: what, client, as } = command;
    try {
      const result = await runs[what](entry.client, command, entry);
      if (!entry.over) emit({ event: 'done', client, as, ...result });
    } catch (error) {
      entry.names.add(error);
      if (entry.over || (isEnd(error) && what !== 'signal' && what !== 'react')) return;
      emit({ event: 'failed', client, as, code: error.code ?? 0, name: error.name, temporary: error.temporary ?? false });
    }
  }

  /** Carries out one command. */
  return function command(it) {
    if (it.do === 'describe') {
      emit({ event: 'description', name: 'tidegate-typescript', version: '0.1.0', levels: ['L0', 'L1', 'L2', 'L3'], transports, can });
      return;
    }
    if (it.do === 'connect') return open(it);
    const entry = clients.get(it.client);
    if (entry && it.do === 'drop') {
      entry.over = true;
      entry.client.drop();
    } else if (entry && it.do === 'online') {
      entry.client.online();
    } else if (entry && runs[it.do]) {
      void run(it, entry);
    } else {
      emit({ event: 'unsupported', do: it.do, client: it.client, as: it.as });
    }
  };
}

/**
 * Returns what one client has of a store, until the next client opens it: a crashed one writes nothing any more, and its calls
 * never end. Its late messages would come between those of the next client, which does not know them.
 */
export function lease(store) {
  const mine = (store.clients = (store.clients ?? 0) + 1);
  const call = (name) => (value) => (store.clients === mine ? store[name](value, () => store.clients === mine) : new Promise(() => {}));
  return { load: call('load'), put: call('put'), remove: call('remove'), savePositions: call('savePositions') };
}

/** Returns an outbox in memory that outlives its client, as a file would. */
export function memoryStores() {
  const all = new Map();
  return (name) => {
    let store = all.get(name);
    if (!store) all.set(name, (store = memoryStore()));
    return lease(store);
  };
}

function memoryStore() {
  const it = { items: new Map(), positions: undefined, tail: undefined };
  return {
    load: async () => ({ items: structuredClone([...it.items.values()]), positions: structuredClone(it.positions), tail: it.tail }),
    put: async (item) => {
      it.items.set(item.msgId, structuredClone(item));
      it.tail = item.tail ?? it.tail;
    },
    remove: async (msgId) => void it.items.delete(msgId),
    savePositions: async (changed) => void (it.positions = { ...it.positions, ...changed }),
  };
}
