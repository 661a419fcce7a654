// Adapter of the conformance kit for Node: JSON lines on stdin and stdout.
import { connect } from '../dist/index.js';
import { createDriver, memoryStores } from './driver.mjs';
import { eachLine } from './lines.mjs';

const transports = typeof globalThis.WebSocket === 'function' ? ['tcp-json', 'ws-json'] : ['tcp-json'];
const emit = (event) => process.stdout.write(JSON.stringify(event) + '\n');
const command = createDriver({ connect, makeStore: memoryStores(), emit, transports, can: ['random', 'store', 'online', 'ordered', 'sync'] });

eachLine(process.stdin, (line) => command(JSON.parse(line)), () => process.exit(0));
