import { useEffect } from "preact/hooks";
import { Header } from "../app/shell.tsx";
import { hasSeenAll, stops } from "../charts/phases.ts";
import { measured } from "../charts/sparkpath.ts";
import { allows, boot, nodeClass } from "../live/boot.ts";
import { followEvents, isOfConsole, list } from "../live/cloudevents.ts";
import { followNodes, listedMs, nodes, nodesFailure, readNodes } from "../live/nodes.ts";
import { hasReported, late, type Late } from "../live/clocks.ts";
import { arrivals, now, openedMs, resumedMs, rows, series, strays } from "../live/stats.ts";
import { readings } from "../live/samples.ts";
import { EventLine } from "../parts/eventline.tsx";
import { Failed } from "../parts/failed.tsx";
import { Sparkline } from "../parts/sparkline.tsx";
import { WhatToDo } from "../parts/whattodo.tsx";
import { figuresNote, steady, verdict } from "../words/nodes.ts";
import { grouped } from "../words/numbers.ts";
import { Partitions } from "./partitions.tsx";

const LINES: readonly (readonly [string, string, string])[] = [
  ["clients", "Clients", ""],
  ["logins", "Logins", "/s"],
  ["accepted", "Accepted", "/s"],
  ["pushes", "Pushed", "/s"],
  ["ackP99Us", "Send to ack, p99", "ms"],
  ["refused", "Refused", "/s"],
];

/** Without figures nothing is known about who reports. */
const NONE_LATE: Late = { unanswered: new Map(), awaited: [] };

/** Seconds that a sparkline shows. */
const SPAN = 300;

/** A figure with its line; `known` is the newest value where another source has it for all nodes. */
function Line({ field, label, unit, known }: { readonly field: string; readonly label: string; readonly unit: string; readonly known: number | undefined }) {
  const isMs = unit === "ms";
  // A second without a send has no wait for an ack.
  const values = isMs ? measured(series(field, SPAN, true)) : series(field, SPAN);
  const newest = known !== undefined ? known : isMs ? values.at(-1) : now(field);
  const text = newest === undefined ? "–" : isMs ? (newest / 1000).toFixed(newest < 10_000 ? 1 : 0) : grouped(newest);
  return (
    <div class="spark">
      <span class="label">{label}</span>
      <span class="figure">{text}<small>{text === "–" ? "" : unit}</small></span>
      <Sparkline values={values} label={label} width={160} height={28} />
    </div>
  );
}

/** Whether all is well, in one sentence; then the figures, the nodes and the newest events. */
export default function Overview() {
  useEffect(followNodes, []);
  useEffect(followEvents, []);
  const it = nodes.value;
  const newest = list.value.filter((event) => !isOfConsole(event)).slice(0, 20);
  const alive = it?.nodes.filter((node) => node.lease === "live") ?? [];
  // The same source as the sentence and the rows of the nodes, or the figures would differ by what has just connected.
  const clients = it ? alive.reduce((sum, node) => sum + node.conns, 0) : undefined;
  const own = boot.value?.node ?? "";
  const known = [...rows.value.keys()].filter((node) => hasReported(arrivals.value, node, own));
  const note = figuresNote(alive.map((node) => node.node), known, strays.value);
  const { unanswered: silent, awaited } = allows("stats") ? late(arrivals.value, own, resumedMs.value, listedMs.value) : NONE_LATE;
  // Samples of the list of nodes have gaps where no view read it, which are no stops.
  const reported = new Map([...readings()].filter(([node]) => rows.value.has(node) && !strays.value.includes(node)));
  // Nothing that a node serves names others that stopped before somebody followed them.
  const nowMs = arrivals.value.get(own)?.rowMs ?? 0;
  const isNew = boot.value?.profile === "cluster" && nowMs > 0 && !hasSeenAll(openedMs.value, nowMs);
  const said = verdict(it, { refused: now("refused"), lagMs: now("archiveLagMs"), unanswered: silent, awaited, stops: stops(reported, own), sinceS: isNew ? Math.floor(openedMs.value / 1000) : undefined });
  return (
    <>
      <Header title="Overview" />
      <div class="view">
        {nodesFailure.value && <Failed error={nodesFailure.value} again={() => void readNodes()} />}
        <p class="sr" role="status">{steady(said.sentence)}</p>
        <section class="verdict" aria-label="State of the cluster">
          <i class={`dot ${said.tone}`} />
          <div>
            <p class="first">{said.sentence}</p>
            <p class="soft">{said.more}</p>
            {said.runbook && <WhatToDo it={said.runbook} />}
          </div>
        </section>
        {allows("stats") && <section class="sparks" aria-label="The last five minutes">{LINES.map(([field, label, unit]) => <Line field={field} label={label} unit={unit} known={field === "clients" ? clients : undefined} />)}</section>}
        {allows("stats") && note && <p class="note quiet">{note}</p>}
        <section class="pad">
          <h2>Nodes</h2>
          <ul class="node-row">
            {it?.nodes.map((node) => (
              <li class={nodeClass(node.node)}>
                <a href="/nodes"><span class="node">{node.node}</span></a>
                <span class={`chip ${node.lease !== "live" ? "red" : node.state === "ready" && !silent.has(node.node) ? "tide" : "amber"}`}>{node.lease !== "live" ? node.lease : silent.has(node.node) ? "no answer" : node.state}</span>
                <span class="num soft">{grouped(node.conns)} {node.conns === 1 ? "client" : "clients"}</span>
                <span class="quiet small">{node.version}</span>
              </li>
            ))}
          </ul>
        </section>
        {it && it.partitions > 0 && <Partitions it={it} isBrief />}
        <section class="pad">
          <h2>Newest events <a class="small" href="/events">All events</a></h2>
          <ol class="events">{newest.map((event) => <li key={event.id} class="event-row"><EventLine it={event} /></li>)}</ol>
          {newest.length === 0 && <p class="quiet">No event yet.</p>}
        </section>
      </div>
    </>
  );
}
