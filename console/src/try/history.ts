/** An event of a recording, in the format of the project's history checker (`lab/src/checker/event.rs`). */
export type HistoryEvent =
  | { send_inv: { user: string; device: string; session: number; conv: string; cid: string; body: number; attempt: number; chained: boolean } }
  | { send_ok: { cid: string; seq: number; duplicate: boolean } }
  | { send_fail: { cid: string; code: number } }
  | { send_info: { cid: string } }
  | { recv: Received }
  | { gap: { session: number; conv: string; first: number; last: number } }
  | { shed: { session: number; conv: string; count: number } }
  | { joined: { session: number; conv: string; node: string } }
  | { down: { node: string } }
  | { member: { conv: string; user: string; change: MemberChange; seq: number } }
  | { open: { user: string; device: string; session: number } }
  | { close: { session: number; code: number } }
  | { complete: { user: string; device: string; hints: boolean } }
  | { log_message: { conv: string; seq: number; sender: string; device: string; cid: string; body: number } }
  | { log_member: { conv: string; seq: number; user: string; change: MemberChange } }
  | { log_gap: { conv: string; first: number; last: number } };

/** An entry that a client received: by a push, by a pull, or shown to the person (`app`). */
export interface Received {
  user: string;
  device: string;
  session: number;
  conv: string;
  seq: number;
  cid: string | null;
  body: number;
  via: "push" | "pull" | "app";
}

/** Change of a member. */
export type MemberChange = "join" | "leave" | "kick";

/** An event with its time in nanoseconds. */
export type Stamped = { readonly at: number } & HistoryEvent;

/** An entry of the stored history, as a user's pull returned it. */
export interface StoredEntry {
  readonly seq: number;
  readonly sender: string;
  /** Id of the message; null for a change of members. */
  readonly cid: string | null;
  readonly body: number;
  /** Users that joined by a change of members. */
  readonly joined?: readonly string[];
}

/** Writes a recording as JSON lines. */
export function toLines(events: readonly Stamped[]): string {
  return events.map((event) => JSON.stringify(event)).join("\n") + "\n";
}
