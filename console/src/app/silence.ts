import { seconds, stream } from "../live/stats.ts";

/** Seconds of silence after which the page says so in a bar. */
export const LONG_S = 5;

/** Seconds since the node was last heard; undefined before the first time. */
export function silence(): number | undefined {
  void seconds.value;
  const { heard } = stream.value;
  return heard ? Math.max(0, Math.floor((performance.now() - heard) / 1000)) : undefined;
}
