// Makes the font subsets in `fonts/` from the npm packages: Latin letters and the signs that the page uses.
// It is run by hand when the packages change (`npm run fonts`); the build uses its output.
import { readFile, writeFile } from "node:fs/promises";
import subsetFont from "subset-font";

const latin = Array.from({ length: 95 }, (_, index) => String.fromCharCode(32 + index)).join("");
const western = Array.from({ length: 0x17f - 0xa0 }, (_, index) => String.fromCharCode(0xa0 + index)).join("");
const signs = "–—‘’“”…•→←↑↓×−µ≤≥✓";

const fonts = [
  ["inter", "inter-latin-wght-normal", latin + western.slice(0, 96) + signs, { wght: { min: 400, max: 600 } }],
  ["jetbrains-mono", "jetbrains-mono-latin-wght-normal", latin + signs, { wght: { min: 400, max: 600 } }],
];

for (const [family, file, text, variationAxes] of fonts) {
  const home = new URL(`node_modules/@fontsource-variable/${family}/`, import.meta.url);
  const full = await readFile(new URL(`files/${file}.woff2`, home));
  const subset = await subsetFont(full, text, { targetFormat: "woff2", variationAxes, preserveNameIds: [0, 1, 2, 13, 14] });
  await writeFile(new URL(`fonts/${family}.woff2`, import.meta.url), subset);
  await writeFile(new URL(`fonts/${family}-OFL.txt`, import.meta.url), await readFile(new URL("LICENSE", home)));
  console.log(family, subset.length);
}
