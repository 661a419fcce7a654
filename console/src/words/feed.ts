import type { CloudEvent } from "../live/cloudevents.ts";
import { joined } from "./numbers.ts";

/** Users that are named in a line; the rest are counted. */
const NAMED = 3;

function people(users: readonly string[]): string {
  return users.length <= NAMED ? joined(users) : `${users.slice(0, NAMED).join(", ")} and ${users.length - NAMED} more`;
}

/** What happened to members, by the type of the event. */
const MEMBERS: Readonly<Record<string, string>> = { joined: "joined", left: "left", kicked: "removed", role: "changed in role", muted: "muted", unmuted: "unmuted" };
const NODES: Readonly<Record<string, string>> = { joined: "is live", draining: "gets no new clients", ready: "takes clients again", left: "has ended", lapsed: "has not renewed its lease: it is dead, frozen or cut off" };

interface FeedData {
  readonly seq?: number;
  readonly sender?: string;
  readonly of?: number;
  readonly by?: string;
  readonly upTo?: number;
  readonly users?: readonly string[];
  readonly role?: string;
  readonly settings?: Readonly<Record<string, string>>;
  readonly gone?: string;
  readonly partition?: number;
  readonly node?: string;
  readonly from?: { readonly node?: string };
}

/** An event of the feed in words that follow its subject; empty for a type that the page does not know. */
export function feedWords(it: CloudEvent): string {
  const data = it.data as FeedData;
  const [, what = "", kind = ""] = it.type.split(".");
  const by = data.by ? ` by ${data.by}` : "";
  const users = people(data.users ?? []);
  switch (`${what}.${kind}`) {
    case "message.accepted":
      return data.gone ? `has message ${data.seq}, whose content is ${data.gone}` : `has message ${data.seq} from ${data.sender}`;
    case "message.edited":
    case "message.recalled":
      return `has ${data.seq}: message ${data.of} was ${kind}${by}`;
    case "message.pruned":
      return `has lost its history up to ${data.upTo}, as asked`;
    case "group.created":
      return `was created${by}${users ? ` with ${users}` : ""}`;
    case "group.changed":
      return `was changed${by}${data.settings ? `: ${Object.keys(data.settings).join(", ")}` : ""}`;
    case "group.deleted":
      return `was deleted${by}`;
    case "partition.moved":
      return `owns partition ${data.partition}${data.from?.node ? `, which ${data.from.node} owned before` : ""}`;
  }
  if (what === "member" && MEMBERS[kind]) return `has ${data.seq}: ${users || "members"} ${MEMBERS[kind]}${data.role ? ` to ${data.role}` : ""}${by}`;
  if (what === "node" && NODES[kind]) return NODES[kind];
  return "";
}

/** Whose events a list shows that has those of one node, and how to get those of the others. */
export function ofNodeWords(node: string, others: readonly string[]): string {
  if (others.length === 0) return "";
  return `These are the logins, reads, chains and requests of ${node}. Those of ${joined(others)} are on ${others.length === 1 ? "its own console" : "their own consoles"}, and all are in the topic of events.`;
}
