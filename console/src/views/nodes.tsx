import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Header } from "../app/shell.tsx";
import { isSilent } from "../app/silence.ts";
import { ApiError } from "../live/api.ts";
import { allows, boot, drainPlan, isFull, nodeClass } from "../live/boot.ts";
import { adminOf, postOn, reaches } from "../live/forward.ts";
import { followNodes, nodes, nodesFailure, readNodes, type NodeRow } from "../live/nodes.ts";
import { followFlows } from "../live/flows.ts";
import { clock, counted, series } from "../live/stats.ts";
import { CopyButton } from "../parts/copy.tsx";
import { Failed } from "../parts/failed.tsx";
import { Menu } from "../parts/menu.tsx";
import { curl, drainQuestion, drainTime, drainWords } from "../words/nodes.ts";
import { duration, fine, grouped } from "../words/numbers.ts";
import { lasted, minutes, time } from "../words/river.ts";
import { Partitions } from "./partitions.tsx";
import { River, current } from "./river.tsx";
import { WeightDialog, weighed } from "./weight.tsx";

const asked = signal<NodeRow | undefined>(undefined);
const failed = signal<ApiError | undefined>(undefined);

async function act(node: string, method: "POST" | "DELETE"): Promise<void> {
  try {
    await postOn(node, "/v1/drain", undefined, method);
    failed.value = undefined;
  } catch (error) {
    if (error instanceof ApiError) failed.value = error;
  }
  await readNodes();
}

function StateChip({ it }: { readonly it: NodeRow }) {
  const tone = it.lease !== "live" ? "red" : it.state === "ready" ? "tide" : "amber";
  return <span class={`chip ${tone}`}>{it.lease === "live" ? it.state : it.lease}</span>;
}

function Row({ it, mayAct, hasZones }: { readonly it: NodeRow; readonly mayAct: boolean; readonly hasZones: boolean }) {
  const lag = it.stands.reduce((sum, stand) => sum + stand.behindRecords, 0);
  const age = Math.max(0, ...it.stands.map((stand) => stand.behindMs));
  return (
    <tr class={nodeClass(it.node)}>
      <td><span class="node">{it.node}</span>{it.self && <span class="quiet small wide"> this one</span>}</td>
      <td><StateChip it={it} /></td>
      <td class="end">{grouped(it.conns)}</td>
      <td class="wide wider"><span class="meter"><i class="bar" style={{ width: it.conns === 0 ? "0" : `${Math.min(100, (it.conns / Math.max(1, it.capacity)) * 100)}%` }} /></span> <span class="quiet small">of {grouped(it.capacity)}</span></td>
      <td class="end wide">{it.owns.length}</td>
      <td class="end wide">{grouped(lag)}{age >= 1000 && <span class="small lagging"> {duration(age)}</span>}</td>
      <td class="wide mono">{it.version}</td>
      <td class="wide soft grow doing">{drainWords(it) || (it.lease !== "live" ? "stopped" : cameBack(it.node))}{it.weight !== 100 && <span class="quiet"> weight {grouped(it.weight)}</span>}{it.share !== null && it.share >= 0 && <span class="quiet"> share {it.share} %</span>}</td>
      {hasZones && <td class="wide zone">{it.zone}</td>}
      <td class="end acts"><Actions it={it} mayAct={mayAct} /></td>
    </tr>
  );
}

/** Whether the node drains, or takes no clients for another reason that is called off like a drain. */
function isLeaving(it: NodeRow): boolean {
  return it.drain !== null || !["ready", "full", "starting"].includes(it.state);
}

function Actions({ it, mayAct }: { readonly it: NodeRow; readonly mayAct: boolean }) {
  if (it.lease !== "live") return null;
  const can = mayAct && reaches(it.node);
  const admin = adminOf(it.node);
  const copies = [
    ["Copy draining as curl", () => curl("POST", admin, "/v1/drain")],
    ["Copy calling off as curl", () => curl("DELETE", admin, "/v1/drain")],
    ["Copy its weight as curl", () => curl("POST", admin, "/v1/weight", { weight: it.weight, share: it.share ?? -1 })],
  ] as const;
  return (
    <span class="row-actions">
      {can && (isLeaving(it)
        ? <button type="button" class="link" disabled={isSilent.value} onClick={() => void act(it.node, "DELETE")}>Call off</button>
        : <button type="button" class="link" disabled={isSilent.value} onClick={() => (asked.value = it)}>Drain</button>)}
      {!can && !it.self && <OtherConsole node={it.node} />}
      {(can || admin) && (
        <Menu label={`More for ${it.node}`}>
          {can && <button type="button" class="menu-item" data-ends disabled={isSilent.value} onClick={() => (weighed.value = it)}>Weight and share</button>}
          {admin && copies.map(([label, text]) => <CopyButton plain label={label} text={text} />)}
          {admin && !it.self && <a class="menu-item" data-ends href={`${admin}/nodes`} target="_blank" rel="noreferrer">Its console</a>}
        </Menu>
      )}
    </span>
  );
}

/** When a node that was away came back, as far as the river shows it. */
function cameBack(node: string): string {
  const last = current.value?.phases.filter((phase) => phase.node === node && phase.kind === "away" && !phase.isOpen).at(-1);
  return last ? `came back at ${time(last.to)}, was gone ${lasted(last.to - last.from)}` : "";
}

