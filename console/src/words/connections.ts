import type { Connection, ConnectionList, Ended, Kicked, Revocation, Revoked } from "../live/connections.ts";
import { capital, grouped, joined, plural } from "./numbers.ts";

const TRANSPORTS: Readonly<Record<string, string>> = { "websocket-json": "WebSocket, JSON", "websocket-proto": "WebSocket, Protobuf", "tcp-json": "TCP, JSON", "tcp-proto": "TCP, Protobuf" };

/** A transport in words; one that the page does not know keeps its name. */
export function transportWords(name: string): string {
  return TRANSPORTS[name] ?? name;
}

/** How long ago a time was: `12 s`, `5 min`, `3 h`, `2 d`. */
export function ago(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

/** A number of bytes: `0`, `512 B`, `1.2 KB`. */
export function bytes(value: number): string {
  if (value === 0) return "0";
  if (value < 1000) return `${value} B`;
  return value < 1_000_000 ? `${(value / 1000).toFixed(1)} KB` : `${(value / 1_000_000).toFixed(1)} MB`;
}

/** Whether a connection has a text in its user, device, node, address or id. */
export function matches(it: Connection, text: string): boolean {
  const word = text.toLowerCase();
  return [it.user, it.device, it.node, it.address, it.id].some((part) => part.toLowerCase().includes(word));
}

/** Which connections are listed, of how many; empty if all are. */
export function listWords(it: ConnectionList, shown: number, text: string, isByBytes: boolean): string {
  const listed = it.connections.length;
  const some = listed < it.total;
  const part = some ? `the ${grouped(listed)} ${isByBytes ? "with the most bytes waiting" : "newest"} of ${grouped(it.total)}` : "";
  if (text) return some ? `${capital(plural(shown, "connection"))} of ${part} ${shown === 1 ? "matches" : "match"}. The others were not searched.` : "";
  return some ? `These are ${part}.` : "";
}

/** Which nodes did not answer, so that their connections are missing; empty if all did. */
export function silentWords(silent: readonly string[]): string {
  return silent.length === 0 ? "" : `${joined(silent)} did not answer: ${silent.length === 1 ? "its" : "their"} connections are not listed here, and may go on.`;
}

/** What a kick is about, in its question. */
export function kickQuestion(it: Kicked): string {
  if (it.id !== undefined) return `Kick ${it.user}’s ${it.device ?? "device"}?`;
  return `Kick all devices of ${it.user}?`;
}

/** What a kick does, before a person confirms it. */
export function kickWords(it: Kicked, mayReturn: boolean): string {
  const what = it.id === undefined ? `All connections of ${it.user}, on all nodes, are closed` : `Its connection${it.node ? ` to ${it.node}` : ""} is closed`;
  const after = mayReturn ? "The client connects again after five seconds or more." : "The client stays away until its application connects again.";
  return `${what} with KICKED (3501), and the client gets the reason. ${after} Its token stays valid: revoke it to refuse the next login.`;
}

/** What a revocation does, before a person confirms it. */
export function revokeWords(user: string, what: Revoked): string {
  const which = "before" in what ? `All tokens of ${user} that were issued until now` : "device" in what ? `Tokens of ${user} that were issued until now, used by the device ${what.device || "…"},` : `The token of ${user} with this id`;
  const are = "tokenId" in what ? "is" : "are";
  return `${which} ${are} refused from now on with TOKEN_REVOKED (2010), and the connections that use ${"tokenId" in what ? "it" : "them"} end.${"device" in what ? " A token without the claim dev still logs in under another device name." : ""} Only an operator can take this back; a new token logs in.`;
}

/** What was ended. Nodes that did not answer a kick did not do it; those that have not confirmed a revocation follow. */
export function endedWords({ closed, open }: Ended, kind: "kick" | "revoke"): string {
  const done = closed === 0 ? "No connection was closed" : `${capital(plural(closed, "connection"))} ${closed === 1 ? "was" : "were"} closed`;
  if (kind === "kick") return `${done}.${open.length > 0 ? ` ${joined(open)} did not answer, so connections there may go on.` : ""}`;
  return `Revoked. ${done}${open.length > 0 ? ` so far; ${joined(open)} ${open.length === 1 ? "has" : "have"} not confirmed, and ${open.length === 1 ? "refuses" : "refuse"} these tokens within two seconds` : ""}.`;
}

/** A revocation in words; `time` writes a time. */
export function revocationWords(it: Revocation, time: (ms: number) => string): string {
  const what = it.tokenId !== null ? `The token ${it.tokenId}` : it.device !== null ? `Tokens used by ${it.device}` : "All tokens";
  const before = it.before === null ? "" : `, issued before ${time(it.before)}`;
  return `${what}${before}. In force ${it.untilMs === null ? "for as long as tokens may live" : `until ${time(it.untilMs)}`}.`;
}

/** What changed in a block list. */
export function blockWords(user: string, other: string, isBlocked: boolean, isChanged: boolean, pending: readonly string[]): string {
  const now = isBlocked ? `${user} ${isChanged ? "blocks" : "already blocked"} ${other}.` : `${user} ${isChanged ? "no longer blocks" : "did not block"} ${other}.`;
  return `${now}${pending.length > 0 ? ` ${joined(pending)} ${pending.length === 1 ? "follows" : "follow"} within two seconds.` : ""}`;
}
