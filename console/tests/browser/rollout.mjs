// A cluster that a test makes up: three nodes of 3,000 clients each, of which one has left and come back, and one leaves now.
import { changed } from "./page.mjs";

const FIELDS = ["clients", "slowCloses", "ackP99Us", "drainPhase"];
const NAMES = ["n1", "n2", "n3"];

/** Counts, moves and nodes of the last minutes, by the second in which they end; n3 left `ago` seconds before, for 100 s, and n1 leaves since `since` seconds. */
export function rollout(end, ago = 400, since = 20) {
  const rows = { n1: [], n2: [], n3: [] };
  const flows = [];
  const have = { n1: 3000, n2: 3000, n3: 3000 };
  const hand = (from, to, count, list) => {
    have[from] -= count;
    have[to] += count;
    list.push([from, to, count]);
  };
  for (let second = -ago - 90; second <= 0; second += 1) {
    const list = [];
    const [n3Leaves, n1Leaves] = [second >= -ago && second < 60 - ago, second >= -since];
    if (n3Leaves) for (const to of ["n1", "n2"]) hand("n3", to, 25, list);
    if (n1Leaves) for (const to of ["n2", "n3"]) hand("n1", to, 25, list);
    flows.push([(end + second) * 1000, list]);
    for (const name of NAMES) {
      if (name === "n3" && second > 62 - ago && second <= 100 - ago) continue;
      const phase = (name === "n3" && second >= -ago && second <= 62 - ago) || (name === "n1" && n1Leaves) ? 3 : 0;
      rows[name].push([(end + second) * 1000 + 100, have[name], 0, 4200, phase]);
    }
  }
  const nodes = NAMES.map((node, index) => ({
    node, boot: node, self: index === 0, state: index === 0 ? "draining" : "ready", lease: "live", conns: have[node], capacity: 20_000, accepts: 1000,
    owns: Array.from({ length: 64 }, (_, partition) => partition).filter((partition) => partition % 3 === index || (index === 1 && partition === 3)),
    version: "0.2.0", weight: 100, share: null, zone: "", drain: index === 0 ? { phase: "draining", from: 4500, left: have.n1, unnoticed: 0, rate: 50, forMs: since * 1000 } : null,
    stands: [{ partition: index, position: 0, end: 0, behindRecords: index === 2 ? 640 : 0, behindMs: index === 2 ? 1200 : 0, behindBytes: 0 }],
  }));
  return { rows, flows, nodes };
}

/** Makes the page of a node read that cluster; `later` has events that follow the past in the stream of figures. */
export async function pretend(page, { rows, flows, nodes }, later = []) {
  const event = (name, data) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
  const json = (body) => ({ contentType: "application/json", body: JSON.stringify(body) });
  const stream = event("start", { everyMs: 1000, keepMs: 900_000, fields: FIELDS }) + NAMES.map((node) => event("past", { node, rows: rows[node] })).join("") + later.map(([name, data]) => event(name, data)).join("");
  await page.route("**/v1/stats/stream", (route) => route.fulfill({ contentType: "text/event-stream", body: stream }));
  await page.route("**/v1/flows?*", (route) => route.fulfill(json({ everyMs: 1000, keepMs: 900_000, nowMs: flows.at(-1)[0], rows: flows, silent: [] })));
  await page.route("**/v1/nodes", (route) => route.fulfill(json({ nodes, partitions: 64, archiveBehind: [], stale: false })));
  const peers = ["n2", "n3"].map((node) => ({ node, ws: [], admin: "http://127.0.0.1:1" }));
  await changed(page, "**/v1/console", (own) => ({ ...own, node: "n1", nodes: 3, peers, features: [...new Set([...own.features, "stats", "flows", "forward"])] }));
}
