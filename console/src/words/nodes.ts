import { keyWords, quoted } from "../live/asked.ts";
import type { Stop } from "../charts/phases.ts";
import type { DrainPlan } from "../live/boot.ts";
import type { NodeRow, Nodes } from "../live/nodes.ts";
import type { Unreachable } from "../live/policy.ts";
import { time } from "./river.ts";
import { runbook, type Runbook } from "./runbook.ts";
import { capital, count, duration, grouped, joined, plural, span } from "./numbers.ts";

/** A time that is not known to a tenth of a second: `39 s`, `1 min 9 s`. */
function about(seconds: number): string {
  return seconds < 59.5 ? `${Math.max(1, Math.round(seconds))} s` : duration(seconds * 1000);
}

/** What a node's drain is doing. */
export function drainWords({ drain }: Pick<NodeRow, "drain">): string {
  if (!drain) return "";
  const noticed = drain.unnoticed > 0 ? `, ${grouped(drain.unnoticed)} not notified yet` : "";
  const rest = drain.rate > 0 && drain.left > 0 ? `, done in about ${about(drain.left / drain.rate)}` : "";
  return `${drain.phase}: ${grouped(drain.left)} left of ${grouped(drain.from)}${noticed}${rest}`;
}

/** What a drain will do, before a person confirms it. */
export function drainQuestion(it: NodeRow, others: number): string {
  const people = it.conns === 0 ? "It has no clients now." : it.conns === 1 ? "Its client is asked to leave." : `Its ${grouped(it.conns)} clients are asked to leave, each in a slot of its own.`;
  const after = others > 0 ? (it.conns === 0 ? "" : ` ${it.conns === 1 ? "It connects" : "They connect"} to the other nodes.`) : ` It is the only node: ${it.conns === 0 ? "" : `nobody takes ${it.conns === 1 ? "it" : "them"} over, and `}this page ends with it.`;
  return `${it.node} drains, and its process exits. ${people}${after}`;
}

/** How long a drain takes, by the node's own plan; empty if it reports none. */
export function drainTime(plan: DrainPlan | undefined): string {
  if (!plan) return "";
  const wait = plan.delayMs > 0 ? `First ${span(plan.delayMs / 1000)} pass in which load balancers stop choosing it. ` : "";
  const leave = plan.clients === 0 ? "" : plan.slotsMs < 1000 ? "They leave within a second. " : `They leave within about ${about(plan.slotsMs / 1000)}. `;
  return `${wait}${leave}The drain takes ${span(plan.deadlineMs / 1000)} at most; who has not left by then is cut off.`;
}

/** Which nodes the page can't connect to before it is loaded again, and why. */
export function unreachedWords(list: readonly Unreachable[]): string {
  const [fresh, moved] = [list.filter((it) => it.isNew), list.filter((it) => !it.isNew)];
  const said = [
    fresh.length > 0 && `${joined(fresh.map((it) => it.node))} joined after this page was loaded`,
    moved.length > 0 && `${joined(moved.map((it) => `${it.node}’s`))} ${moved.length === 1 ? "address has" : "addresses have"} changed since this page was loaded`,
  ].filter(Boolean);
  return `${joined(said as string[])}, and the browser lets nobody here connect to ${list.length === 1 ? "it" : "them"}. Reloading begins the conversation again.`;
}

