import { FLIGHT, type Crossing, type Step } from "./strands.ts";

/** Place of a strand in each second of a picture; `lane` is -1 where there is no such strand. */
export interface Line {
  readonly strand: number;
  readonly y: Float32Array;
  readonly lane: Int8Array;
}

/** Edges of a lane in each second of a picture. */
export interface Band {
  readonly top: Float32Array;
  readonly bottom: Float32Array;
}

/** A picture of strands: its lines, the bands of its lanes, and the distance of two strands in px. */
export interface Layout {
  readonly from: number;
  readonly seconds: number;
  readonly pitch: number;
  readonly lines: readonly Line[];
  readonly bands: readonly Band[];
}

/** Seconds that a picture shows at least, and at most. */
const WINDOW_MIN = 30;
const WINDOW_MAX = 480;

/** Returns how many seconds a picture shows: it grows with what is known, so that it is full from its first half minute on. */
export function windowOf(first: number, to: number): number {
  return Math.min(WINDOW_MAX, Math.max(WINDOW_MIN, to - first + 1));
}

/** Largest distance of two strands, so that few clients are thin streams and no walls. */
const PITCH_MAX = 9;

/** Seconds to each side over which the place of a strand is smoothed. */
const SMOOTH = 4;

/** Arranges the strands of some seconds in a picture of a height; a step that is missing repeats its neighbour. */
export function layout(steps: readonly Step[], crossings: readonly Crossing[], from: number, seconds: number, height: number): Layout {
  const first = steps[0]?.at ?? from;
  const lanes = steps[0]?.lanes.length ?? 0;
  const stepAt = (second: number) => (second < 0 || first > from + second ? undefined : (steps[from + second - first] ?? steps.at(-1)));
  const [pitch, gap] = spacing(steps, crossings, lanes, height);
  const lines = new Map<number, Line>();
  const line = (strand: number) => {
    const it = lines.get(strand) ?? { strand, y: new Float32Array(seconds), lane: new Int8Array(seconds).fill(-1) };
    lines.set(strand, it);
    return it;
  };
  const bands = Array.from({ length: lanes }, () => ({ top: new Float32Array(seconds), bottom: new Float32Array(seconds) }));
  const room = reserve(crossings, lanes, from, seconds);
  for (let second = 0; second < seconds; second += 1) {
    let y = gap / 2;
    stepAt(second)?.lanes.forEach((lane, index) => {
      const band = bands[index];
      y += pitch * (room[index]?.above[second] ?? 0);
      if (band) band.top[second] = y;
      for (const strand of lane) {
        const it = line(strand);
        it.y[second] = y + pitch / 2;
        it.lane[second] = index;
        y += pitch;
      }
      if (band) band.bottom[second] = y;
      y += pitch * (room[index]?.below[second] ?? 0) + gap;
    });
  }
  for (const { y, lane } of lines.values()) smoothRuns(y, lane);
  // The edges follow the strands, which are smooth now; an empty lane keeps its place.
  for (const { top, bottom } of bands) for (let second = 0; second < seconds; second += 1) if ((bottom[second] ?? 0) > (top[second] ?? 0)) [top[second], bottom[second]] = [Infinity, -Infinity];
  for (const { y, lane } of lines.values()) for (let second = 0; second < seconds; second += 1) around(bands[lane[second] ?? -1], second, y[second] ?? 0, pitch / 2);
  for (const it of crossings) cross(it, line, bands, from, seconds);
  return { from, seconds, pitch, lines: [...lines.values()], bands };
}

function spacing(steps: readonly Step[], crossings: readonly Crossing[], lanes: number, height: number): readonly [number, number] {
  const flying = new Map<number, number>();
  for (const { at } of crossings) for (let second = at; second < at + FLIGHT; second += 1) flying.set(second, (flying.get(second) ?? 0) + 1);
  const most = Math.max(1, ...steps.map(({ at, lanes: list }) => list.reduce((sum, lane) => sum + lane.length, flying.get(at) ?? 0)));
  const least = Math.min(14, height / (4 * Math.max(1, lanes)));
  const pitch = Math.min(PITCH_MAX, (height - least * lanes) / most);
  return [pitch, (height - most * pitch) / Math.max(1, lanes)];
}

/**
 * Strands for which a lane keeps room above and below it: those that have left it for the first half of their way, and those
 * that arrive for the second half. Without it all lanes below would jump up and down when many leave at once.
 */
function reserve(crossings: readonly Crossing[], lanes: number, from: number, seconds: number) {
  const room = Array.from({ length: lanes }, () => ({ above: new Int16Array(seconds), below: new Int16Array(seconds) }));
  for (const it of crossings) {
    const isDown = it.from < it.to;
    for (let step = 0; step < FLIGHT; step += 1) {
      const second = it.at - from + step;
      if (second < 0 || second >= seconds) continue;
      const isLeaving = step < FLIGHT / 2;
      const side = room[isLeaving ? it.from : it.to]?.[isLeaving === isDown ? "below" : "above"];
      if (side) side[second] = (side[second] ?? 0) + 1;
    }
  }
  return room;
}

/** Widens a lane so that it contains a strand. */
function around(band: Band | undefined, second: number, y: number, reach: number): void {
  if (!band) return;
  band.top[second] = Math.min(band.top[second] ?? y, y - reach);
  band.bottom[second] = Math.max(band.bottom[second] ?? y, y + reach);
}

/** Draws a crossing strand from the edge that it left to its place in the other lane. */
function cross(it: Crossing, line: (strand: number) => Line, bands: readonly Band[], from: number, seconds: number): void {
  const [start, end] = [it.at - from, it.at - from + FLIGHT];
  if (end <= 0 || start >= seconds) return;
  const { y, lane } = line(it.strand);
  const edge = (index: number, second: number, isTop: boolean) => bands[index]?.[isTop ? "top" : "bottom"][Math.min(seconds - 1, Math.max(0, second))] ?? 0;
  const isDown = it.from < it.to;
  const leaves = start > 0 && lane[start - 1] === it.from ? (y[start - 1] ?? 0) : edge(it.from, start, !isDown);
  const arrives = end < seconds && lane[end] === it.to ? (y[end] ?? 0) : edge(it.to, end, isDown);
  for (let second = Math.max(0, start); second < Math.min(end, seconds); second += 1) {
    const part = (second - start + 1) / (FLIGHT + 1);
    y[second] = leaves + (arrives - leaves) * part * part * (3 - 2 * part);
    lane[second] = part < 0.5 ? it.from : it.to;
  }
}

/** Smooths each run of seconds in which a strand is in one lane; a strand that begins does so where its lane is going. */
function smoothRuns(y: Float32Array, lane: Int8Array): void {
  for (let start = 0; start < lane.length; ) {
    let end = start + 1;
    while (end < lane.length && lane[end] === lane[start]) end += 1;
    if ((lane[start] ?? -1) >= 0) smooth(y, start, end);
    start = end;
  }
}

function smooth(values: Float32Array, start: number, end: number): void {
  const sums = new Float64Array(end - start + 1);
  for (let index = start; index < end; index += 1) sums[index - start + 1] = (sums[index - start] ?? 0) + (values[index] ?? 0);
  for (let index = start; index < end; index += 1) {
    const [low, high] = [Math.max(start, index - SMOOTH) - start, Math.min(end, index + SMOOTH + 1) - start];
    values[index] = ((sums[high] ?? 0) - (sums[low] ?? 0)) / (high - low);
  }
}
