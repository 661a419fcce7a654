// Writes src/cures.ts from docs/errors.md, which is generated from protocol/src/code.rs. `--check` only compares.
import { readFileSync, writeFileSync } from 'node:fs';

const page = readFileSync(new URL('../../../docs/errors.md', import.meta.url), 'utf8');
const target = new URL('../src/cures.ts', import.meta.url);

const rows = page.split(/^### /m).slice(1).map((part) => {
  const head = /^(\d+) (\w+)/.exec(part);
  const cure = /\*What to do:\* (.+)/.exec(part);
  if (!head || !cure) throw new Error(`docs/errors.md: unreadable section ${part.slice(0, 40)}`);
  return `  ${head[2]}: ${JSON.stringify(cure[1]).replace(/^"(.*)"$/, (_, it) => `'${it.replaceAll("'", "\\'")}'`)},`;
});

const text = `// Generated from docs/errors.md by \`npm run codes\`; change protocol/src/code.rs instead.
import { TidegateError } from './error.js';
import { LOCAL_CURES } from './local_cures.js';

/** What to do about each code, by its name. */
export const CURES: Readonly<Record<string, string>> = {
${rows.join('\n')}
};

// Importing this module gives every error its cure. It is apart, because not every page needs the sentences.
Object.assign(TidegateError.cures, CURES, LOCAL_CURES);
`;

if (process.argv.includes('--check')) {
  if (readFileSync(target, 'utf8') !== text) {
    console.error('src/cures.ts is stale: npm run codes');
    process.exit(1);
  }
} else {
  writeFileSync(target, text);
}
