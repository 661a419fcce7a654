import { computed, signal } from "@preact/signals";
import { hueAt, hueClass, withSlots, type Hue } from "../charts/hues.ts";
import { get } from "./api.ts";
import { keepPolicy } from "./policy.ts";

/** What a drain of the node would take if it began now. */
export interface DrainPlan {
  readonly clients: number;
  /** Time in which load balancers stop choosing the node. */
  readonly delayMs: number;
  /** Time from the notice until the last client leaves. */
  readonly slotsMs: number;
  readonly deadlineMs: number;
}

/** What the node says about itself to this page. */
export interface Boot {
  readonly version: string;
  readonly node: string;
  readonly profile: "single" | "cluster";
  readonly development: boolean;
  readonly console: "read" | "full";
  readonly durable: boolean;
  readonly features: readonly string[];
  readonly clients: { readonly ws: readonly string[] };
  readonly nodes: number;
  readonly peers: readonly { readonly node: string; readonly ws: readonly string[]; readonly admin: string }[];
}

/** The answer of `GET /v1/console`; undefined until it arrives. */
export const boot = signal<Boot | undefined>(undefined);

/** Plan of the node's drain; undefined on versions that do not report it. */
export const drainPlan = signal<DrainPlan | undefined>(undefined);

/** Version of the node when it first answered: the one that this page belongs to. */
export const pageVersion = signal("");

/** Names of the nodes in order. */
export const nodeNames = signal<readonly string[]>([]);

/** Colours of the nodes. They depend on the names, so that pages agree even while they know different nodes. */
let given: ReadonlyMap<string, number> = new Map();
const slots = computed(() => (given = withSlots(given, nodeNames.value)));

/** Time after which the page asks again, and for the first answer the time between two attempts. */
const AGAIN_MS = 5000;
const FIRST_AGAIN_MS = 2000;

/** Adds names to those of the nodes. A node that is gone keeps its name here, and its colour. */
export function nameNodes(names: readonly string[]): void {
  const all = [...new Set([...nodeNames.value, ...names])].sort();
  if (all.length !== nodeNames.value.length) nodeNames.value = all;
}

/** Asks the node who it is, and who its peers are. */
export async function loadBoot(): Promise<void> {
  const { drainPlan: plan, ...it } = await get<Boot & { readonly nowMs?: number; readonly drainPlan?: DrainPlan }>("/v1/console");
  drainPlan.value = plan;
  nameNodes([it.node, ...it.peers.map((peer) => peer.node)]);
  pageVersion.value ||= it.version;
  keepPolicy(it);
  // The clock of the node is no news.
  const next = { ...it, nowMs: 0 };
  if (JSON.stringify(next) !== JSON.stringify(boot.value)) boot.value = next;
}

/** Asks until the node answers, and then every few seconds: peers come and go. Resolves with the first answer. */
export async function followBoot(): Promise<void> {
  while (!(await loadBoot().then(() => true, () => false))) await new Promise((resolve) => setTimeout(resolve, FIRST_AGAIN_MS));
  setInterval(() => !document.hidden && void loadBoot().catch(() => {}), AGAIN_MS);
}

/** Features that change something: a console that only reads has none of them. */
const ACTIONS = new Set(["token", "cut", "abort", "forward"]);

/** Returns whether the console may change something; otherwise it only reads. */
export function isFull(): boolean {
  return boot.value?.console === "full";
}

/** Returns whether the node allows a feature now. */
export function allows(feature: string): boolean {
  const it = boot.value;
  return it !== undefined && it.features.includes(feature) && (isFull() || !ACTIONS.has(feature));
}

/** Colour of a node; undefined for one that the page knows from old events alone. */
export function nodeHue(node: string): Hue | undefined {
  return nodeNames.value.includes(node) ? hueAt(slots.value.get(node)) : undefined;
}

/** Classes that give a part the colour of a node. */
export function nodeClass(node: string): string {
  return hueClass(nodeHue(node));
}
