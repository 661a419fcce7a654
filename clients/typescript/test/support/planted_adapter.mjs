// The adapter of the kit with planted faults, which chaos has to find: PLANT names them, separated by commas.
import { connect } from '../../dist/index.js';
import { createDriver, memoryStores } from '../../kit/driver.mjs';
import { eachLine } from '../../kit/lines.mjs';

/** What happens to the message that is the n-th to be shown. */
const FAULTS = {
  lose: { at: 10, show: () => [] },
  double: { at: 20, show: (event) => [event, event] },
  spoil: { at: 30, show: (event) => [{ ...event, content: { text: 'spoilt' } }] },
};

const faults = (process.env.PLANT ?? '').split(',').map((name) => FAULTS[name]);
let shown = 0;
function emit(event) {
  if (event.event === 'message') shown++;
  const fault = event.event === 'message' && faults.find((it) => it?.at === shown);
  for (const it of fault ? fault.show(event) : [event]) process.stdout.write(JSON.stringify(it) + '\n');
}

const command = createDriver({ connect, makeStore: memoryStores(), emit, transports: ['tcp-json'], can: ['store', 'ordered', 'sync'] });
eachLine(process.stdin, (line) => command(JSON.parse(line)), () => process.exit(0));
