// Builds dist/browser.js, one minified file, and fails if it is larger than the promise of the README.
import { writeFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';
import { minify } from 'terser';

const MAX = 12 * 1024;

/** Names that only the modules of the bundle use: neither the API, nor frames, nor stored items, nor tabs.js. */
const INTERNAL = [
  'accepted acked again alternate answer answered ask attempts authorized body bytes conn continueAt counting declaration deliver dial doneBy due emit',
  'end events exhausted exists fail failed feed floor flush frame frameId fromStart gap gone held hold idle inbox inform isInDoubt isOwn isStale judged lost',
  'marked moved movedUntil newId once opened own part persistent phase position pulling pump pushed reacts readyAt rejoin release renew renewed removed request restore rooms run',
  'socket soonest store stored syncStarted synced target tick timers tries write',
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
const { outputFiles } = await build({ ...options, mangleProps, entryPoints: ['src/browser.ts'], write: false });
// What esbuild has minified gets 3 % smaller: terser inlines more, and names variables so that gzip finds more repetitions.
const { code } = await minify(outputFiles[0].text, { module: true, ecma: 2022, compress: { passes: 2 } });
writeFileSync('dist/browser.js', code);
// The cures join the class of the bundle, not one of their own.
const alias = {
  name: 'same-class',
  setup: (build) => build.onResolve({ filter: /error\.js$/ }, () => ({ path: './browser.js', external: true })),
};
await build({ ...options, entryPoints: ['src/cures.ts'], outfile: 'dist/cures.browser.js', plugins: [alias] });
const size = gzipSync(code, { level: 9 }).length;
console.log(`dist/browser.js: ${size} bytes gzipped, at most ${MAX}`);
if (size > MAX) process.exit(1);
