import { post } from "./api.ts";
import { isPrefix } from "./ids.ts";

/** A group, as `GET /v1/groups` lists it. */
export interface ListedGroup {
  readonly id: string;
  readonly name: string | null;
  /** Members. */
  readonly count: number;
  readonly maxSeq: number;
}

/** A group, as `GET /v1/groups/{id}` has it; its first members are read by pages instead. */
export interface Group {
  readonly id: string;
  readonly conversation: string;
  readonly name: string | null;
  readonly count: number;
  readonly meta: Readonly<Record<string, string>>;
  /** Settings that were set; others have their defaults. */
  readonly settings: Readonly<Record<string, string>>;
}

/** A member of a group. */
export interface Member {
  readonly user: string;
  readonly role: string;
  readonly muted: boolean;
  /** First seq that the member sees. */
  readonly joinedSeq: number;
}

/** A live room that has members now. */
export interface Room {
  readonly room: string;
  /** Connections. */
  readonly count: number;
  /** Nodes that have some of them. */
  readonly nodes: number;
  readonly silent?: readonly string[];
}

/** A connection in a live room. */
export interface RoomMember {
  readonly user: string;
  readonly device: string;
  readonly node: string;
}

/** What leaves a live room: one device, or all of a user. */
export interface Leaving {
  readonly room: string;
  readonly user: string;
  readonly device?: string;
}

/** What came of a removal from a live room. */
export interface Removed {
  readonly removed: number;
  readonly silent: readonly string[];
}

/** Address of the page at which a group is shown; empty for another conversation. */
export function groupAddress(conversation: string): string {
  return conversation.startsWith("g:") ? `/groups?group=${encodeURIComponent(conversation.slice(2))}` : "";
}

/** Path of the list of groups whose ids begin with a text; empty if no id does. */
export function groupsPath(prefix: string, limit: number): string {
  return isPrefix(prefix) ? `/v1/groups?limit=${limit}${prefix ? `&prefix=${encodeURIComponent(prefix)}` : ""}` : "";
}

/** Path of the members of a group, of one role or of all. */
export function membersPath(group: string, role: string, limit: number): string {
  return `/v1/groups/${encodeURIComponent(group)}/members?limit=${limit}${role ? `&role=${encodeURIComponent(role)}` : ""}`;
}

/** Path of the request that takes somebody out of a live room. */
export function leavingPath({ room, user, device }: Leaving, reason: string): string {
  const query = new URLSearchParams({ ...(device === undefined ? {} : { device }), ...(reason ? { reason } : {}) }).toString();
  return `/v1/rooms/${encodeURIComponent(room)}/members/${encodeURIComponent(user)}${query ? `?${query}` : ""}`;
}

/** Takes somebody out of a live room, with a reason that the clients get. */
export function leave(it: Leaving, reason: string): Promise<Removed> {
  return post<Removed>(leavingPath(it, reason), undefined, "DELETE");
}
