import { post } from "./api.ts";

/** Messages of a storm by equal parts of time, as `GET /v1/storms/{group}` has them. */
export interface Profile {
  readonly startMs: number;
  readonly partMs: number;
  readonly counts: readonly number[];
}

/** A message storm of a group, as `GET /v1/storms` lists it. */
export interface Storm {
  readonly conversation: string;
  /** `storm` or `cooling` in the list; of one group also `quiet` and `unknown`. */
  readonly state: string;
  readonly count: number;
  readonly threshold: number;
  readonly windowMs: number;
  readonly id?: string;
  readonly sinceMs?: number;
  readonly peak?: number;
  readonly profile?: Profile;
  /** Restriction in force: `slow:<interval>` or `admins`; absent if it is reported alone. */
  readonly action?: string;
}

/** Storms of all nodes; those of nodes in `silent` are missing. */
export interface StormList {
  readonly storms: readonly Storm[];
  readonly total: number;
  readonly silent: readonly string[];
}

/** Path of the storm of a group; empty for a conversation that is no group. */
export function stormPath(conversation: string): string {
  return conversation.startsWith("g:") ? `/v1/storms/${encodeURIComponent(conversation.slice(2))}` : "";
}

/** What a rule counted of all its subjects since its windows began. */
export interface LimitTotals {
  readonly admitted: number;
  readonly refused: number;
  readonly delayed: number;
  readonly dryRefused: number;
}

/** A rule and its state for one subject, as `GET /v1/limits/{key}` has it. */
export interface LimitState {
  readonly id: string;
  readonly windowMs: number;
  readonly limit: number;
  readonly used: number;
  readonly retryAfterMs: number;
  readonly dryRun: boolean;
  /** Whether the rule does not count this subject. */
  readonly excepted: boolean;
  readonly total: LimitTotals;
  /** Requests of the subject that the rule refused. */
  readonly refused?: { readonly total: number; readonly lastMinute: number };
  /** The equation of a limit that follows the load, where it does. */
  readonly why?: string;
}

/** The rules of one level on a node, with their states for one subject. */
export interface LimitsOf {
  readonly key: string;
  readonly node: string;
  readonly rules: readonly LimitState[];
}

/** Levels of rules, with a subject as an example; `node` has none. */
export const LEVELS: readonly (readonly [string, string])[] = [
  ["user", "ann"], ["device", "ann:phone"], ["conversation", "g:team"], ["address", "192.0.2.1"], ["org", "acme"], ["channel", "app"], ["content", "the text"], ["key", "k3f9a0c1"], ["node", ""],
];

/** Key of a subject in `GET /v1/limits/{key}`; empty while its subject is not written. */
export function limitKey(level: string, subject: string): string {
  if (level === "node") return level;
  return subject ? `${level}:${subject}` : "";
}

/** A rule in force and what it did, as `GET /v1/limits` lists it. */
export interface LimitRule {
  readonly id: string;
  /** `file` or `api`. */
  readonly source: string;
  readonly level: string;
  readonly windowMs: number;
  readonly limit: number;
  readonly dryRun: boolean;
  readonly total: LimitTotals & { readonly refusedLastMinute: number };
}

/** The rules in force on a node, and the subjects that they refused most. */
export interface LimitList {
  readonly node: string;
  readonly rules: readonly LimitRule[];
  readonly busiest: readonly { readonly key: string; readonly rule: string; readonly refused: number; readonly refusedLastMinute: number }[];
}

/** A rule that a node knows, as `GET /v1/rules` lists it. */
export interface KnownRule {
  readonly id: string;
  readonly source: string;
  /** `in force`, `overridden` or `unusable`. */
  readonly state: string;
  readonly problems: readonly string[];
  /** As it is written; null if this version of the node can't read it. */
  readonly rule: { readonly level: string; readonly calls: readonly string[]; readonly action?: string; readonly max_wait?: string } | null;
}

/** The rules that a node knows, and what is notable about those in force. */
export interface RuleList {
  readonly node: string;
  readonly rules: readonly KnownRule[];
  readonly overlaps: readonly string[];
}

/** A ban, a suspension or an exemption, with its reason. */
export interface GuardEntry {
  /** `network:192.0.2.0/24`, `user:ann` or `device:ann/phone`. */
  readonly subject: string;
  readonly reason: string;
  /** Id of the key that asked for it, or what else has decided. */
  readonly by: string;
  readonly sinceMs: number;
  /** When it ends; null if it does not. */
  readonly untilMs: number | null;
}

