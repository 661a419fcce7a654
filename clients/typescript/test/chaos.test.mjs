// The lab's chaos with the client in Node: its checker finds what a client loses, shows twice, spoils or forgets.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';

const { TIDEGATE_BIN: bin, TIDEGATE_LAB: lab } = process.env;
const options = { skip: bin && lab ? false : 'TIDEGATE_BIN or TIDEGATE_LAB names no binary', timeout: 120_000 };

/** Runs chaos for some seconds with some devices of an adapter, and resolves with the verdict. */
function chaos(adapter, { seconds, devices, env }) {
  const command = `node ${fileURLToPath(new URL(adapter, import.meta.url))}`;
  const words = ['chaos', '--seconds', seconds, '--users', '8', '--rate', '80', '--adapter', command, '--adapter-devices', devices, '--binary', bin];
  return new Promise((resolve, reject) => {
    // A run that hangs ends before the test does, or its node would go on.
    execFile(lab, words, { env: { ...process.env, ...env }, timeout: 100_000, maxBuffer: 1 << 24 }, (_error, stdout, stderr) => {
      try {
        resolve(JSON.parse(stdout).verdict);
      } catch {
        reject(new Error(`${stdout}\n${stderr}`));
      }
    });
  });
}

describe('chaos with planted faults', { concurrency: 2 }, () => {
  test('chaos finds what a client loses, shows twice and spoils', options, async () => {
    const verdict = await chaos('support/planted_adapter.mjs', { seconds: '4', devices: '1', env: { PLANT: 'lose,double,spoil' } });
    for (const rule of ['never-got', 'duplicate-after-dedup', 'corrupted']) assert.match(verdict, new RegExp(`"${rule}"`));
  });

  test('chaos finds what the outbox of a killed client forgets', options, async () => {
    // The process is killed within 16 s of its start.
    const verdict = await chaos('support/planted_adapter.mjs', { seconds: '17', devices: '4', env: { PLANT: 'forget' } });
    assert.match(verdict, /"kept-lost"/);
  });
});
