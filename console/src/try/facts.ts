import type { Stamped } from "./history.ts";

/** What a recording says about a stretch of time, for one person. Times are in ms. */
export interface Measured {
  /** Messages that others sent in the stretch and that were acked, and the longest wait for an ack. */
  readonly sent: number;
  readonly ackMs: number | undefined;
  /** The highest seq that the person had before the stretch: received, or as the answer to a send. */
  readonly had: number;
  /** Seqs that the person got first in the stretch or after it, of messages of others sent since it began. */
  readonly got: readonly number[];
  /** When the person logged in again. */
  readonly backAt: number | undefined;
  /** Pushes of a seq that the person's device had already. */
  readonly again: number;
  /** How often each of the messages that others sent in the stretch reached the person's screen; undefined if that differs. */
  readonly shown: number | undefined;
  /** Messages of anybody that were sent at least twice, again since the stretch began, and acked since, each with one seq. */
  readonly repeated: number;
  /** Codes with which the node closed the person's links. */
  readonly closed: readonly number[];
}

/** Returns how long a person was away in a break that began at `from`: the time in its header, if it is back since then. */
export function awayMs(away: { readonly ms: number; readonly at: number } | undefined, from: number, to: number): number {
  return away && away.at >= from ? away.ms : to - from;
}

/** Measures a stretch of a recording that begins at `from` and ends at `to`; what was got counts until the end. */
export function measure(events: readonly Stamped[], user: string, from: number, to: number): Measured {
  const sentAt = new Map<string, number>();
  const sessions = new Set<number>();
  const seen = new Set<number>();
  const pushed = new Map<number, number>();
  const screens = new Map<string, number>();
  const sends = new Map<string, { readonly user: string; count: number; last: number; ackedAt: number; readonly seqs: Set<number> }>();
  const got: number[] = [];
  const closed: number[] = [];
  let [sent, had, again] = [0, 0, 0];
  let [ackMs, backAt]: [number | undefined, number | undefined] = [undefined, undefined];
  for (const event of events) {
    const at = event.at / 1e6;
    if ("send_inv" in event) {
      const it = sends.get(event.send_inv.cid) ?? { user: event.send_inv.user, count: 0, last: 0, ackedAt: 0, seqs: new Set() };
      sends.set(event.send_inv.cid, Object.assign(it, { count: it.count + 1, last: at }));
    } else if ("send_ok" in event) {
      const it = sends.get(event.send_ok.cid);
      it?.seqs.add(event.send_ok.seq);
      if (it) it.ackedAt = at;
      if (it?.user === user && at < from) had = Math.max(had, event.send_ok.seq);
    } else if ("recv" in event && event.recv.user === user && event.recv.via === "app" && event.recv.cid !== null && sentAt.has(event.recv.cid)) {
      screens.set(event.recv.cid, (screens.get(event.recv.cid) ?? 0) + 1);
    }
    if ("open" in event && event.open.user === user) {
      sessions.add(event.open.session);
      if (at > from) backAt ??= at;
    } else if ("close" in event && sessions.has(event.close.session) && at > from) closed.push(event.close.code);
    else if ("send_inv" in event && event.send_inv.user !== user && at >= from && at <= to) {
      if (!sentAt.has(event.send_inv.cid)) sentAt.set(event.send_inv.cid, at);
    } else if ("send_ok" in event) {
      const began = sentAt.get(event.send_ok.cid);
      if (began === undefined || began < 0) continue;
      sent += 1;
      ackMs = Math.max(ackMs ?? 0, at - began);
      sentAt.set(event.send_ok.cid, -1);
    } else if ("recv" in event && event.recv.user === user && event.recv.via !== "app" && event.recv.cid !== null) {
      const { seq, via, cid } = event.recv;
      if (via === "push") {
        if (at > from && pushed.has(seq)) again += 1;
        pushed.set(seq, at);
      }
      if (at < from) had = Math.max(had, seq);
      else if (!seen.has(seq) && sentAt.has(cid)) got.push(seq);
      seen.add(seq);
    }
  }
  const acked = [...sentAt].filter(([, began]) => began < 0).map(([cid]) => screens.get(cid) ?? 0);
  const shown = acked.every((it) => it === acked[0]) ? acked[0] : undefined;
  const repeated = [...sends.values()].filter((it) => it.count > 1 && it.last >= from && it.ackedAt >= from && it.seqs.size === 1).length;
  return { sent, ackMs, had, got, backAt, again, shown, repeated, closed };
}
