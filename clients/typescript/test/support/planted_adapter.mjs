// The adapter of the kit with planted faults, which chaos has to find: PLANT names them, separated by commas.
import { connect } from '../../dist/index.js';
import { createDriver, memoryStores } from '../../kit/driver.mjs';
import { fileStores } from '../../kit/file_stores.mjs';
import { eachLine } from '../../kit/lines.mjs';

/** What happens to the message that is the n-th of a conversation to be shown; a live room has rules of its own. */
const SHOWN = {
  lose: { at: 10, show: () => [] },
  double: { at: 20, show: (event) => [event, event] },
  spoil: { at: 30, show: (event) => [{ ...event, content: { text: 'spoilt' } }] },
};
/** Time for which `forget` keeps a message back after it was stored, so that a kill finds some. */
const BACK_MS = 500;

const names = (process.env.PLANT ?? '').split(',');
const faults = names.map((name) => SHOWN[name]);
let shown = 0;
function emit(event) {
  const isCounted = event.event === 'message' && !event.conversation.startsWith('r:');
  if (isCounted) shown++;
  const fault = isCounted && faults.find((it) => it?.at === shown);
  for (const it of fault ? fault.show(event) : [event]) process.stdout.write(JSON.stringify(it) + '\n');
}

/** A store that has forgotten unanswered messages when the next client opens it. */
function forgetful(store) {
  const isNew = new Set();
  return {
    ...store,
    async load() {
      const { items, ...rest } = await store.load();
      return { ...rest, items: items.filter((it) => isNew.has(it.msgId)) };
    },
    async put(item) {
      isNew.add(item.msgId);
      await store.put(item);
    },
  };
}

/** A client that sends what it has stored only after a while. */
function late(options) {
  const { outbox } = options;
  if (!outbox) return connect(options);
  const put = async (item) => {
    await outbox.put(item);
    await new Promise((resolve) => setTimeout(resolve, BACK_MS));
  };
  return connect({ ...options, outbox: { ...outbox, put } });
}

const forgets = names.includes('forget');
const files = fileStores();
const command = createDriver({
  connect: forgets ? late : connect,
  makeStore: memoryStores(),
  makeFile: (directory, name) => forgetful(files(directory, name)),
  emit,
  transports: ['tcp-json'],
  // The faults of what is shown happen once in a process, so only `forget` lets it be killed.
  can: ['store', 'ordered', 'sync', ...(forgets ? ['files'] : [])],
});
eachLine(process.stdin, (line) => command(JSON.parse(line)), () => process.exit(0));
