// The page of the client names all that it has.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import * as index from '../dist/index.js';

const read = (path) => readFileSync(new URL(path, import.meta.url), 'utf8');
const page = read('../../../docs/clients/typescript.md');
const types = read('../src/types.ts');

/** Names of the fields of an interface. */
function fields(name) {
  const body = types.split(`export interface ${name} {\n`)[1].split('\n}')[0];
  return [...body.matchAll(/^  (\w+)\??[(:]/gm)].map(([, field]) => field);
}

/** Whether the page has the name as code: in a line or as a call of an example. */
const isNamed = (name) => new RegExp(`\`[^\`\n]*\\b${name}\\b[^\`\n]*\`|\\b${name}\\(`).test(page);

test('the page names every call, event, option and export', () => {
  const calls = Object.getOwnPropertyNames(index.Client.prototype).filter((it) => !['constructor', 'drop'].includes(it));
  const kinds = [...types.matchAll(/kind: '(\w+)'/g)].map(([, kind]) => kind);
  const options = ['Options', 'SendOptions', 'HistoryOptions', 'Content'].flatMap(fields);
  const exported = Object.keys(index).filter((it) => it !== 'Client');
  for (const list of [calls, fields('Events'), options, kinds, exported, fields('OutboxStore'), fields('State')]) {
    assert.ok(list.length > 0);
    assert.deepEqual(list.filter((it) => !isNamed(it)), []);
  }
});
