import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { createServer as createTlsServer } from 'node:tls';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

/** Path of the node's binary. */
const BIN = process.env.TIDEGATE_BIN;

/** Options of tests that need a node: they are skipped without its binary, and fail when an event does not come. */
export const limits = { skip: BIN ? false : 'TIDEGATE_BIN names no binary', timeout: 60_000 };

/** Runs the node, and resolves with its process and ports once it listens. */
async function run(data, listen, origins, settings) {
  const args = ['serve', '--data', data, '--listen', listen, '--admin', '127.0.0.1:0'];
  if (origins.length > 0) args.push('--set', `listen.origins=${JSON.stringify(origins)}`);
  for (const it of settings) args.push('--set', it);
  const child = spawn(BIN, args, { stdio: ['ignore', 'pipe', 'ignore'] });
  let port;
  let admin;
  for await (const line of createInterface({ input: child.stdout })) {
    port ??= /tcp:\/\/127\.0\.0\.1:(\d+)/.exec(line)?.[1];
    admin ??= /admin\s+(http:\S+)/.exec(line)?.[1];
    if (port && admin) break;
  }
  // The rest of the output is not needed, but must not block the node.
  child.stdout.resume();
  return { child, port: Number(port), admin };
}

/** Starts a node on free ports with a data directory of its own; `settings` are such as `login.devices=user`. */
export async function startNode({ origins = [], settings = [] } = {}) {
  const data = mkdtempSync(join(tmpdir(), 'tidegate-ts-'));
  let running = await run(data, '127.0.0.1:0', origins, settings);
  const kill = async () => {
    running.child.kill('SIGKILL');
    await once(running.child, 'exit');
  };
  return {
    get port() {
      return running.port;
    },
    get admin() {
      return running.admin;
    },
    token: (user, ...more) => execFileSync(BIN, ['token', user, '--data', data, ...more], { encoding: 'utf8' }).trim(),
    /** Returns the value of a metric without labels. */
    async metric(name) {
      const text = await (await fetch(`${running.admin}/metrics`)).text();
      return Number(new RegExp(`^${name} (.+)$`, 'm').exec(text)?.[1]);
    },
    async api(path, body) {
      const response = await fetch(`${running.admin}${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      });
      if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
      return response.json();
    },
    /** Kills the node, and starts it again on its data and port. */
    async restart() {
      await kill();
      running = await run(data, `127.0.0.1:${running.port}`, origins, settings);
    },
    async stop() {
      await kill();
      rmSync(data, { recursive: true, force: true });
    },
  };
}

/**
 * Starts a TCP proxy to `port` whose connections can be cut, and which can drop what the node says before the cut. With
 * `tls`, a key and a certificate, it takes TLS connections; `attempts` also counts those that fail.
 */
export async function startProxy(port, tls) {
  const pairs = new Set();
  const proxy = { deaf: false, connections: 0, attempts: 0 };
  const serve = (client) => {
    const node = connect(port, '127.0.0.1');
    const pair = [client, node];
    pairs.add(pair);
    proxy.connections++;
    client.on('data', (data) => node.write(data));
    node.on('data', (data) => proxy.deaf || client.write(data));
    for (const socket of pair) {
      socket.on('error', () => {});
      socket.on('close', () => {
        pairs.delete(pair);
        for (const it of pair) it.destroy();
      });
    }
  };
  const server = tls ? createTlsServer(tls, serve) : createServer(serve);
  server.on('connection', () => proxy.attempts++);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  proxy.port = server.address().port;
  proxy.cut = () => {
    for (const pair of [...pairs]) for (const socket of pair) socket.destroy();
  };
  proxy.stop = () => {
    proxy.cut();
    server.close();
  };
  return proxy;
}
