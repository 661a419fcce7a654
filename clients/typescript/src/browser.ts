import { Client } from './client.js';
import { dialWebSocket } from './dial.js';
import type { Transport } from './engine.js';
import type { Options } from './types.js';

export { Client, TidegateError } from './client.js';
export { indexedDbStore } from './stores.js';
export type { Reconnect } from './error.js';
export type * from './types.js';

const transport: Transport = {
  dial: (address, options) => (/^wss?:/.test(address) ? dialWebSocket(options.webSocket) : undefined),
  kind: () => 'ws',
};

/** Returns a client that connects and stays connected until `close`. */
export function connect(options: Options): Client {
  return new Client(options, transport);
}