/** Lists of entries. */
export type ListName = "bans" | "suspensions" | "allow";

/** Kinds of subjects with an example each, by the lists that may have them. */
export const SUBJECTS: Readonly<Record<ListName, readonly (readonly [string, string])[]>> = {
  bans: [["user", "ann"], ["device", "ann/phone"], ["network", "192.0.2.0/24"]],
  suspensions: [["user", "ann"], ["device", "ann/phone"]],
  allow: [["network", "192.0.2.0/24"]],
};

/** A part of a list; `next` is there if the list goes on. */
export interface EntryPage {
  readonly entries: readonly GuardEntry[];
  readonly hasMore: boolean;
}

/** Entries in the answer of a list. */
export function entryPage(name: ListName, it: Readonly<Record<string, unknown>> | undefined): EntryPage | undefined {
  if (!it) return undefined;
  const entries = it[name === "allow" ? "allowed" : name];
  return { entries: Array.isArray(entries) ? (entries as GuardEntry[]) : [], hasMore: typeof it["next"] === "string" };
}

/** What the node did, and the nodes that have not confirmed it yet. */
export interface GuardChanged {
  /** Whether it is in force on this node already; false only while the store can't be read. */
  readonly inForce?: boolean;
  /** Whether there was an entry to remove. */
  readonly removed?: boolean;
  readonly pending?: readonly string[];
}

/** Method, path and body of a new entry; without a time it lasts until it is lifted. */
export function entryRequest(name: ListName, subject: string, reason: string, ttlMs: number | undefined): readonly ["POST" | "PUT", string, Readonly<Record<string, unknown>>] {
  const body = { reason, ...(ttlMs === undefined ? {} : { ttlMs }) };
  return name === "allow" ? ["PUT", entryPath(name, subject), body] : ["POST", `/v1/${name}`, { subject, ...body }];
}

/** Path of an entry. */
export function entryPath(name: ListName, subject: string): string {
  return `/v1/${name}/${encodeURIComponent(name === "allow" ? subject.replace(/^network:/, "") : subject)}`;
}

/** Adds an entry. */
export function addEntry(name: ListName, subject: string, reason: string, ttlMs: number | undefined): Promise<GuardChanged> {
  const [method, path, body] = entryRequest(name, subject, reason, ttlMs);
  return post<GuardChanged>(path, body, method);
}

/** Removes an entry. */
export function liftEntry(name: ListName, subject: string): Promise<GuardChanged> {
  return post<GuardChanged>(entryPath(name, subject), undefined, "DELETE");
}

/** Longest reason, in bytes. */
export const REASON_BYTES_MAX = 200;

/** Whether the node takes a reason. */
export function isReason(text: string): boolean {
  const bytes = new TextEncoder().encode(text).length;
  return bytes > 0 && bytes <= REASON_BYTES_MAX && !/\p{Cc}/u.test(text);
}

/** What a node knows of a subject of bans, as `GET /v1/subjects/{subject}` has it. */
export interface SubjectView {
  readonly subject: string;
  readonly banned: boolean;
  readonly bans: readonly GuardEntry[];
  /** Why it is never banned; null if it may be. */
  readonly exempt: string | null;
  readonly suspensions?: readonly GuardEntry[];
  readonly evidence?: { readonly score: number; readonly spared: string | null; readonly counts: readonly EvidenceCount[] };
}

/** Recent security events of a kind. */
export interface EvidenceCount {
  readonly kind: string;
  readonly count: number;
}

/** The networks and users with the highest scores on a node, as `GET /v1/evidence` has them. */
export interface EvidenceList {
  readonly node: string;
  /** Whether a score of 100 bans its subject. */
  readonly bans: boolean;
  readonly scores: readonly { readonly subject: string; readonly score: number; readonly evidence: readonly EvidenceCount[] }[];
}

/** Subject of bans of a key of rules; empty if nothing can be banned by it. */
export function banSubject(key: string): string {
  const [level, name] = [key.slice(0, key.indexOf(":")), key.slice(key.indexOf(":") + 1)];
  if (level === "user") return key;
  if (level === "device") return `device:${name.replace(":", "/")}`;
  return level === "address" ? `network:${name}` : "";
}
