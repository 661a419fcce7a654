// The example of the README, as it is printed there.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { test } from 'node:test';
import { limits, startNode } from './support/real_node.mjs';

test('runs the example of the README', limits, async () => {
  const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
  const example = /```js\n([^`]*(?:`[^`]+`[^`]*)*)```/.exec(readme)[1];
  const output = /```text\n([^`]*)```/.exec(readme)[1];
  const opening = readFileSync(new URL('../../../README.md', import.meta.url), 'utf8');
  assert.ok(opening.includes(example), 'the README of the project opens with the same example');
  assert.ok(example.trim().split('\n').filter((line) => line !== '').length <= 6);
  const node = await startNode();
  // The name of the package leads to dist/ from inside the package.
  const file = new URL('../dist/readme_example.mjs', import.meta.url);
  try {
    writeFileSync(file, example.replace('7800', String(node.port)));
    const child = spawn(process.execPath, [fileURLToPath(file)], { env: { ...process.env, TOKEN: node.token('alice') }, stdio: ['ignore', 'pipe', 'inherit'] });
    let text = '';
    child.stdout.on('data', (data) => (text += data));
    const [code] = await once(child, 'close');
    assert.equal(code, 0);
    assert.equal(text, output);
  } finally {
    rmSync(file, { force: true });
    await node.stop();
  }
});
