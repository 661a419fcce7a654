import type { Leaving, Removed } from "../live/groups.ts";
import { capital, grouped, joined, plural } from "./numbers.ts";

/** Settings of a group, with what each value means; the first one is the default. */
const SETTINGS: readonly (readonly [string, string, Readonly<Record<string, string>>])[] = [
  ["history", "New members see", { join: "what follows their join", all: "the whole history" }],
  ["retention", "Messages are kept", { "": "as long as the nodes keep them", none: "for an hour", "1d": "for a day", "7d": "for 7 days", "30d": "for 30 days", forever: "for ever" }],
  ["post", "Who may post", { all: "all members", admins: "admins and owners" }],
  ["push", "Notices for push providers", { all: "of all messages", mentions: "of mentions", none: "none" }],
];

/** A setting in words. */
export interface SettingWords {
  readonly name: string;
  readonly label: string;
  readonly words: string;
  readonly isDefault: boolean;
}

/** All settings of a group in words; those that the page does not know keep their names and values. */
export function settingWords(set: Readonly<Record<string, string>>): SettingWords[] {
  const known = SETTINGS.map(([name, label, values]): SettingWords => {
    const value = set[name] ?? "";
    const [first = ""] = Object.values(values);
    return { name, label, words: value === "" ? first : (values[value] ?? value), isDefault: value === "" };
  });
  const names = new Set(SETTINGS.map(([name]) => name));
  const others = Object.entries(set).filter(([name]) => !names.has(name)).sort(([a], [b]) => a.localeCompare(b));
  return [...known, ...others.map(([name, value]) => ({ name, label: name, words: value, isDefault: false }))];
}

/** How many members a group has. */
export function memberCount(count: number): string {
  return `${grouped(count)} ${count === 1 ? "member" : "members"}`;
}

/** How many connections a live room has, and on how many nodes. */
export function roomCount({ count, nodes }: { readonly count: number; readonly nodes: number }): string {
  const on = nodes > 1 ? ` on ${plural(nodes, "node")}` : "";
  return `${grouped(count)} ${count === 1 ? "connection" : "connections"}${on}`;
}

/** From which seq on a member sees the group. */
export function seesWords(joinedSeq: number): string {
  return joinedSeq <= 1 ? "everything" : `from ${grouped(joinedSeq)} on`;
}

/** Which nodes did not answer, so that their part of a room is missing; empty if all did. */
export function roomSilentWords(silent: readonly string[]): string {
  return silent.length === 0 ? "" : `${joined(silent)} did not answer: ${silent.length === 1 ? "its" : "their"} connections in rooms are not listed here.`;
}

/** What a removal from a live room does, before a person confirms it. */
export function leavingWords({ room, user, device }: Leaving): string {
  const what = device === undefined ? `All connections of ${user} leave ${room}, on all nodes` : `The connection of ${user}’s ${device} leaves ${room}`;
  return `${what}, and ${device === undefined ? "stay" : "stays"} open. Each client gets a notice with the reason, and nothing more of the room until it joins again: it may do so at once. To keep a user out, refuse the join by the token or by a hook.`;
}

/** What came of a removal from a live room. */
export function removedWords({ room, user }: Leaving, { removed, silent }: Removed): string {
  const done = removed === 0 ? `No connection of ${user} was in ${room}.` : `${capital(plural(removed, "connection"))} of ${user} ${removed === 1 ? "has" : "have"} left ${room}.`;
  return `${done}${silent.length > 0 ? ` ${joined(silent)} did not answer, so ${user} may still be in the room there.` : ""}`;
}
