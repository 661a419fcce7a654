import { signal } from "@preact/signals";
import { get } from "./api.ts";

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

/** Names of the nodes in order; the place in this list is the colour of a node. */
export const nodeNames = signal<readonly string[]>([]);

/** Asks the node who it is. */
export async function loadBoot(): Promise<void> {
  const it = await get<Boot>("/v1/console");
  boot.value = it;
  nodeNames.value = [it.node, ...it.peers.map((peer) => peer.node)].sort();
}

/** Returns whether the node allows a feature now. */
export function allows(feature: string): boolean {
  return boot.value?.features.includes(feature) ?? false;
}

/** Class that gives a part the colour of a node. */
export function nodeClass(node: string): string {
  const index = nodeNames.value.indexOf(node);
  return `of-${(index < 0 ? 0 : index) % 3}`;
}
