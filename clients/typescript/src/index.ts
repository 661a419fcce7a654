import './cures.js';
import { Client } from './client.js';
import { dialWebSocket } from './dial.js';
import type { Transport, TransportOptions } from './engine.js';
import { dialTcp } from './tcp.js';
import type { Options } from './types.js';

export { Client, TidegateError } from './client.js';
export { indexedDbStore } from './stores.js';
export type { Reconnect } from './error.js';
export type * from './types.js';

/** Node has a global WebSocket since version 22. */
const hasWebSocket = (options: TransportOptions): boolean => options.webSocket !== undefined || typeof globalThis.WebSocket === 'function';

const transport: Transport = {
  dial(address, options) {
    if (/^(tcp|tls):/.test(address)) return dialTcp;
    return /^wss?:/.test(address) && hasWebSocket(options) ? dialWebSocket(options.webSocket) : undefined;
  },
  kind: (options) => (hasWebSocket(options) ? 'ws' : 'tcp'),
};

/** Returns a client that connects and stays connected until `close`. */
export function connect(options: Options): Client {
  return new Client(options, transport);
}
