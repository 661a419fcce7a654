import type { EvidenceCount, EvidenceList, GuardChanged, GuardEntry, KnownRule, ListName, LimitRule, LimitState, LimitTotals, Storm, StormList, SubjectView } from "../live/guard.ts";
import { capital, duration, grouped, joined, plural, span } from "./numbers.ts";
import { runbook, type Runbook } from "./runbook.ts";

/** A window or an interval of a setting: `500 ms`, `1 s`, `5 min`, `1 h`, `1 d`. */
export function windowWords(ms: number): string {
  for (const [unit, name] of [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"]] as const) if (ms >= unit && ms % unit === 0) return `${ms / unit} ${name}`;
  return ms < 1000 ? `${ms} ms` : `${Number((ms / 1000).toFixed(2))} s`;
}

/** An ordinal: `101st`. */
export function ordinal(value: number): string {
  const [ten, hundred] = [value % 10, value % 100];
  const end = hundred >= 11 && hundred <= 13 ? "th" : ten === 1 ? "st" : ten === 2 ? "nd" : ten === 3 ? "rd" : "th";
  return `${grouped(value)}${end}`;
}

/** What is done about a storm. */
export function actionWords(it: Storm): string {
  const [name = "", interval] = (it.action ?? "").split(":");
  const ms = intervalOf(interval ?? "");
  if (name === "slow") return ms > 0 ? `Slow mode: one message per user in ${windowWords(ms)}` : "Slow mode";
  if (name === "admins") return "Only admins may post";
  return name ? `Action: ${it.action}` : "Reported; its messages are taken as before";
}

function intervalOf(text: string): number {
  const [, digits, unit] = /^(\d+)(ms|s|m)$/.exec(text) ?? [];
  return Number(digits ?? 0) * (unit === "m" ? 60_000 : unit === "s" ? 1000 : 1);
}

/** How many messages a group has, with or without a storm. */
export function groupWords(it: Storm): string {
  const counted = `${it.state === "unknown" ? "At least " : ""}${grouped(it.count)} ${it.count === 1 ? "message" : "messages"} in the last ${windowWords(it.windowMs)}; more than ${grouped(it.threshold)} are a message storm.`;
  if (it.state === "unknown") return `${counted} Its new owner is still reading the past.`;
  return it.state === "quiet" ? counted : `${counted} ${it.state === "storm" ? "It has one" : "Its storm is ending"}.`;
}

/** What a person has to know of the guard first. */
export interface GuardVerdict {
  readonly tone: "" | "amber" | "off";
  readonly sentence: string;
  /** The sentence without counts that change each second, so that a screen reader says it once. */
  readonly steady: string;
  readonly more: string;
  /** What a person can do about a storm. */
  readonly runbook?: Runbook;
}

/** What the guard's figures say, as far as they are known. */
export interface GuardSigns {
  readonly storms: StormList | undefined;
  /** Requests refused with RATE_LIMITED in the last minute. */
  readonly refused: number | undefined;
  readonly time: (ms: number) => string;
}

/** Storms in a sentence; empty if there is none. */
function stormsSentence(all: readonly Storm[], total: number): string {
  const [storms, cooling] = [all.filter((it) => it.state === "storm"), all.filter((it) => it.state === "cooling")];
  const [first] = storms;
  if (first && storms.length === 1) {
    const name = (first.action ?? "").split(":")[0];
    const done = name === "slow" ? ", and is slowed down" : name === "admins" ? ", and only its admins may post" : "";
    return `${first.conversation} has a message storm${done}.`;
  }
  if (first) return `${capital(plural(Math.max(total, all.length) - cooling.length, "group"))} have message storms.`;
  const [last] = cooling;
  if (!last) return "";
  return cooling.length === 1 ? `The storm of ${last.conversation} is ending.` : `${capital(plural(cooling.length, "storm"))} are ending.`;
}

/** Judges what the guard does now. */
export function guardVerdict({ storms, refused, time }: GuardSigns): GuardVerdict {
  if (!storms && refused === undefined) return { tone: "off", sentence: "Reading what the guard does.", steady: "", more: "" };
  const list = storms?.storms ?? [];
  const said = stormsSentence(list, storms?.total ?? 0);
  const limits = refused ? `${capital(plural(refused, "request"))} ${refused === 1 ? "was" : "were"} refused by limits in the last minute.` : "";
  const quiet = [storms && "no group has a message storm", refused === 0 && "no limit refused a request in the last minute"].filter(Boolean) as string[];
  const sentence = [said, limits].filter(Boolean).join(" ") || `${capital(joined(quiet))}.`;
  const first = list.find((it) => it.state === "storm") ?? list[0];
  const since = first?.sinceMs === undefined ? "" : `${first.conversation} exceeded ${plural(first.threshold, "message")} in ${windowWords(first.windowMs)} at ${time(first.sinceMs)}.`;
  const isStormy = list.some((it) => it.state === "storm");
  const isActing = isStormy || limits !== "";
  const steady = limits ? [said, "Limits refuse requests."].filter(Boolean).join(" ") : sentence;
  return { tone: isActing ? "amber" : "", sentence, steady, more: since || (isActing ? "" : "Nothing needs you."), ...(isStormy ? { runbook: runbook("TidegateStorm") } : {}) };
}

/** Of which storms the rows are, where some are missing; empty otherwise. */
export function stormsNote(it: StormList, shown: number): string {
  const part = shown < it.total ? `These are the ${grouped(shown)} storms with the most messages of ${grouped(it.total)}.` : "";
  const silent = it.silent.length > 0 ? `${joined(it.silent)} did not answer: ${it.silent.length === 1 ? "its" : "their"} storms are not listed here, and may go on.` : "";
  return [part, silent].filter(Boolean).join(" ");
}

/** A part of all in percent: `0`, `0.01 %`, `12 %`. */
export function percent(part: number, all: number): string {
  if (all === 0 || part === 0) return "0";
  const value = (part / all) * 100;
  return value < 0.01 ? "below 0.01 %" : `${Number(value.toPrecision(value < 1 ? 1 : 2))} %`;
}

/** Part of the requests that a rule refused. */
export function refusalRate(it: LimitTotals): string {
  return percent(it.refused, it.admitted + it.refused);
}

/** What a rule counts for a subject now, and when it admits the next request. */
export function stateWords(it: LimitState): string {
  if (it.excepted) return "This subject is excepted: the rule does not count it.";
  const used = `${grouped(it.used)} of ${grouped(it.limit)} used in the last ${windowWords(it.windowMs)}.`;
  const next = it.retryAfterMs === 0 ? "The next request is admitted now." : `${it.dryRun ? "It would admit the next request" : "The next request is admitted"} in ${waitWords(it.retryAfterMs)}.`;
  const dry = it.dryRun ? " It refuses nothing: it is a dry run." : "";
  return `${used} ${next}${dry}`;
}

function waitWords(ms: number): string {
  return ms < 60_000 ? duration(ms) : span(ms / 1000);
}

/** What a rule counted of all subjects since its windows began. */
export function totalWords(it: LimitTotals, isDry: boolean): string {
  const waited = it.delayed > 0 ? `, ${grouped(it.delayed)} waited` : "";
  if (isDry) return `Of all subjects: ${grouped(it.admitted)} admitted${waited}; ${grouped(it.dryRefused)} of them it would have refused.`;
  return `Of all subjects: ${grouped(it.admitted)} admitted${waited}, ${grouped(it.refused)} refused${it.refused > 0 ? ` (${refusalRate(it)})` : ""}.`;
}

/** What a rule refused of one subject; empty if nothing, or if the node does not count that. */
export function refusedWords({ refused }: LimitState): string {
  if (!refused || refused.total === 0) return "";
  return `It has refused ${grouped(refused.total)} of its requests${refused.lastMinute > 0 ? `, ${grouped(refused.lastMinute)} in the last minute` : ""}.`;
}

/** What a rule does with requests above its limit. */
export function aboveWords({ dryRun }: Pick<LimitRule, "dryRun">, known: KnownRule | undefined): string {
  if (dryRun) return "counts only";
  const rule = known?.rule;
  if (!rule) return "";
  return rule.action === "delay" ? `waits up to ${(rule.max_wait ?? "").replace(/(\d+)([a-z]+)/, "$1 $2")}` : "refuses";
}

/** A rule that is not in force, in a sentence. */
export function idleRuleWords(it: KnownRule): string {
  const from = it.source === "file" ? "of the file" : "of the API";
  if (it.state === "overridden") return `The rule ${it.id} ${from} is not in force: one of the API with the same id is.`;
  return `The rule ${it.id} ${from} is not in force${it.problems.length > 0 ? `: ${it.problems.join("; ")}` : ""}.`;
}

/** The subject of an entry without its kind, and the kind. */
export function subjectParts(subject: string): readonly [kind: string, name: string] {
  const colon = subject.indexOf(":");
  return [subject.slice(0, colon), subject.slice(colon + 1)];
}

/** A subject in a sentence: `the user ann`, `ann’s phone`, `192.0.2.0/24`. */
export function subjectWords(subject: string): string {
  const [kind, name] = subjectParts(subject);
  if (kind === "user") return `the user ${name || "…"}`;
  if (kind !== "device") return name || "…";
  const [user = "", device = ""] = name.split("/");
  return `${user || "…"}’s ${device || "device"}`;
}

/** When an entry ends; `time` writes a time. */
export function endWords({ untilMs }: Pick<GuardEntry, "untilMs">, time: (ms: number) => string): string {
  return untilMs === null ? "without an end" : `until ${time(untilMs)}`;
}

/** Times for which an entry may last; undefined has no end. */
export const TIMES: readonly (readonly [string, number | undefined])[] = [["10 minutes", 600_000], ["1 hour", 3_600_000], ["1 day", 86_400_000], ["30 days", 2_592_000_000], ["until it is lifted", undefined]];

/** What stands at a list. */
export interface ListWords {
  readonly title: string;
  readonly note: string;
  readonly empty: string;
  /** Label of the button that adds an entry, and of the one that removes one. */
  readonly add: string;
  readonly lift: string;
}

/** The words of each list. */
export const LISTS: Readonly<Record<ListName, ListWords>> = {
  bans: { title: "Bans", note: "refused on all nodes", empty: "Nobody is banned.", add: "Ban", lift: "Lift" },
  suspensions: { title: "Suspensions", note: "connected, and may not send", empty: "Nobody is suspended.", add: "Suspend", lift: "Lift" },
  allow: { title: "Never banned", note: "networks on the allow-list", empty: "No network is on the allow-list. Addresses of this machine, of proxies and of nodes are never banned in any case.", add: "Allow", lift: "Remove" },
};

/** What a new entry does, before a person confirms it. */
export function addWords(name: ListName, subject: string): string {
  const who = capital(subjectWords(subject));
  if (name === "allow") return `${who} is never banned from now on, and bans of wider networks spare it.`;
  if (name === "suspensions") return `Sends of ${subjectWords(subject)} are refused for now with SUSPENDED. The connections stay, and go on to receive.`;
  const network = subjectParts(subject)[0] === "network" ? " That concerns everybody behind these addresses." : "";
  return `Connections of ${subjectWords(subject)} are closed on all nodes with KICKED (3501), and new ones are refused with BANNED (2012).${network}`;
}

/** The question before an entry is removed, and what that does. */
export function liftWords(name: ListName, subject: string): readonly [question: string, more: string] {
  const who = subjectWords(subject);
  if (name === "allow") return [`Remove ${who} from the allow-list?`, "It can be banned again. Nothing else changes."];
  if (name === "suspensions") return [`Lift the suspension of ${who}?`, "Its messages are taken again, on all nodes."];
  return [`Lift the ban of ${who}?`, "It may connect again, on all nodes, unless another ban concerns it, too."];
}

/** What was done. Nodes that have not confirmed it follow. */
export function changedWords(name: ListName, subject: string, isAdded: boolean, { inForce, removed, pending = [] }: GuardChanged): string {
  const who = capital(subjectWords(subject));
  const done = name === "allow" ? (isAdded ? "is on the allow-list" : removed === false ? "was not on the allow-list" : "is no longer on the allow-list") : `${isAdded ? "is" : removed === false ? "was not" : "is no longer"} ${name === "bans" ? "banned" : "suspended"}`;
  const later = inForce === false ? " It comes into force once the store can be read." : "";
  return `${who} ${done}.${later}${pending.length > 0 ? ` ${joined(pending)} ${pending.length === 1 ? "follows" : "follow"} within two seconds.` : ""}`;
}

/** What a subject did, by kind. */
export function evidenceWords(counts: readonly EvidenceCount[]): string {
  return counts.length === 0 ? "nothing recently" : counts.map(({ kind, count }) => `${count} ${kind.replaceAll("_", " ")}`).join(", ");
}

/** What stands above the scores. */
export function scoresNote({ bans, scores }: Pick<EvidenceList, "bans" | "scores">): string {
  if (scores.length === 0) return "No network and no user has a score.";
  return bans ? "" : "Automatic bans are off: evidence.ban is false.";
}

/** Whether a subject is suspended, and what its score is. */
function furtherState({ suspensions = [], evidence }: SubjectView, time: (ms: number) => string): string {
  const [suspension] = suspensions;
  const suspended = suspension ? ` It is suspended ${endWords(suspension, time)}: ${suspension.reason}.` : "";
  const score = evidence && evidence.score > 0 ? ` Its score is ${evidence.score} of 100: ${evidenceWords(evidence.counts)}.` : "";
  return `${suspended}${score}${evidence?.spared ? ` It is spared: ${evidence.spared}.` : ""}`;
}

/** Whether a subject is banned, and by what; also whether it is suspended, and its score. */
export function subjectState(it: SubjectView, time: (ms: number) => string): string {
  const [ban] = it.bans;
  const further = furtherState(it, time);
  if (it.exempt) return `It is never banned: ${it.exempt}.${further}`;
  if (!it.banned || !ban) return `It is not banned.${further}`;
  const by = ban.subject === it.subject ? "" : `, by the ban of ${subjectWords(ban.subject)}`;
  return `It is banned ${endWords(ban, time)}${by}: ${ban.reason}${further && `.${further}`}`;
}
