import { computed, signal, untracked } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { viewKeys } from "../app/keys.ts";
import { dark } from "../app/theme.ts";
import { Course } from "../charts/course.ts";
import { paint } from "../charts/paint.ts";
import { phases, type Phase } from "../charts/phases.ts";
import { counts, type Reading } from "../charts/readings.ts";
import { layout, type Layout } from "../charts/river.ts";
import type { Move } from "../charts/strands.ts";
import { allows, boot, nodeClass, nodeNames } from "../live/boot.ts";
import { flows, flowsRevision, silent } from "../live/flows.ts";
import { nodes } from "../live/nodes.ts";
import { readings } from "../live/samples.ts";
import { revision, seconds } from "../live/stats.ts";
import { Icon } from "../parts/icon.tsx";
import { caption, compact, lasted, movesWords, phaseBrief, phaseWords, summary, time } from "../words/river.ts";
import { grouped } from "../words/numbers.ts";

/** Seconds that a picture can show: the last is the rule, and less while so little is known that most of it would be empty. */
const SPANS: readonly number[] = [120, 240, 480];

/** Width of the picture from which it has room for all its labels. */
const ROOMY = 560;

const boxWidth = signal(0);

const course = new Course();

/** The last second of a picture that stands still; undefined while it follows. */
const pinned = signal<number | undefined>(undefined);

/** The second under the cursor. */
const cursor = signal<number | undefined>(undefined);

/** What the river shows, and what is read from it. */
export interface Current {
  readonly names: readonly string[];
  readonly from: number;
  readonly to: number;
  readonly span: number;
  readonly first: number;
  readonly readings: ReadonlyMap<string, readonly Reading[]>;
  readonly phases: readonly Phase[];
  readonly all: readonly Phase[];
}

/** The state of the river, once a second and when the past becomes known; undefined before the first figures. */
export const current = computed<Current | undefined>(() => {
  void [seconds.value, revision.value, flowsRevision.value];
  const end = pinned.value;
  return course.strands.steps.length > 0 ? untracked(() => read(end)) : read(end);
});

function read(wanted: number | undefined): Current | undefined {
  const known = readings();
  const names = nodeNames.value.filter((name) => known.has(name));
  course.update({ names, readings: known, flows: allows("flows") ? (flows.value ?? new Map<number, Move[]>()) : undefined, own: boot.value?.node ?? "", revision: revision.value + flowsRevision.value });
  const end = course.strands.steps.at(-1)?.at;
  if (end === undefined) return undefined;
  const to = wanted ?? end;
  const first = course.strands.steps[0]?.at ?? to;
  const span = SPANS.find((seconds) => seconds >= end - first) ?? SPANS.at(-1) ?? 0;
  const from = to - span + 1;
  const all = names.flatMap((name) => phases(name, known.get(name) ?? [], end)).sort((a, b) => a.from - b.from);
  return { names, from, to, span, first, readings: known, phases: all.filter((it) => it.to >= from && it.from <= to), all };
}

/** Moves between nodes in some seconds, as the nodes counted them. */
export function movesBetween(from: number, to: number): Move[] {
  const list: Move[] = [];
  for (let at = from; at <= to; at += 1) list.push(...(flows.value?.get(at) ?? []));
  return list;
}

function clientsAt(it: Current, second: number): number[] {
  return it.names.map((name) => {
    const left = (at: number) => movesBetween(at, at).reduce((sum, move) => sum + (move.from === name && move.to !== name ? move.count : 0), 0);
    return counts(it.readings.get(name) ?? [], second, second, left)[0] ?? 0;
  });
}

