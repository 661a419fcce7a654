import { connect as connectTcp, isIP } from 'node:net';
import { connect as connectTls } from 'node:tls';
import type { Dial } from './dial.js';

/** Longest line of the node that is accepted. */
const LINE_MAX = 16 * 1024 * 1024;
/** Time that the node has to close its half after the client has closed. */
const LINGER_MS = 1000;

/** Opens a TCP or TLS connection with JSON lines. */
export const dialTcp: Dial = (address, handlers) => {
  const { hostname, port, protocol } = new URL(address);
  const to = { host: hostname.replace(/^\[|\]$/g, ''), port: Number(port) };
  const isTls = protocol === 'tls:';
  // An address is no name of a server.
  const socket = isTls ? connectTls({ ...to, servername: isIP(to.host) ? '' : to.host }) : connectTcp(to);
  let parts: string[] = [];
  let held = 0;
  socket.setEncoding('utf8');
  socket.setNoDelay(true);
  socket.on(isTls ? 'secureConnect' : 'connect', handlers.opened);
  socket.on('data', (chunk) => {
    const lines = String(chunk).split('\n');
    const rest = lines.pop()!;
    if (lines.length > 0) {
      lines[0] = parts.join('') + lines[0]!;
      parts = [];
      held = 0;
      for (const line of lines) handlers.text(line.trim());
    }
    parts.push(rest);
    held += rest.length;
    if (held > LINE_MAX) socket.destroy();
  });
  let cause: string | undefined;
  // An error is followed by `close`.
  socket.on('error', ({ message }) => (cause = message));
  socket.on('close', () => handlers.closed(cause));
  return {
    send: (line) => void socket.write(line + '\n'),
    close: () => {
      socket.removeAllListeners('data');
      socket.removeAllListeners('close');
      socket.end();
      socket.resume();
      socket.once('end', () => socket.destroy());
      socket.setTimeout(LINGER_MS, () => socket.destroy());
    },
  };
};
