import type { Layout } from "./river.ts";

/** Colours of a picture: the lanes', by their order, and that of the lines of the minutes. */
export interface Paints {
  readonly lanes: readonly string[];
  readonly grounds: readonly string[];
  /** Pattern of each lane: how often the hues have repeated before it. */
  readonly turns: readonly number[];
  readonly rule: string;
  readonly surface: string;
}

/** The colour of a lane; where hues repeat, with diagonal lines, then with dots. */
function stroke(context: CanvasRenderingContext2D, colour: string, turn: number, surface: string): string | CanvasPattern {
  if (turn === 0) return colour;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 12;
  const it = tile.getContext("2d");
  if (!it) return colour;
  it.fillStyle = colour;
  it.fillRect(0, 0, 12, 12);
  it.globalAlpha = 0.7;
  it.fillStyle = it.strokeStyle = surface;
  it.lineWidth = 2;
  it.beginPath();
  if (turn % 2 === 1) for (const at of [-12, 0, 12]) it.moveTo(at, 12), it.lineTo(at + 12, 0);
  else it.arc(6, 6, 2.5, 0, 7);
  if (turn % 2 === 1) it.stroke();
  else it.fill();
  return context.createPattern(tile, "repeat") ?? colour;
}

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
    for (const [start, end] of filled(top, bottom, it.pitch)) {
      context.beginPath();
      for (let second = start; second < end; second += 1) context.lineTo(x(second), top[second] ?? 0);
      for (let second = end - 1; second >= start; second -= 1) context.lineTo(x(second), bottom[second] ?? 0);
      context.fill();
    }
  });
  context.lineWidth = it.pitch > 3 ? it.pitch * 0.55 : Math.max(0.5, it.pitch * 0.72);
  context.lineJoin = "round";
  paints.lanes.forEach((colour, lane) => {
    context.strokeStyle = stroke(context, colour, paints.turns[lane] ?? 0, paints.surface);
    context.beginPath();
    for (const line of it.lines) trace(context, line.y, line.lane, lane, x);
    context.stroke();
  });
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

/** Runs of seconds in which a lane has strands. A run ends where several strands begin or end at once, as they do without a slope. */
function filled(top: Float32Array, bottom: Float32Array, pitch: number): [number, number][] {
  const runs: [number, number][] = [];
  const thickness = (second: number) => (bottom[second] ?? 0) - (top[second] ?? 0);
  for (let second = 0; second < top.length; second += 1) {
    if (thickness(second) <= 0) continue;
    const last = runs.at(-1);
    if (last && last[1] === second && Math.abs(thickness(second) - thickness(second - 1)) < pitch * 2.5) last[1] = second + 1;
    else runs.push([second, second + 1]);
  }
  return runs;
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