/** The clients of all nodes over the last minutes, as strands that cross when they move. */
export function River() {
  const it = current.value;
  const [asTable, setTable] = useState(false);
  const [forced, setForced] = useState<boolean | undefined>(undefined);
  useEffect(() => {
    const toggle = () => (pinned.value = pinned.value === undefined ? current.value?.to : undefined);
    viewKeys.set("p", toggle);
    return () => { viewKeys.delete("p"); pinned.value = undefined; cursor.value = undefined; };
  }, []);
  if (!it) return <section class="river" aria-label="River of clients"><p class="quiet">The picture of the clients begins with the first figures.</p></section>;
  const isOpen = forced ?? it.phases.length > 0;
  const height = isOpen ? Math.max(boxWidth.value > 0 && boxWidth.value < ROOMY ? 260 : 392, it.names.length * 40) : Math.max(120, it.names.length * 28);
  const past = it.all.filter((phase) => phase.kind === "leaves" && !phase.isOpen && phase.to < it.from);
  const source = allows("flows") ? "flows" : "counts";
  return (
    <section class="river" aria-label="River of clients">
      <div class="river-head">
        <p class="sr">{summary(it.names, clientsAt(it, it.to), it.phases, it.span / 60)}</p>
        <p class="quiet small grow">{caption(course.unit, it.names.length, source, silent.value)}{it.first > it.from ? ` Known since ${time(it.first)}.` : ""}</p>
        <div class="row">
          {past.length > 0 && pinned.value === undefined && <button type="button" class="button" onClick={() => (pinned.value = Math.min(it.to, (past.at(-1)?.to ?? 0) + 60))}>Last rollout</button>}
          <button type="button" class="button" aria-pressed={pinned.value !== undefined} onClick={() => (pinned.value = pinned.value === undefined ? it.to : undefined)}>
            <Icon name={pinned.value === undefined ? "pause" : "play"} />
            {pinned.value === undefined ? "Pause" : "Go on"}
          </button>
          {!asTable && <button type="button" class="button" aria-expanded={isOpen} onClick={() => setForced(!isOpen)}>{isOpen ? "Less" : "More"}</button>}
          <button type="button" class="button" aria-pressed={asTable} onClick={() => setTable(!asTable)}>{asTable ? "Show as picture" : "Show as table"}</button>
        </div>
      </div>
      {asTable ? <Table it={it} /> : (
        <>
          {it.phases.length > 0 && <Strip it={it} />}
          <Picture it={it} height={height} />
          <Axis it={it} />
        </>
      )}
    </section>
  );
}

const share = (it: Current, second: number) => Math.min(100, Math.max(0, ((second - it.from) / (it.span - 1)) * 100));

