import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { dark } from "../app/theme.ts";
import { paint } from "../charts/paint.ts";
import type { Phase } from "../charts/phases.ts";
import { counts, type Reading } from "../charts/readings.ts";
import { layout, type Layout } from "../charts/river.ts";
import type { Crossing, Move, Step } from "../charts/strands.ts";
import { boot, nodeClass, nodeHue } from "../live/boot.ts";
import { grouped } from "../words/numbers.ts";
import { compact, lasted, movesWords, phaseBrief, phaseWords, time } from "../words/river.ts";

/** Width of the picture from which it has room for all its labels. */
const ROOMY = 560;

/** Distances of the times below the picture, in seconds; the smallest that leaves each its room is used. */
const TICKS: readonly number[] = [5, 10, 15, 30, 60];

/** Room of a time below the picture, in px. */
const TICK = 96;

/** What a picture of the river shows. */
export interface Shown {
  readonly names: readonly string[];
  readonly from: number;
  readonly to: number;
  readonly span: number;
  /** The first second that is known. */
  readonly first: number;
  readonly readings: ReadonlyMap<string, readonly Reading[]>;
  readonly phases: readonly Phase[];
  readonly steps: readonly Step[];
  readonly crossings: readonly Crossing[];
  /** Versions of the nodes. */
  readonly versions: ReadonlyMap<string, string>;
  /** Moves between nodes in some seconds, as the nodes counted them. */
  moves(from: number, to: number): readonly Move[];
}

/** Clients of each node in a second. */
export function clientsAt(it: Shown, second: number): number[] {
  return it.names.map((name) => {
    const left = (at: number) => it.moves(at, at).reduce((sum, move) => sum + (move.from === name && move.to !== name ? move.count : 0), 0);
    return counts(it.readings.get(name) ?? [], second, second, left)[0] ?? 0;
  });
}

/** The river: its phases, the strands and the times below them. A low picture is for the time in which nothing happens. */
export function RiverPicture({ it, isOpen }: { readonly it: Shown; readonly isOpen: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    if (!box.current) return;
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry?.contentRect.width ?? 0)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const height = isOpen ? Math.max(width > 0 && width < ROOMY ? 260 : 392, it.names.length * 40) : Math.max(120, it.names.length * 28);
  return (
    <div ref={box}>
      {it.phases.length > 0 && <Strip it={it} width={width} />}
      <Picture it={it} width={width} height={height} />
      <Axis it={it} width={width} />
    </div>
  );
}

const share = (it: Shown, second: number) => Math.min(100, Math.max(0, ((second - it.from) / (it.span - 1)) * 100));

/** The phases above the picture: who leaves, and who is away. */
function Strip({ it, width }: { readonly it: Shown; readonly width: number }) {
  const leaving = it.phases.filter((phase) => phase.kind === "leaves" || phase.isSudden);
  return (
    <ol class="phases">
      {it.phases.map((phase) => {
        const [left, right] = [share(it, phase.from), share(it, phase.to)];
        const words = phaseWords(phase);
        const isLast = it.phases.filter((other) => other.node === phase.node && other.kind === "away").at(-1) === phase;
        if (phase.kind === "away" && !phase.isSudden) {
          const version = isLast && !phase.isOpen ? it.versions.get(phase.node) : undefined;
          return (
            <li class={`away ${nodeClass(phase.node)}`} style={{ left: `${left}%`, width: `${right - left}%` }} title={`${phase.node} ${words}`}>
              <span class="sr">{phase.node} </span><span>{version ? `${version}, ` : ""}{phase.isOpen ? words : lasted(phase.to - phase.from)}</span>
            </li>
          );
        }
        const next = leaving.find((other) => other.from > phase.from);
        const before = Math.max(0, ...leaving.filter((other) => other.from < phase.from).map((other) => share(it, other.to)));
        const label = placeLabel(phase, width, { left, right, until: next ? share(it, next.from) : 100, before });
        return (
          <li class={`${phase.isSudden ? "sudden " : ""}${nodeClass(phase.node)}`} style={{ left: `${left}%`, width: `${Math.max(0.4, right - left)}%` }} title={`${phase.node} ${words}`}>
            <span class={`label ${label.place}`}><b>{phase.node}</b> {label.text}</span>
          </li>
        );
      })}
    </ol>
  );
}

