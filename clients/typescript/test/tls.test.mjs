// The client over `tls:` and `wss:` against a real node, behind a proxy that ends TLS.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { limits, startNode, startProxy } from './support/real_node.mjs';

const CLIENT = fileURLToPath(new URL('support/tls_client.mjs', import.meta.url));
const MESSAGES = 20;
/** Node 20 has its WebSocket behind a flag. */
const FLAGS = typeof globalThis.WebSocket === 'function' ? [] : ['--experimental-websocket'];

let folder;
let authority;
let node;
let proxy;

before(async () => {
  if (limits.skip) return;
  folder = mkdtempSync(join(tmpdir(), 'tidegate-tls-'));
  authority = join(folder, 'cert.pem');
  const key = join(folder, 'key.pem');
  const request = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'];
  const names = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1'];
  execFileSync('openssl', [...request, ...names, '-keyout', key, '-out', authority], { stdio: 'ignore' });
  node = await startNode();
  proxy = await startProxy(node.port, { key: readFileSync(key), cert: readFileSync(authority) });
});

after(async () => {
  if (limits.skip) return;
  proxy.stop();
  await node.stop();
  rmSync(folder, { recursive: true, force: true });
});

/** Starts the clients; `trusted` says whether they trust the certificate. */
function start(address, trusted) {
  const env = { ...process.env, NODE_EXTRA_CA_CERTS: trusted ? authority : '' };
  const args = [...FLAGS, CLIENT, address, node.token('alice'), node.token('bob'), MESSAGES];
  const child = spawn(process.execPath, args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
  let errors = '';
  child.stderr.on('data', (text) => (errors += text));
  return { child, lines: createInterface({ input: child.stdout }), errors: () => errors };
}

let base = 0;
for (const [scheme, host] of [['tls', '127.0.0.1'], ['tls', 'localhost'], ['wss', '127.0.0.1'], ['wss', 'localhost']]) {
  test(`talks over ${scheme} to ${host}, across a cut connection`, limits, async () => {
    const { child, lines, errors } = start(`${scheme}://${host}:${proxy.port}`, true);
    const states = [];
    let end;
    for await (const line of lines) {
      const it = JSON.parse(line);
      if (it.state) states.push(it.state);
      if (it.sent === 5) proxy.cut();
      end ??= it.end;
    }
    assert.equal(child.exitCode ?? 0, 0, errors());
    assert.deepEqual(states, ['connecting', 'live', 'waiting', 'connecting', 'live', 'closed'], errors());
    const all = Array.from({ length: MESSAGES }, (_, at) => at);
    assert.deepEqual(end.got, all.map((at) => `message ${at}`));
    assert.deepEqual(end.sent, all.map((at) => base + at + 1));
    base += MESSAGES;
    assert.ok(!errors().includes('DEP0123'), 'an address is no name of a server');
  });
}

for (const scheme of ['tls', 'wss']) {
  test(`waits with an error when the certificate of ${scheme} is not trusted`, limits, async () => {
    const before = proxy.attempts;
    const { child, lines } = start(`${scheme}://localhost:${proxy.port}`, false);
    const states = [];
    for await (const line of lines) {
      states.push(JSON.parse(line));
      if (states.filter((it) => it.state === 'waiting').length === 4) child.kill();
    }
    assert.deepEqual(states.slice(0, 3).map((it) => it.state), ['connecting', 'waiting', 'connecting']);
    const { error } = states[1];
    assert.deepEqual([error.name, error.code, error.temporary, error.reconnect], ['UNREACHABLE', 0, true, 'now']);
    assert.match(error.cure, /certificate/);
    if (scheme === 'tls') assert.match(error.message, /^tls:\/\/localhost:\d+: self-signed certificate/);
    assert.equal(proxy.attempts - before, 4, 'one connection for each wait');
    assert.ok(states.every((it) => it.state !== 'live'));
  });
}