function OtherConsole({ node }: { readonly node: string }) {
  const admin = adminOf(node);
  return admin ? <a href={`${admin}/nodes`} target="_blank" rel="noreferrer">Its console</a> : <span class="quiet small">on its own port</span>;
}

/** How long a drain takes. The plans of other nodes are not known here, so theirs is said by their row. */
function howLong(it: NodeRow): string {
  const known = it.self ? drainTime(drainPlan.value) : "";
  return known || "Once it has begun, its row says how many are left, and when it will be done.";
}

function Ask({ nodes }: { readonly nodes: readonly NodeRow[] }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const it = asked.value;
  useEffect(() => {
    if (it && !dialog.current?.open) dialog.current?.showModal();
    else if (!it) dialog.current?.close();
  }, [it]);
  return (
    <dialog ref={dialog} aria-label="Drain" onClose={() => (asked.value = undefined)}>
      {it && (
        <>
          <h2>Drain {it.node}?</h2>
          <p class="soft">{drainQuestion(it, nodes.length - 1)}</p>
          <p class="soft">{howLong(it)} You can call it off until all clients are being closed.</p>
          <div class="actions">
            {adminOf(it.node) && <CopyButton label="Copy as curl" text={() => curl("POST", adminOf(it.node), "/v1/drain")} />}
            <button type="button" class="button" onClick={() => (asked.value = undefined)}>Keep it</button>
            <button type="button" class="button danger" disabled={isSilent.value} onClick={() => { asked.value = undefined; void act(it.node, "POST"); }}>Drain {it.node}</button>
          </div>
        </>
      )}
    </dialog>
  );
}

/** Figures of the time that the river shows; what was not measured is not among them. */
function Figures({ clients, live }: { readonly clients: number | undefined; readonly live: number }) {
  const river = current.value;
  const away = Math.max(0, ...(river?.phases.filter((phase) => phase.kind === "away").map((phase) => phase.to - phase.from) ?? []));
  const moved = river && allows("flows") ? river.moves(river.from, river.to).filter((move) => move.from && move.to && move.from !== move.to).reduce((sum, move) => sum + move.count, 0) : undefined;
  const within = `in ${minutes(river?.span ?? 480)}`;
  const slowest = Math.max(0, ...series("ackP99Us", river?.span ?? 480, true).map((it) => it ?? 0));
  const until = river?.to ?? Math.floor(clock() / 1000);
  const slow = counted("slowCloses", river?.from ?? until - 479, until);
  const [number, unit] = slowest > 0 ? fine(slowest / 1000).split(" ") : ["–", ""];
  return (
    <div class="figures">
      <Figure label="Clients" text={clients === undefined ? "–" : grouped(clients)} />
      <Figure label="Nodes" text={clients === undefined ? "–" : String(live)} />
      {moved !== undefined && live > 1 && <Figure label="Have moved, at least" text={grouped(moved)} unit={within} />}
      {away > 0 && <Figure label="Longest node away" text={lasted(away).replace(" s", "")} unit={away < 120 ? "s" : "min"} />}
      <Figure label="Slowest ack, p99 of a second" text={number ?? "–"} unit={unit ?? ""} />
      <Figure label="Closed as slow" text={grouped(slow)} unit={within} />
    </div>
  );
}

function Figure({ label, text, unit = "" }: { readonly label: string; readonly text: string; readonly unit?: string }) {
  return <div class="count"><span class="label">{label}</span><span class="figure">{text}<small>{unit}</small></span></div>;
}

/** The nodes: their state, their clients, the partitions they own; drain and call off. */
export default function NodesView() {
  useEffect(followNodes, []);
  useEffect(followFlows, []);
  const it = nodes.value;
  const live = it?.nodes.filter((node) => node.lease === "live") ?? [];
  const clients = live.reduce((sum, node) => sum + node.conns, 0);
  const mayAct = isFull();
  const hasZones = it?.nodes.some((node) => node.zone !== "") ?? false;
  return (
    <>
      <Header title="Nodes"><span class="quiet lead-note">{it ? `${live.filter((node) => node.state === "ready").length} of ${live.length} ready` : ""}</span></Header>
      <div class="view">
        {nodesFailure.value && <Failed error={nodesFailure.value} again={() => void readNodes()} />}
        {failed.value && <Failed error={failed.value} label="Dismiss" again={() => (failed.value = undefined)} />}
        {it?.stale && <p class="banner">Redis is unavailable. This is what {boot.value?.node} saw last.</p>}
        <Figures clients={it ? clients : undefined} live={live.length} />
        <River />
        <div class="scroll-x pad">
          <table>
            <thead>
              <tr>
                <th>Node</th><th>State</th><th class="end">Clients</th><th class="wide wider" /><th class="end wide">Partitions</th><th class="end wide">Lag</th><th class="wide">Version</th><th class="wide">Drain</th>{hasZones && <th class="wide zone">Zone</th>}<th class="end acts"><span class="sr">Actions</span></th>
              </tr>
            </thead>
            <tbody>{it?.nodes.map((node) => <Row key={node.boot} it={node} mayAct={mayAct} hasZones={hasZones} />)}</tbody>
          </table>
        </div>
        {it && <Partitions it={it} />}
        {!mayAct && boot.value && <p class="note quiet">This console is read-only. Set <code>admin.console = "full"</code> to act here, or use <code>tidegate drain</code>.</p>}
      </div>
      <Ask nodes={live} />
      <WeightDialog nodes={live} />
    </>
  );
}
