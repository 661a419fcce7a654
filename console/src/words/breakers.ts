import { joined } from "./numbers.ts";

/** Services that nodes call through a breaker, by the fields of their figures, and what goes on while it is open. */
const SERVICES = [
  ["breakerRedis", "Redis", "logins wait for up to 2 s and are then refused; connected clients go on"],
  ["breakerRedisMirror", "Redis, windows of storms", "other systems see old windows; storms are counted as before"],
  ["breakerRedisPermits", "Redis, permits of limits", "limits of the cluster hold by the share of each node"],
  ["breakerPostgres", "Postgres, reads", "history is STORE_UNAVAILABLE"],
  ["breakerHookLogin", "Hook of logins", "logins that need it are refused, to be tried again"],
  ["breakerHookAllow", "Hook of sends and joins", "hooks.allow_fail decides"],
  ["breakerJwks", "Remote keys", "the known keys stay in force"],
] as const;

/** A service that some nodes don't call for a moment, because recent calls failed. */
export interface OpenBreaker {
  readonly name: string;
  readonly effect: string;
  readonly nodes: readonly string[];
}

type NodeRows = ReadonlyMap<string, readonly (readonly number[])[]>;

/** Nodes whose newest row has more than zero in a field. */
function nodesWith(field: string, fields: readonly string[], rows: NodeRows): string[] {
  const column = fields.indexOf(field) + 1;
  return column === 0 ? [] : [...rows].filter(([, list]) => (list.at(-1)?.[column] ?? 0) > 0).map(([node]) => node).sort();
}

/** The open breakers of all nodes; undefined if the node has no figures of them. */
export function openBreakers(fields: readonly string[], rows: NodeRows): OpenBreaker[] | undefined {
  if (!fields.includes("breakerRedis") || rows.size === 0) return undefined;
  return SERVICES.map(([field, name, effect]) => ({ name, effect, nodes: nodesWith(field, fields, rows) })).filter((it) => it.nodes.length > 0);
}

/** The nodes that are under more load than they should be; empty if there are none. */
export function loadWords(fields: readonly string[], rows: NodeRows): string {
  const nodes = nodesWith("loadLevel", fields, rows);
  const level = (node: string) => rows.get(node)?.at(-1)?.[fields.indexOf("loadLevel") + 1] ?? 0;
  return nodes.length === 0 ? "" : `The load level is ${joined(nodes.map((node) => `${level(node)} on ${node}`))}.`;
}
