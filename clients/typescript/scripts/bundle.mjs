// Builds dist/browser.js, one minified file, and what a page loads on demand. Fails if one of them is larger than the documentation promises.
import { readFileSync, writeFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';
import { minify } from 'terser';

/** Most bytes of each file, gzipped. */
const MAX = { 'browser.js': 12 * 1024, 'tabs.js': 4 * 1024, 'cures.browser.js': 3 * 1024 };

/** Names that only the modules of the bundle use: neither the API, nor frames, nor stored items, nor tabs.js. */
const INTERNAL = [
  'accepted acked again alternate answer answered attempts authorized body bytes conn continueAt counting declaration deliver dial done doneBy due emit enter',
  'end events exhausted exists fail failed feed floor flush frame fromStart gap gone held hold idle inbox inform isInDoubt isOwn isStale judged lost',
  'moved movedUntil needs newId once opened outcome own part persistent phase position pulling pump pushed readyAt release renew renewed removed report request requests restore rooms run',
  'socket soonest store stored syncStarted synced target timers tries watches write',
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
// What esbuild has minified gets 3 % smaller: terser inlines more, and names variables so that gzip finds more repetitions,
// of which it finds yet more without the two changes that make the text itself shorter. No getter here has an effect,
// and no function is called with `new`.
const compress = { passes: 2, sequences: false, lhs_constants: false, pure_getters: true, unsafe_arrows: true, unsafe_methods: true };
const { code } = await minify(outputFiles[0].text, { module: true, ecma: 2022, compress });
writeFileSync('dist/browser.js', code);
// The cures join the class of the bundle, not one of their own.
const alias = {
  name: 'same-class',
  setup: (build) => build.onResolve({ filter: /error\.js$/ }, () => ({ path: './browser.js', external: true })),
};
await build({ ...options, entryPoints: ['src/cures.ts'], outfile: 'dist/cures.browser.js', plugins: [alias] });
for (const [name, most] of Object.entries(MAX)) {
  const size = gzipSync(readFileSync(`dist/${name}`), { level: 9 }).length;
  console.log(`dist/${name}: ${size} bytes gzipped, at most ${most}`);
  if (size > most) process.exitCode = 1;
}