/**
 * Where the words of a phase have room: from its begin to the next phase, else at the right edge of its bar, else before it.
 * Words that would reach into another phase are left out; the title has them.
 */
function placeLabel(phase: Phase, width: number, at: { readonly left: number; readonly right: number; readonly until: number; readonly before: number }) {
  const px = (share: number) => (share / 100) * width - 20 - phase.node.length * 8;
  const places = [["", at.until - at.left], ["late", at.right - at.left], ["outside", at.left - at.before]] as const;
  for (const text of [phaseWords(phase), phaseBrief(phase)]) {
    const place = places.find(([, room]) => text.length * 6 < px(room));
    if (place) return { text, place: place[0] };
  }
  return { text: "", place: "" };
}

function Axis({ it, width }: { readonly it: Shown; readonly width: number }) {
  const room = (TICK / Math.max(1, width)) * it.span;
  const step = TICKS.find((seconds) => seconds >= room) ?? (TICKS.at(-1) ?? 60) * Math.max(1, Math.ceil(room / 60));
  const ticks = [];
  for (let second = Math.ceil(it.from / step) * step; second < it.to - room; second += step) ticks.push(second);
  return (
    <div class="river-axis num" aria-hidden="true">
      {ticks.map((second) => <span key={second} style={{ left: `${share(it, second)}%` }}>{time(second).slice(0, step % 60 === 0 ? 5 : 8)}</span>)}
      <span class="newest">{time(it.to)}</span>
    </div>
  );
}

