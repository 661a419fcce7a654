// Builds dist/browser.js, one minified file, and fails if it is larger than the promise of the README.
import { readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

const MAX = 12 * 1024;

/** Names that only the modules of the bundle use: neither the API, nor frames, nor stored items, nor tabs.js. */
const INTERNAL = [
  'accepted acked again alternate answered attempts authorized body continueAt counting declaration deliver dial doneBy due emit exhausted exists fail',
  'failed feed floor flush frame frameId fromStart gone held idle inbox inform isInDoubt isOwn isStale judged lost marked moved movedUntil newId opened part',
  'persistent phase position pulling pump pushed readyAt rejoin release removed restore rooms soonest store stored syncStarted target tick timers tries write',
].join(' ');

const options = {
  bundle: true,
  external: ['./tabs.js'],
  minify: true,
  format: 'esm',
  target: 'es2022',
  platform: 'browser',
  legalComments: 'none',
};
const mangleProps = new RegExp(`^(${INTERNAL.replaceAll(' ', '|')})$`);
await build({ ...options, mangleProps, entryPoints: ['src/browser.ts'], outfile: 'dist/browser.js' });
// The cures join the class of the bundle, not one of their own.
const alias = {
  name: 'same-class',
  setup: (build) => build.onResolve({ filter: /error\.js$/ }, () => ({ path: './browser.js', external: true })),
};
await build({ ...options, entryPoints: ['src/cures.ts'], outfile: 'dist/cures.browser.js', plugins: [alias] });
const size = gzipSync(readFileSync('dist/browser.js'), { level: 9 }).length;
console.log(`dist/browser.js: ${size} bytes gzipped, at most ${MAX}`);
if (size > MAX) process.exit(1);
