import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

/** Path of the node's binary; tests that need one are skipped without it. */
export const BIN = process.env.TIDEGATE_BIN;
export const skip = BIN ? false : 'TIDEGATE_BIN names no binary';

/** Starts a node on free ports with a data directory of its own. */
export async function startNode({ origins = [] } = {}) {
  const data = mkdtempSync(join(tmpdir(), 'tidegate-ts-'));
  const args = ['serve', '--data', data, '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0'];
  if (origins.length > 0) args.push('--set', `listen.origins=${JSON.stringify(origins)}`);
  const child = spawn(BIN, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  let port;
  let admin;
  for await (const line of createInterface({ input: child.stdout })) {
    port ??= /tcp:\/\/127\.0\.0\.1:(\d+)/.exec(line)?.[1];
    admin ??= /admin\s+(http:\S+)/.exec(line)?.[1];
    if (port && admin) break;
  }
  // The rest of the output is not needed, but must not block the node.
  child.stdout.resume();
  return {
    port: Number(port),
    admin,
    token: (user) => execFileSync(BIN, ['token', user, '--data', data], { encoding: 'utf8' }).trim(),
    async api(path, body) {
      const response = await fetch(`${admin}${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      });
      if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
      return response.json();
    },
    async stop() {
      child.kill('SIGKILL');
      await once(child, 'exit');
      rmSync(data, { recursive: true, force: true });
    },
  };
}

/** Starts a TCP proxy to `port` whose connections can be cut, and which can drop what the node says before the cut. */
export async function startProxy(port) {
  const pairs = new Set();
  const proxy = { deaf: false, connections: 0 };
  const server = createServer((client) => {
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
  });
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