function Picture({ it, width, height }: { readonly it: Shown; readonly width: number; readonly height: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [cursor, setCursor] = useState<number | undefined>(undefined);
  const drawn = useMemo(() => layout(it.steps, it.crossings, it.from, it.span, height), [it, height]);
  useLayoutEffect(() => {
    if (canvas.current && width > 0) paint(canvas.current, drawn, width, height, colours(it, canvas.current));
  }, [drawn, width, height, dark.value]);
  const at = cursor === undefined ? undefined : Math.min(it.to, Math.max(it.from, cursor));
  const move = (step: number) => setCursor(Math.min(it.to, Math.max(Math.max(it.from, it.first), (at ?? it.to) + step)));
  const KEYS: Record<string, () => void> = {
    ArrowLeft: () => move(-1), ArrowRight: () => move(1), PageUp: () => move(-30), PageDown: () => move(30), Home: () => move(-it.span), End: () => move(it.span), Escape: () => setCursor(undefined),
  };
  return (
    <div
      class="river-box"
      style={{ height: `${height}px` }}
      role="slider"
      tabIndex={0}
      aria-label="Time in the river"
      aria-valuemin={it.from}
      aria-valuemax={it.to}
      aria-valuenow={at ?? it.to}
      aria-valuetext={reading(it, at ?? it.to)}
      onKeyDown={(event) => {
        const act = KEYS[event.key];
        if (!act) return;
        event.preventDefault();
        act();
      }}
      onPointerMove={(event) => {
        const place = event.currentTarget.getBoundingClientRect();
        setCursor(Math.round(it.from + ((event.clientX - place.left) / place.width) * (it.span - 1)));
      }}
      onPointerLeave={() => setCursor(undefined)}
      onBlur={() => setCursor(undefined)}
    >
      <canvas ref={canvas} aria-hidden="true" />
      {width > 0 && labels(it, drawn, width, height).map((label) => (
        <span key={`${label.node} ${label.isNewest}`} class={`river-label ${label.isNewest ? "newest " : ""}${nodeClass(label.node)}`} style={{ left: `${label.x}px`, top: `${label.y}px` }} aria-hidden="true">
          <span class="node">{label.node}</span> {compact(label.clients)}
        </span>
      ))}
      {at !== undefined && <Cursor it={it} at={at} />}
    </div>
  );
}

function reading(it: Shown, second: number): string {
  const list = clientsAt(it, second).map((clients, index) => `${it.names[index]} ${grouped(clients)}`);
  const moves = movesWords(it.moves(second, second));
  return `${time(second)}: ${list.join(", ")}${moves ? `; ${moves}` : ""}`;
}

function Cursor({ it, at }: { readonly it: Shown; readonly at: number }) {
  const place = share(it, at);
  const moves = it.moves(at, at).filter((move) => move.from !== move.to);
  return (
    <>
      <i class="river-cursor" style={{ left: `${place}%` }} />
      <div class={place > 60 ? "river-read before" : "river-read"} style={{ left: `${place}%` }} aria-hidden="true">
        <b class="num">{time(at)}</b>
        {at < it.first ? <span class="quiet">not known</span> : clientsAt(it, at).map((clients, index) => (
          <span class={`row ${nodeClass(it.names[index] ?? "")}`}><span class="node">{it.names[index]}</span><span class="num grow">{grouped(clients)}</span></span>
        ))}
        {moves.length > 0 && <span class="quiet small">{movesWords(moves)}</span>}
      </div>
    </>
  );
}

interface Label {
  readonly node: string;
  readonly x: number;
  readonly y: number;
  readonly clients: number;
  readonly isNewest: boolean;
}

/** Names of the lanes: where the picture begins, and where a lane that has changed is at its thickest. */
function labels(it: Shown, drawn: Layout, width: number, height: number): Label[] {
  const { span } = it;
  const list: Label[] = [];
  const begin = Math.max(0, it.first - it.from);
  const margin = Math.round((24 / width) * span);
  it.names.forEach((node, lane) => {
    const band = drawn.bands[lane];
    const values = counts(it.readings.get(node) ?? [], it.from, it.to);
    if (!band) return;
    const add = (second: number, isNewest: boolean) => {
      const clients = values[second] ?? 0;
      const [top, bottom] = [band.top[second] ?? 0, band.bottom[second] ?? 0];
      if (clients === 0 || bottom <= top) return;
      // A name above a thin lane leaves its strands in sight.
      const y = bottom - top < 32 && drawn.pitch > 3 ? top - 14 : (top + bottom) / 2;
      list.push({ node, x: (second / (span - 1)) * width, y: Math.min(height - 13, Math.max(13, y)), clients, isNewest });
    };
    const early = Math.min(span - 1, begin + margin);
    let best = early;
    values.forEach((clients, second) => { if (second > early && second < span - margin && clients > (values[best] ?? 0)) best = second; });
    const isChanged = (values[best] ?? 0) > (values[early] ?? 0) * 1.25 && (best - early) * (width / span) > 140;
    const late = span - Math.round((108 / width) * span) - 1;
    if (width < ROOMY) add(late, true);
    else {
      if (early < late) add(early, false);
      // Where it is still as thick a little later, the name is not on the strands that arrive.
      const after = Math.min(best + margin, late);
      if (isChanged) add((values[after] ?? 0) >= (values[best] ?? 0) * 0.95 ? after : Math.min(best, late), true);
    }
  });
  return list;
}

/** Colours of the theme in which the picture is. Above eight nodes only those that leave keep theirs, and the one of this page. */
function colours(it: Shown, canvas: HTMLElement) {
  const style = getComputedStyle(canvas);
  const value = (name: string) => style.getPropertyValue(name).trim();
  const isPlain = (name: string) => it.names.length > 8 && name !== boot.value?.node && !it.phases.some((phase) => phase.node === name);
  const hues = it.names.map((name) => (isPlain(name) ? undefined : nodeHue(name)));
  return {
    lanes: hues.map((hue) => value(hue ? `--n${hue.index + 1}` : "--edge")),
    grounds: hues.map((hue) => value(hue ? `--n${hue.index + 1}s` : "--sunken")),
    turns: hues.map((hue) => hue?.turn ?? 0),
    surface: value("--surface"),
    rule: `color-mix(in srgb, ${value("--surface")} 28%, transparent)`,
  };
}