/** The phases above the picture: who leaves, and who is away. */
function Strip({ it }: { readonly it: Current }) {
  const leaving = it.phases.filter((phase) => phase.kind === "leaves" || phase.isSudden);
  const versions = new Map(nodes.value?.nodes.map((node) => [node.node, node.version]));
  return (
    <ol class="phases">
      {it.phases.map((phase) => {
        const [left, right] = [share(it, phase.from), share(it, phase.to)];
        const words = phaseWords(phase);
        const isLast = it.phases.filter((other) => other.node === phase.node && other.kind === "away").at(-1) === phase;
        if (phase.kind === "away" && !phase.isSudden) {
          const version = isLast && !phase.isOpen ? versions.get(phase.node) : undefined;
          return (
            <li class={`away ${nodeClass(phase.node)}`} style={{ left: `${left}%`, width: `${right - left}%` }} title={`${phase.node} ${words}`}>
              <span class="sr">{phase.node} </span><span>{version ? `${version}, ` : ""}{phase.isOpen ? words : lasted(phase.to - phase.from)}</span>
            </li>
          );
        }
        const next = leaving.find((other) => other.from > phase.from);
        const before = Math.max(0, ...leaving.filter((other) => other.from < phase.from).map((other) => share(it, other.to)));
        const label = placeLabel(phase, { left, right, until: next ? share(it, next.from) : 100, before });
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
function placeLabel(phase: Phase, at: { readonly left: number; readonly right: number; readonly until: number; readonly before: number }) {
  const px = (share: number) => (share / 100) * boxWidth.value - 20 - phase.node.length * 8;
  const places = [["", at.until - at.left], ["late", at.right - at.left], ["outside", at.left - at.before]] as const;
  for (const text of [phaseWords(phase), phaseBrief(phase)]) {
    const place = places.find(([, room]) => text.length * 6 < px(room));
    if (place) return { text, place: place[0] };
  }
  return { text: "", place: "" };
}

function Axis({ it }: { readonly it: Current }) {
  const minutes = [];
  const step = it.span > 120 ? 60 : 30;
  for (let second = Math.ceil(it.from / step) * step; second < it.to - (72 / Math.max(1, boxWidth.value)) * it.span; second += step) minutes.push(second);
  return (
    <div class="river-axis num" aria-hidden="true">
      {minutes.map((second) => <span key={second} class={second % (2 * step) === 0 ? "" : "odd"} style={{ left: `${share(it, second)}%` }}>{time(second).slice(0, step === 60 ? 5 : 8)}</span>)}
      <span class="newest">{time(it.to)}</span>
    </div>
  );
}

function Picture({ it, height }: { readonly it: Current; readonly height: number }) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = boxWidth.value;
  const drawn = useMemo(() => layout(course.strands.steps, course.strands.crossings, it.from, it.span, height), [it, height]);
  useLayoutEffect(() => {
    if (!box.current) return;
    const watch = new ResizeObserver(([entry]) => (boxWidth.value = Math.floor(entry?.contentRect.width ?? 0)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (canvas.current && width > 0) paint(canvas.current, drawn, width, height, colours(it, dark.value));
  }, [drawn, width, height, dark.value]);
  const at = cursor.value === undefined ? undefined : Math.min(it.to, Math.max(it.from, cursor.value));
  const move = (step: number) => (cursor.value = Math.min(it.to, Math.max(Math.max(it.from, it.first), (at ?? it.to) + step)));
  const KEYS: Record<string, () => void> = {
    ArrowLeft: () => move(-1), ArrowRight: () => move(1), PageUp: () => move(-30), PageDown: () => move(30), Home: () => move(-it.span), End: () => move(it.span), Escape: () => (cursor.value = undefined),
  };
  return (
    <div
      ref={box}
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
        cursor.value = Math.round(it.from + ((event.clientX - place.left) / place.width) * (it.span - 1));
      }}
      onPointerLeave={() => (cursor.value = undefined)}
      onBlur={() => (cursor.value = undefined)}
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

function reading(it: Current, second: number): string {
  const list = clientsAt(it, second).map((clients, index) => `${it.names[index]} ${grouped(clients)}`);
  const moves = movesWords(movesBetween(second, second));
  return `${time(second)}: ${list.join(", ")}${moves ? `; ${moves}` : ""}`;
}

function Cursor({ it, at }: { readonly it: Current; readonly at: number }) {
  const place = share(it, at);
  const moves = movesBetween(at, at).filter((move) => move.from !== move.to);
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
function labels(it: Current, drawn: Layout, width: number, height: number): Label[] {
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

/** Colours of the theme. Above eight nodes only those that leave keep theirs, and the one of this page. */
function colours(it: Current, _isDark: boolean) {
  const style = getComputedStyle(document.documentElement);
  const value = (name: string) => style.getPropertyValue(name).trim();
  const isPlain = (name: string) => it.names.length > 8 && name !== boot.value?.node && !it.phases.some((phase) => phase.node === name);
  const index = (name: string) => (Math.max(0, nodeNames.value.indexOf(name)) % 3) + 1;
  return {
    lanes: it.names.map((name) => (isPlain(name) ? value("--edge") : value(`--n${index(name)}`))),
    grounds: it.names.map((name) => (isPlain(name) ? value("--sunken") : value(`--n${index(name)}s`))),
    turns: it.names.map((name) => (isPlain(name) ? 0 : Math.floor(Math.max(0, nodeNames.value.indexOf(name)) / 3))),
    surface: value("--surface"),
    rule: `color-mix(in srgb, ${value("--surface")} 28%, transparent)`,
  };
}

/** The river as figures: one row each half minute, newest first. */
function Table({ it }: { readonly it: Current }) {
  const rows = [];
  for (let second = it.to; second >= Math.max(it.from, it.first); second -= 30) rows.push(second);
  return (
    <div class="scroll-x river-table" tabIndex={0} role="region" aria-label="Clients by node">
      <table>
        <thead><tr><th>Time</th>{it.names.map((name) => <th class={`end ${nodeClass(name)}`}><span class="node">{name}</span></th>)}<th>Moved in the 30 s before</th></tr></thead>
        <tbody>
          {rows.map((second) => (
            <tr key={second}>
              <td class="num">{time(second)}</td>
              {clientsAt(it, second).map((clients) => <td class="end">{grouped(clients)}</td>)}
              <td class="soft">{allows("flows") ? movesWords(movesBetween(second - 29, second).filter((move) => move.from && move.to)) || "none" : "not counted"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
