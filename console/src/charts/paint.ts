import type { Layout } from "./river.ts";

/** Colours of a picture: the lanes', by their order, and that of the lines of the minutes. */
export interface Paints {
  readonly lanes: readonly string[];
  readonly grounds: readonly string[];
  readonly rule: string;
}

/** Dashes of the lanes whose hues repeat: from the fourth and from the seventh node on. */
const DASHES: readonly (readonly number[])[] = [[], [14, 3], [3, 3]];

/** Draws a picture of strands on a canvas, for the density of the screen. */
export function paint(canvas: HTMLCanvasElement, it: Layout, width: number, height: number, paints: Paints): void {
  const density = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * density)) canvas.width = Math.round(width * density);
  if (canvas.height !== Math.round(height * density)) canvas.height = Math.round(height * density);
  const context = canvas.getContext("2d");
  if (!context) return;
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  const x = (second: number) => (second / Math.max(1, it.seconds - 1)) * width;
  it.bands.forEach(({ top, bottom }, lane) => {
    context.fillStyle = paints.grounds[lane] ?? "";
    context.beginPath();
    for (let second = 0; second < it.seconds; second += 1) context.lineTo(x(second), top[second] ?? 0);
    for (let second = it.seconds - 1; second >= 0; second -= 1) context.lineTo(x(second), bottom[second] ?? 0);
    context.fill();
  });
  context.lineWidth = it.pitch > 3 ? it.pitch * 0.55 : Math.max(0.5, it.pitch * 0.72);
  context.lineJoin = "round";
  paints.lanes.forEach((colour, lane) => {
    context.strokeStyle = colour;
    context.setLineDash([...(DASHES[Math.floor(lane / 3)] ?? [3, 3])]);
    context.beginPath();
    for (const line of it.lines) trace(context, line.y, line.lane, lane, x);
    context.stroke();
  });
  context.setLineDash([]);
  context.strokeStyle = paints.rule;
  context.lineWidth = 1;
  context.beginPath();
  for (let second = 0; second < it.seconds; second += 1) {
    if ((it.from + second) % 60 !== 0) continue;
    context.moveTo(Math.round(x(second)) + 0.5, 0);
    context.lineTo(Math.round(x(second)) + 0.5, height);
  }
  context.stroke();
}

/** Adds the seconds in which a strand has the colour of a lane to the path; straight parts have no points between. */
function trace(context: CanvasRenderingContext2D, y: Float32Array, lane: Int8Array, wanted: number, x: (second: number) => number): void {
  let isOn = false;
  for (let second = 0; second < y.length; second += 1) {
    if (lane[second] !== wanted) {
      // The colour changes halfway, where the next one begins.
      if (isOn && (lane[second] ?? -1) >= 0) context.lineTo(x(second), y[second] ?? 0);
      isOn = false;
      continue;
    }
    const value = y[second] ?? 0;
    if (!isOn) context.moveTo(x(second), value);
    else if (y[second - 1] !== value || y[second + 1] !== value || lane[second + 1] !== wanted) context.lineTo(x(second), value);
    isOn = true;
  }
}
