import type { Chain, ChainReset } from "../live/chains.ts";
import { duration, joined } from "./numbers.ts";

/** For how long messages of a chain have waited; a dash if none waits. */
export function blockedWords(it: Chain): string {
  return it.blockedMs > 0 ? duration(it.blockedMs) : "–";
}

/** Whether something is held back in a chain now. */
export function isBlocked(it: Chain): boolean {
  return it.held > 0 || it.blockedMs > 0;
}

/** Which nodes did not answer, so that it is not known what they hold; empty if all did. */
export function chainSilentWords(silent: readonly string[]): string {
  return silent.length === 0 ? "" : `${joined(silent)} did not answer: what ${silent.length === 1 ? "it holds" : "they hold"} is not known.`;
}

/** What a reset does, before a person confirms it. */
export function resetWords(user: string, device: string): string {
  return `The id that ${user}’s ${device} has to send next is forgotten, and its next connection begins a new chain with the id that its client names. A connection that it has is closed with KICKED (3501), and comes back after five seconds or more. What was accepted stays.`;
}

/** What came of a reset. */
export function resetDone(user: string, device: string, { chain, closed, silent }: ChainReset): string {
  const done = chain ? `The chain of ${user}’s ${device} was removed` : `No chain of ${user}’s ${device} was saved`;
  const link = closed === 0 ? "" : `, and ${closed === 1 ? "its connection was" : `${closed} connections were`} closed`;
  return `${done}${link}.${silent.length > 0 ? ` ${joined(silent)} did not answer, so a connection there may go on.` : ""}`;
}
