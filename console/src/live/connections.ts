import { post } from "./api.ts";

/** A connection, as `GET /v1/connections` lists it. */
export interface Connection {
  readonly id: string;
  readonly user: string;
  readonly device: string;
  readonly node: string;
  readonly address: string;
  readonly transport: string;
  readonly sinceMs: number;
  /** Bytes that wait to be written to it. */
  readonly outboxBytes: number;
  /** Pushes without an ack. */
  readonly window: number;
  /** When its token ends; null if it does not. */
  readonly expiresMs: number | null;
}

/** A list of connections; nodes in `silent` did not answer, so that theirs are missing. */
export interface ConnectionList {
  readonly connections: readonly Connection[];
  readonly total: number;
  readonly silent: readonly string[];
}

/** How many connections were closed, and the nodes that did not confirm. */
export interface Ended {
  readonly closed: number;
  /** Nodes that did not answer, or have not confirmed yet. */
  readonly open: readonly string[];
}

/** What a kick ends: one connection, those of a device, or all of a user. */
export interface Kicked {
  readonly user: string;
  readonly device?: string;
  readonly id?: string;
  readonly node?: string;
}

/** What is revoked of a user's tokens. */
export type Revoked = { readonly before: "now" } | { readonly device: string } | { readonly tokenId: string };

/** A revocation that is in force. */
export interface Revocation {
  readonly before: number | null;
  readonly tokenId: string | null;
  readonly device: string | null;
  readonly atMs: number;
  readonly untilMs: number | null;
}

/** Longest reason that a client is given. */
export const REASON_MAX = 120;

/** Path of the routes of a user. */
export function userPath(user: string, what: string): string {
  return `/v1/users/${encodeURIComponent(user)}/${what}`;
}

/** Path of the list of connections: of one user, or of all on one node or on all of them. */
export function listPath({ user, node, sort, limit }: { readonly user: string; readonly node: string; readonly sort: string; readonly limit: number }): string {
  if (user) return userPath(user, "connections");
  const query = new URLSearchParams({ ...(node ? { node } : {}), ...(sort ? { sort } : {}), limit: String(limit) });
  return `/v1/connections?${query.toString()}`;
}

/** Path of the request that ends connections. */
export function kickPath(it: Kicked, reason: string, mayReturn: boolean): string {
  const query = new URLSearchParams({ ...(it.id === undefined && it.device ? { device: it.device } : {}), ...(reason ? { reason } : {}), reconnect: mayReturn ? "after" : "never" });
  const base = it.id === undefined ? userPath(it.user, "connections") : `/v1/connections/${encodeURIComponent(it.id)}`;
  return `${base}?${query.toString()}`;
}

/** Ends connections, with a reason that their clients get. */
export async function kick(it: Kicked, reason: string, mayReturn: boolean): Promise<Ended> {
  const { closed, silent } = await post<{ readonly closed: number; readonly silent: readonly string[] }>(kickPath(it, reason, mayReturn), undefined, "DELETE");
  return { closed, open: silent };
}

/** Revokes tokens of a user, which ends the connections that they opened. */
export async function revoke(user: string, what: Revoked): Promise<Ended> {
  const { closed, pending } = await post<{ readonly closed: number; readonly pending: readonly string[] }>(userPath(user, "revoke"), what);
  return { closed, open: pending };
}
