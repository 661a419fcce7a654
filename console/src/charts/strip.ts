/** Bars of a storm's profile, as paths in a box whose unit is a part of time, and where the storm began. */
export interface Strip {
  /** Bars before the storm, and during it. */
  readonly before: string;
  readonly during: string;
  /** Begin of the storm from the left, between 0 and 1; undefined if it is older than what is drawn. */
  readonly start: number | undefined;
  /** Times of the first and behind the last bar, in ms. */
  readonly fromMs: number;
  readonly toMs: number;
  /** Most messages in one part. */
  readonly most: number;
}

/** Bars that are drawn, and the fewest for which there is a place: a short profile has no broad bars. */
const BARS = 180;
export const BARS_MIN = 90;

/** Height of the tallest bar, and the width of a bar in its part. */
export const HEIGHT = 32;
const WIDTH = 0.7;

/** Number of places of a profile. */
export function places(parts: number): number {
  return Math.min(BARS, Math.max(BARS_MIN, parts));
}

/** Arranges a profile; the newest part is at the right. */
export function strip(profile: { readonly startMs: number; readonly partMs: number; readonly counts: readonly number[] }, sinceMs: number): Strip {
  const counts = profile.counts.slice(-BARS);
  const fromMs = profile.startMs + (profile.counts.length - counts.length) * profile.partMs;
  const room = places(counts.length);
  const left = room - counts.length;
  const most = Math.max(0, ...counts);
  const first = Math.floor((sinceMs - fromMs) / profile.partMs);
  const bar = (count: number, index: number) => {
    const high = count === 0 ? 0.75 : Math.max(1.5, (count / most) * HEIGHT);
    return `M${left + index} ${HEIGHT}v${-Number(high.toFixed(1))}h${WIDTH}V${HEIGHT}z`;
  };
  const bars = counts.map(bar);
  const from = Math.max(0, first);
  return {
    before: bars.slice(0, from).join(""),
    during: bars.slice(from).join(""),
    start: first >= 0 && first <= counts.length ? (left + first) / room : undefined,
    fromMs,
    toMs: fromMs + counts.length * profile.partMs,
    most,
  };
}
