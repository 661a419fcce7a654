import { signal } from "@preact/signals";
import type { Boot } from "./boot.ts";

/** A node whose clients' port the page may not connect to, because it has another address than those of the page's policy. */
export interface Unreachable {
  readonly node: string;
  /** Whether the node joined after the page was loaded; else its address has changed. */
  readonly isNew: boolean;
}

/** What the policy of the page allows: the addresses that the nodes had when it was loaded, by host and port, and their names. */
interface Policy {
  readonly hosts: ReadonlySet<string>;
  readonly nodes: ReadonlySet<string>;
}

/** The policy of this page; undefined until the node has answered first. */
const policy = signal<Policy | undefined>(undefined);

/** Hosts that the browser refused although they seemed to be allowed: the node list can change between the page and its first answer. */
const refused = signal<ReadonlySet<string>>(new Set());

/** Host and port of an address; the address itself if it is none. */
function hostOf(address: string): string {
  return URL.canParse(address) ? new URL(address).host : address;
}

function nodesOf(boot: Pick<Boot, "node" | "clients" | "peers">): (readonly [string, readonly string[]])[] {
  return [[boot.node, boot.clients.ws], ...boot.peers.map((peer) => [peer.node, peer.ws] as const)];
}

/** Takes the first answer of the node as what the policy of the page allows. Later answers change nothing: only a load does. */
export function keepPolicy(boot: Pick<Boot, "node" | "clients" | "peers">): void {
  const nodes = nodesOf(boot);
  policy.value ??= { hosts: new Set(nodes.flatMap(([, addresses]) => addresses.map(hostOf))), nodes: new Set(nodes.map(([node]) => node)) };
}

/** Notes that the browser refused a connection to an address. */
export function noteRefused(address: string): void {
  refused.value = new Set([...refused.value, hostOf(address)]);
}

/** Whether the browser lets the page connect to an address. */
export function mayConnect(address: string): boolean {
  const host = hostOf(address);
  return !refused.value.has(host) && (policy.value?.hosts.has(host) ?? true);
}

/** Nodes that the page can't connect to before it is loaded again. */
export function unreachable(boot: Pick<Boot, "node" | "clients" | "peers"> | undefined): Unreachable[] {
  const known = policy.value;
  if (!boot || !known) return [];
  return nodesOf(boot)
    .filter(([, addresses]) => addresses.length > 0 && !addresses.some(mayConnect))
    .map(([node]) => ({ node, isNew: !known.nodes.has(node) }));
}

/** Follows what the browser refuses. */
export function startPolicy(): void {
  document.addEventListener("securitypolicyviolation", (event) => {
    if (event.effectiveDirective === "connect-src" && /^wss?:/.test(event.blockedURI)) noteRefused(event.blockedURI);
  });
}
