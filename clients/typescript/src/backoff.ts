import type { TidegateError } from './error.js';

const FIRST_MS = 500;
const MAX_MS = 20_000;
/** Time of being live after which the count of attempts restarts. */
export const SETTLED_MS = 10_000;

/** Returns a wait that doubles with each of the `tries` that failed before. */
export const doubled = (tries: number): number => Math.min(FIRST_MS * 2 ** tries, MAX_MS);

/**
 * Returns the wait before the next attempt in ms (SPEC section 8). `tries` counts the attempts in a row that failed
 * before; `end` is why the connection ended, if the node said so; `random` is uniform in [0, 1).
 */
export function reconnectWait(tries: number, end: TidegateError | undefined, random: number): number {
  const spread = doubled(tries);
  if (end?.reconnect !== 'after') return random * spread;
  const after = end.retryAfterMs ?? 1000;
  return after + random * Math.max(after / 10, tries > 0 ? spread : 0);
}
