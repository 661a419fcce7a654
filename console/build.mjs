// Builds the page into `dist/`: a shell and assets whose names carry the hash of their content.
// The same input gives the same bytes. `--tests` builds the tests of the pure modules into `.test-build/` instead.
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { basename, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import * as esbuild from "esbuild";
import { codes } from "./codes.mjs";

const home = new URL(".", import.meta.url).pathname;
const client = resolve(home, process.env.TIDEGATE_TS_CLIENT ?? "../clients/typescript");
/** Largest sum of the embedded files, each compressed by gzip. */
const BUDGET = 250 * 1024;

/** Resolves the project's own client to its source, and the table of codes to the generated page of codes. */
const sources = {
  name: "sources",
  setup(build) {
    const entry = ["src/browser.ts", "src/index.ts"].map((file) => resolve(client, file)).find(existsSync);
    build.onResolve({ filter: /^@tidegate\/client$/ }, () =>
      entry ? { path: entry } : { errors: [{ text: `no TypeScript client in ${client}` }] },
    );
    build.onResolve({ filter: /^code-table$/ }, () => ({ path: "code-table", namespace: "codes" }));
    build.onLoad({ filter: /.*/, namespace: "codes" }, async () => ({
      contents: JSON.stringify(codes(await readFile(resolve(home, "../docs/errors.md"), "utf8"))),
      loader: "json",
    }));
  },
};

const common = {
  absWorkingDir: home,
  bundle: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  plugins: [sources],
  nodePaths: [resolve(home, "node_modules")],
  logLevel: "warning",
  charset: "utf8",
};

if (process.argv.includes("--tests")) {
  await rm(resolve(home, ".test-build"), { recursive: true, force: true });
  const tests = (await readdir(resolve(home, "tests"))).filter((file) => file.endsWith(".test.ts"));
  const entryPoints = tests.map((file) => `tests/${file}`);
  await esbuild.build({ ...common, entryPoints, outdir: ".test-build", platform: "node", outExtension: { ".js": ".mjs" } });
  process.exit(0);
}

const hash = (bytes) => createHash("sha256").update(bytes).digest("hex").slice(0, 8);
const dist = resolve(home, process.env.TIDEGATE_CONSOLE_DIST || "dist");
// The names alone that this script writes: the folder may be one that holds more.
await rm(resolve(dist, "assets"), { recursive: true, force: true });
await mkdir(resolve(dist, "assets"), { recursive: true });

const result = await esbuild.build({
  ...common,
  entryPoints: { console: "src/app/main.tsx" },
  outdir: resolve(dist, "assets"),
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
  splitting: true,
  minify: true,
  legalComments: "none",
  metafile: true,
  loader: { ".woff2": "file", ".svg": "file" },
  define: { "process.env.NODE_ENV": '"production"' },
});
const outputs = Object.entries(result.metafile.outputs);
const named = (start, end) =>
  basename(outputs.map(([path]) => path).find((path) => basename(path).startsWith(start) && path.endsWith(end)) ?? "");
const script = basename(outputs.find(([, output]) => output.entryPoint === "src/app/main.tsx")[0]);
const preload = outputs
  .find(([, output]) => output.entryPoint === "src/app/main.tsx")[1]
  .imports.filter((it) => it.kind === "import-statement")
  .map((it) => `<link rel="modulepreload" href="/assets/${basename(it.path)}">`)
  .join("\n");

const icon = await readFile(resolve(home, "src/app/icon.svg"));
await writeFile(resolve(dist, `assets/icon-${hash(icon)}.svg`), icon);
const licences = ["inter", "jetbrains-mono"].map((font) => readFile(resolve(home, `fonts/${font}-OFL.txt`)));
const licence = Buffer.concat(await Promise.all(licences));
await writeFile(resolve(dist, `assets/fonts-${hash(licence)}.txt`), licence);

const shell = await readFile(resolve(home, "src/app/index.html"), "utf8");
const html = shell
  .replace("{{icon}}", `/assets/icon-${hash(icon)}.svg`)
  .replace("{{font}}", `/assets/${named("inter", ".woff2")}`)
  .replace("{{style}}", `/assets/${named("console", ".css")}`)
  .replace("{{script}}", `/assets/${script}`)
  .replace("{{preload}}", preload);
await writeFile(resolve(dist, "index.html"), html);

let sum = 0;
const files = ["index.html", ...(await readdir(resolve(dist, "assets"))).sort().map((file) => `assets/${file}`)];
for (const file of files) {
  const bytes = await readFile(resolve(dist, file));
  const size = file.endsWith(".woff2") ? bytes.length : gzipSync(bytes, { level: 9 }).length;
  sum += size;
  console.log(`${String(bytes.length).padStart(8)} ${String(size).padStart(8)}  ${file}`);
}
console.log(`${sum} bytes compressed, of ${BUDGET}`);
if (sum > BUDGET) {
  console.error("The page is larger than its budget.");
  process.exit(1);
}
