import { computed } from "@preact/signals";
import { seconds, stream } from "../live/stats.ts";

/** Seconds of silence after which the page says so in a bar. */
export const LONG_S = 5;

/** Seconds since the last answer of the node; undefined before the first one. */
export function silence(): number | undefined {
  void seconds.value;
  const { answeredAt } = stream.value;
  return answeredAt ? Math.max(0, Math.floor((performance.now() - answeredAt) / 1000)) : undefined;
}

/** Whether the node has been silent for so long that the page says so: it can be asked to do nothing meanwhile. */
export const isSilent = computed(() => (silence() ?? 0) >= LONG_S);
