// Adapter of the conformance kit for Node: JSON lines on stdin and stdout.
import { createInterface } from 'node:readline';
import { connect } from '../dist/index.js';
import { createDriver, memoryStores } from './driver.mjs';

const transports = typeof globalThis.WebSocket === 'function' ? ['tcp-json', 'ws-json'] : ['tcp-json'];
const emit = (event) => process.stdout.write(JSON.stringify(event) + '\n');
const command = createDriver({ connect, makeStore: memoryStores(), emit, transports, can: ['random', 'store', 'online', 'ordered', 'sync'] });

const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => line.trim() && command(JSON.parse(line)));
lines.on('close', () => process.exit(0));
