import type { TidegateError } from './error.js';

/** Longest wait that the doubling leads to. */
export const BACKOFF_MAX_MS = 20_000;
const FIRST_MS = 500;
/** Time of being live after which the count of attempts restarts. */
export const SETTLED_MS = 10_000;

/**
 * Returns the wait before the next attempt in ms (SPEC section 8). `tries` counts the attempts in a row that failed
 * before; `end` is why the connection ended, if the node said so; `random` is uniform in [0, 1).
 */
export function reconnectWait(tries: number, end: TidegateError | undefined, random: number): number {
  const spread = Math.min(FIRST_MS * 2 ** Math.min(tries, 10), BACKOFF_MAX_MS);
  if (end?.reconnect !== 'after') return random * spread;
  const after = end.retryAfterMs ?? 1000;
  return after + random * Math.max(after / 10, tries > 0 ? spread : 0);
}
