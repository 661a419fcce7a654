import { capital, grouped } from "./numbers.ts";

/** Frames of a live room whose loss nodes announced, and how often they announced that an unknown number may be missing. */
export interface Losses {
  readonly frames: number;
  readonly unknown: number;
}

/** Losses after one more announcement; one without a number says that some frames may be missing. */
export function withLoss({ frames, unknown }: Losses, count: number): Losses {
  return count > 0 ? { frames: frames + count, unknown } : { frames, unknown: unknown + 1 };
}

/** What was announced so far. */
export function lossWords({ frames, unknown }: Losses): string {
  if (frames === 0 && unknown === 0) return "None so far.";
  const known = frames > 0 ? [`${grouped(frames)} so far`] : [];
  const times = unknown === 0 ? [] : [`${unknown === 1 ? "once" : `${grouped(unknown)} times`} an unknown number, which may be none`];
  return `${capital([...known, ...times].join(", and "))}.`;
}
