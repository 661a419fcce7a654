// Adapter of the conformance kit for Node: JSON lines on stdin and stdout.
import { connect } from '../dist/index.js';
import { createDriver, memoryStores } from './driver.mjs';
import { fileStores } from './file_stores.mjs';
import { eachLine } from './lines.mjs';
import { openWebSocket } from './websocket.mjs';

const emit = (event) => process.stdout.write(JSON.stringify(event) + '\n');
const command = createDriver({
  connect,
  makeStore: memoryStores(),
  makeFile: fileStores(),
  // Node has a WebSocket since version 22.
  webSocket: typeof globalThis.WebSocket === 'function' ? undefined : openWebSocket,
  emit,
  transports: ['tcp-json', 'ws-json'],
  can: ['random', 'store', 'files', 'online', 'ordered', 'sync', 'refresh', 'react', 'edit', 'edits', 'flags', 'json', 'roomStats', 'watch'],
});

eachLine(process.stdin, (line) => command(JSON.parse(line)), () => process.exit(0));
