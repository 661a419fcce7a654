import { signal } from "@preact/signals";
import { ApiError, get } from "./api.ts";
import { boot, nameNodes } from "./boot.ts";
import { sample } from "./samples.ts";
import { arrivals } from "./stats.ts";

/** A node, as `GET /v1/nodes` lists it. */
export interface NodeRow {
  readonly node: string;
  readonly boot: string;
  readonly self: boolean;
  readonly state: string;
  readonly lease: string;
  readonly conns: number;
  readonly capacity: number;
  readonly owns: readonly number[];
  readonly version: string;
  readonly weight: number;
  readonly share: number | null;
  /** Clients a second that it takes from nodes that drain. */
  readonly accepts: number;
  readonly zone: string;
  readonly drain: { readonly phase: string; readonly from: number; readonly left: number; readonly unnoticed: number; readonly rate: number; readonly forMs: number } | null;
  readonly stands: readonly { readonly partition: number; readonly behindRecords: number; readonly behindMs: number; readonly behindBytes: number }[];
}

/** The answer of `GET /v1/nodes`. */
export interface Nodes {
  readonly nodes: readonly NodeRow[];
  readonly partitions: number;
  readonly archiveBehind: readonly number[];
  readonly stale: boolean;
}

/** The nodes of the cluster; undefined until they are read. */
export const nodes = signal<Nodes | undefined>(undefined);

/** Live nodes by name, with the time at which this page first saw them listed, by the clock of its node; 0 before its first row. */
export const listedMs = signal<ReadonlyMap<string, number>>(new Map());

/** Why they could not be read the last time. */
export const nodesFailure = signal<ApiError | undefined>(undefined);

/** Reads the nodes once. */
export async function readNodes(): Promise<void> {
  try {
    nodes.value = await get<Nodes>("/v1/nodes");
    nodesFailure.value = undefined;
    const nowMs = arrivals.value.get(boot.value?.node ?? "")?.rowMs ?? 0;
    const live = nodes.value.nodes.filter((it) => it.lease === "live").map((it) => it.node);
    listedMs.value = new Map(live.map((node) => [node, listedMs.value.get(node) ?? nowMs]));
    sample(nodes.value);
    nameNodes(nodes.value.nodes.map((it) => it.node));
  } catch (error) {
    if (error instanceof ApiError) nodesFailure.value = error;
  }
}

/** Reads the nodes every second or two as long as a view needs them; returns how to end that. */
export function followNodes(): () => void {
  void readNodes();
  const timer = setInterval(() => {
    if (!document.hidden) void readNodes();
  }, 1500);
  return () => clearInterval(timer);
}