/** A request as a command to copy. */
export function curl(method: string, admin: string, path: string, body?: unknown, hasKey?: boolean): string {
  // A quotation mark ends the text of a shell, so each is written between two texts.
  const data = body === undefined ? "" : ` -d '${JSON.stringify(body).replaceAll("'", `'\\''`)}'`;
  const [before, header] = keyWords(hasKey);
  return `${before}curl -X ${method} ${admin}${/^[\w./%-]*$/.test(path) ? path : quoted(path)}${header} -H 'content-type: application/json'${data}`;
}

/** What part of the new clients a node gets with a weight, by the weights and free connections of the nodes that take some. */
export function newClients(it: NodeRow, nodes: readonly NodeRow[], weight: number): string {
  const pull = (node: NodeRow) => (node.boot === it.boot ? weight : node.weight) * Math.max(0, node.capacity - node.conns);
  const taking = nodes.filter((node) => node.lease === "live" && node.state === "ready");
  if (!taking.some((node) => node.boot === it.boot)) return `${it.node} takes no new clients now.`;
  const sum = taking.reduce((all, node) => all + pull(node), 0);
  if (taking.length === 1) return `${it.node} is the only node that takes new clients.`;
  if (pull(it) === 0) return `${it.node} gets no new clients, unless no other node takes them.`;
  return `${it.node} gets about ${Math.round((pull(it) / sum) * 100)} % of the new clients, by weight and free connections.`;
}

/** Of which nodes the figures are, where some of the live ones are missing; empty otherwise, and before the first figures. */
export function figuresNote(live: readonly string[], known: readonly string[], strays: readonly string[]): string {
  const shown = live.filter((node) => known.includes(node) && !strays.includes(node));
  if (shown.length === 0 || shown.length === live.length) return "";
  const apart = live.filter((node) => strays.includes(node)).map((node) => `${node}’s`);
  const clocks = apart.length === 0 ? "" : ` ${joined(apart)} ${apart.length === 1 ? "clock differs" : "clocks differ"}.`;
  return `These are the figures of ${joined(shown)} alone: ${shown.length} of ${live.length} nodes.${clocks}`;
}

/** A verdict about the cluster: what a person has to know first. */
export interface Verdict {
  readonly tone: "" | "amber" | "red" | "off";
  readonly sentence: string;
  readonly more: string;
  /** What a person can do, where something is not as it should be. */
  readonly runbook?: Runbook;
}

/** What the figures of the nodes say, where they are known. */
export interface Signs {
  readonly refused: number | undefined;
  readonly lagMs: number | undefined;
  /** Nodes that do not answer, with the seconds. */
  readonly unanswered?: ReadonlyMap<string, number>;
  /** Nodes whose first figures are awaited, so that nothing but their lease says that they live. */
  readonly awaited?: readonly string[];
  /** Nodes that stopped without a drain in the last minutes. */
  readonly stops?: readonly Stop[];
  /** Time from which on such stops are known, in s, if that is less than these minutes. */
  readonly sinceS?: number | undefined;
}

/** Nodes that died or do not answer, in a sentence; empty if there are none. */
function missingWords(gone: readonly NodeRow[], silent: readonly NodeRow[], stopped: readonly Stop[], unanswered: ReadonlyMap<string, number>, owned: ReadonlySet<number>): string {
  const unseen = gone.filter((node) => !stopped.some((stop) => stop.node === node.node)).map((node) => `${node.node} stopped without a drain`);
  const dead = [...stopped.map((stop) => `${stop.node} stopped ${about(stop.agoS)} ago without a drain`), ...unseen];
  const all = silent.flatMap((node) => [...node.owns]);
  const parts = all.filter((index) => !owned.has(index)).length;
  const after = all.length === 0 ? "" : parts === 0 ? `; others have taken over ${silent.length === 1 ? "its" : "their"} ${all.length === 1 ? "partition" : "partitions"}` : `; if ${silent.length === 1 ? "it has" : "they have"} died, others take over ${silent.length === 1 ? "its" : "their"} ${plural(parts, "partition")}`;
  const words = [
    dead.length > 0 && `${joined(dead)}; others ${gone.length > 0 ? "take" : "took"} over.`,
    silent.length > 0 && `${joined(silent.map((node) => `${node.node} has not answered for ${about(unanswered.get(node.node) ?? 0)}`))}${after}.`,
  ];
  return words.filter(Boolean).join(" ");
}

/** A verdict without the times that count up, so that a screen reader says it once. */
export function steady(sentence: string): string {
  return sentence.replace(/ (?:for )?(?:\d+ min )?\d+ s\b(?: ago| later)?/g, "");
}

/** Judges the state of the nodes, and their figures where they are known. What a node owns does not count while it does not answer. */
export function verdict(it: Nodes | undefined, figures: Signs): Verdict {
  if (!it) return { tone: "off", sentence: "Reading the state of the nodes.", more: "" };
  const live = it.nodes.filter((node) => node.lease === "live");
  const gone = it.nodes.filter((node) => node.lease === "lapsed");
  const { unanswered = new Map<string, number>(), awaited = [], stops = [] } = figures;
  const silent = live.filter((node) => unanswered.has(node.node));
  const answering = live.filter((node) => !silent.includes(node));
  const stopped = stops.filter((stop) => stop.awayS === undefined && !live.some((node) => node.node === stop.node));
  const claimed = new Set(live.flatMap((node) => [...node.owns]));
  const orphans = Array.from({ length: it.partitions }, (_, index) => index).filter((index) => !claimed.has(index));
  const owned = new Set(answering.flatMap((node) => [...node.owns]));
  const draining = live.filter((node) => node.drain);
  const full = live.filter((node) => node.state === "full");
  const clients = answering.reduce((sum, node) => sum + node.conns, 0);
  const partitions = owned.size < it.partitions && silent.length > 0 ? `${grouped(owned.size)} of ${grouped(it.partitions)} partitions` : plural(it.partitions, "partition");
  const calm = `${capital(plural(answering.length, "node"))}, ${plural(clients, "client")}, ${partitions} owned.`;
  if (it.archiveBehind.length > 0) {
    return { tone: "red", sentence: `The archive is behind in ${plural(it.archiveBehind.length, "partition")}: sends to ${it.archiveBehind.length === 1 ? "it" : "them"} are refused.`, more: "See ARCHIVE_BEHIND (4011), and whether Postgres keeps up.", runbook: runbook("TidegateArchiveBehind") };
  }
  if (orphans.length > 0) {
    return { tone: "red", sentence: `${capital(plural(orphans.length, "partition"))} ${orphans.length === 1 ? "has" : "have"} no owner.`, more: "A live node takes them over within seconds. If this lasts, check that nodes reach Kafka and Redis.", runbook: runbook("TidegatePartitionsWithoutOwner") };
  }
  const missing = missingWords(gone, silent, stopped, unanswered, owned);
  if (missing) return { tone: "amber", sentence: missing, more: full.length > 0 ? `${calm} ${capital(count(full.length))} of them ${full.length === 1 ? "is" : "are"} full.` : calm, runbook: runbook("TidegateNodeDied") };
  if (it.stale) return { tone: "amber", sentence: "Redis is unavailable. This is what the node saw last.", more: "Connected clients are served; new logins find their nodes by the last known state.", runbook: runbook("TidegateRedisAway") };
  if (draining.length > 0) return { tone: "amber", sentence: `${draining.map((node) => node.node).join(" and ")} ${draining.length === 1 ? "drains" : "drain"}. Nothing needs you.`, more: draining.map((node) => `${node.node}: ${drainWords(node)}`).join("; ") };
  if (full.length > 0) return { tone: "amber", sentence: `${capital(count(full.length))} of ${live.length} nodes ${full.length === 1 ? "is" : "are"} full and ${full.length === 1 ? "takes" : "take"} no new clients.`, more: calm, runbook: runbook("TidegateNodeFull") };
  if ((figures.lagMs ?? 0) > 1000) return { tone: "amber", sentence: `The archive is ${duration(figures.lagMs ?? 0)} behind.`, more: calm, runbook: runbook("TidegateArchiveLag") };
  const unheard = live.filter((node) => awaited.includes(node.node)).map((node) => node.node);
  if (unheard.length > 0) return { tone: "off", sentence: `${joined(unheard)} ${unheard.length === 1 ? "has" : "have"} not reported to this page yet. Nothing else is wrong.`, more: calm };
  const back = stops.filter((stop) => stop.awayS !== undefined).map((stop) => `${stop.node} stopped ${about(stop.agoS)} ago without a drain, and came back ${about(stop.awayS ?? 0)} later`);
  if (back.length > 0) return { tone: "amber", sentence: `${joined(back)}.`, more: calm, runbook: runbook("TidegateNodeDied") };
  const since = figures.sinceS === undefined ? "" : ` Nodes that stopped before ${time(figures.sinceS)}, when this page was opened, are not known to it.`;
  return { tone: "", sentence: "All is well.", more: `${calm}${since}${figures.refused ? ` ${grouped(figures.refused)} refused in the last second.` : ""}` };
}
