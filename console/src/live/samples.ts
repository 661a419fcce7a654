import { signal } from "@preact/signals";
import { ordered, type Reading } from "../charts/readings.ts";
import type { Nodes } from "./nodes.ts";
import { clock, fields, rows, strays } from "./stats.ts";

/** Samples of a node that the page keeps. */
const KEEP = 900;

const PHASES: readonly string[] = ["ready", "cordoned", "noticing", "draining", "flushing"];

/** Clients of the nodes as `GET /v1/nodes` said while this page was open, for nodes whose figures it does not get, or gets by a clock that differs. */
const samples = signal<ReadonlyMap<string, readonly Reading[]>>(new Map());

/** Keeps what an answer says of the live nodes. */
export function sample(it: Nodes): void {
  const at = Math.floor(clock() / 1000);
  const next = new Map(samples.value);
  for (const node of it.nodes) {
    if (node.lease !== "live") continue;
    const phase = node.drain ? Math.max(1, PHASES.indexOf(node.drain.phase)) : 0;
    next.set(node.node, [...(next.get(node.node) ?? []), { at, clients: node.conns, phase }].slice(-KEEP));
  }
  samples.value = next;
}

/** Readings of each node: its own figures, or what was sampled where there are none. */
export function readings(): Map<string, readonly Reading[]> {
  const [clients, phase] = [fields.value.indexOf("clients") + 1, fields.value.indexOf("drainPhase") + 1];
  const all = new Map<string, readonly Reading[]>();
  for (const [node, list] of samples.value) all.set(node, ordered(list));
  for (const [node, list] of clients > 0 ? rows.value : []) {
    if (list.length === 0 || strays.value.includes(node)) continue;
    const own = list.map((row) => ({ at: Math.floor((row[0] ?? 0) / 1000), clients: row[clients] ?? 0, phase: phase > 0 ? (row[phase] ?? 0) : 0 }));
    all.set(node, ordered(own));
  }
  return all;
}
