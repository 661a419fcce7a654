import { computed, signal, untracked } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { viewKeys } from "../app/keys.ts";
import { Course } from "../charts/course.ts";
import { phases, type Phase } from "../charts/phases.ts";
import { hadClients } from "../charts/readings.ts";
import { windowOf } from "../charts/river.ts";
import type { Move } from "../charts/strands.ts";
import { allows, boot, nodeClass, nodeNames } from "../live/boot.ts";
import { flows, flowsRevision, silent } from "../live/flows.ts";
import { nodes } from "../live/nodes.ts";
import { readings } from "../live/samples.ts";
import { revision, seconds } from "../live/stats.ts";
import { Empty } from "../parts/empty.tsx";
import { Icon } from "../parts/icon.tsx";
import { grouped } from "../words/numbers.ts";
import { caption, leftUnknown, movesWords, summary, time } from "../words/river.ts";
import { RiverPicture, clientsAt, type Shown } from "./riverpicture.tsx";

const course = new Course();

/** The last second of a picture that stands still; undefined while it follows. */
const pinned = signal<number | undefined>(undefined);

/** What the river shows, and what is read from it. */
export interface Current extends Shown {
  /** Phases of all seconds that are kept. */
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
  const { steps, crossings } = course.strands;
  const end = steps.at(-1)?.at;
  if (end === undefined) return undefined;
  const to = wanted ?? end;
  const first = steps[0]?.at ?? to;
  const span = windowOf(first, to);
  const from = to - span + 1;
  const all = names.flatMap((name) => phases(name, known.get(name) ?? [], end)).sort((a, b) => a.from - b.from);
  const versions = new Map(nodes.value?.nodes.map((node) => [node.node, node.version]));
  return { names, from, to, span, first, readings: known, phases: all.filter((it) => it.to >= from && it.from <= to), all, steps, crossings, versions, moves: movesBetween };
}

/** Moves between nodes in some seconds, as the nodes counted them. */
function movesBetween(from: number, to: number): Move[] {
  const list: Move[] = [];
  for (let at = from; at <= to; at += 1) list.push(...(flows.value?.get(at) ?? []));
  return list;
}

/** The clients of all nodes over the last minutes, as strands that cross when they move. */
export function River() {
  const it = current.value;
  const [asTable, setTable] = useState(false);
  const [forced, setForced] = useState<boolean | undefined>(undefined);
  useEffect(() => {
    const toggle = () => (pinned.value = pinned.value === undefined ? current.value?.to : undefined);
    viewKeys.set("p", toggle);
    return () => { viewKeys.delete("p"); pinned.value = undefined; };
  }, []);
  if (!it) return <section class="river" aria-label="River of clients"><p class="quiet">The picture of the clients begins with the first figures.</p></section>;
  const isOpen = forced ?? it.phases.length > 0;
  const past = it.all.filter((phase) => phase.kind === "leaves" && !phase.isOpen && phase.to < it.from);
  // Strands begin some seconds after the first reading with a client, and moves from a node that is gone have none.
  const to = pinned.value === undefined ? Infinity : it.to;
  const moves = allows("flows") ? it.moves(it.from, it.to) : [];
  const unknown = leftUnknown(it.names, moves);
  const hasStrands = it.phases.length > 0 || it.steps.some((step) => step.at >= it.from && step.at <= it.to && step.lanes.some((lane) => lane.length > 0));
  const hasClients = hasStrands || moves.length > 0 || hadClients(it.readings.values(), it.from, to);
  const source = allows("flows") ? "flows" : "counts";
  return (
    <section class="river" aria-label="River of clients">
      <div class="river-head">
        <p class="sr">{summary(it.names, clientsAt(it, it.to), it.phases, it.span, moves)}</p>
        <p class="quiet small grow">{caption(course.unit, it.names.length, source, silent.value)}{it.first > it.from ? ` Known since ${time(it.first)}.` : ""}{unknown.map((words) => ` ${words}.`)}</p>
        <div class="row">
          {past.length > 0 && pinned.value === undefined && <button type="button" class="button" onClick={() => (pinned.value = Math.min(it.to, (past.at(-1)?.to ?? 0) + 60))}>Last rollout</button>}
          <button type="button" class="button" aria-pressed={pinned.value !== undefined} onClick={() => (pinned.value = pinned.value === undefined ? it.to : undefined)}>
            <Icon name={pinned.value === undefined ? "pause" : "play"} />
            {pinned.value === undefined ? "Pause" : "Go on"}
          </button>
          {!asTable && hasStrands && <button type="button" class="button" aria-expanded={isOpen} onClick={() => setForced(!isOpen)}>{isOpen ? "Less" : "More"}</button>}
          <button type="button" class="button" aria-pressed={asTable} onClick={() => setTable(!asTable)}>{asTable ? "Show as picture" : "Show as table"}</button>
        </div>
      </div>
      {!hasClients && !asTable && <Empty command="tidegate tail --user bob">No client was connected in this time. This connects one, and its strand begins a few seconds later:</Empty>}
      {hasClients && !hasStrands && !asTable && <p class="quiet">A strand begins a few seconds after its client has connected.</p>}
      {asTable ? <Table it={it} /> : hasStrands && <RiverPicture it={it} isOpen={isOpen} />}
    </section>
  );
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
              <td class="soft">{allows("flows") ? movesWords(it.moves(second - 29, second).filter((move) => move.from && move.to)) || "none" : "not counted"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
