import type { Received, Stamped, StoredEntry } from "./history.ts";
import { judgeRooms } from "./rooms.ts";

/** Cells of the counter that turn red. */
export type Cell = "lost" | "doubled" | "order";

/** Rules of the project's history checker, by the cell that counts them. */
export const RULES: Readonly<Record<string, Cell>> = {
  "lost-acked": "lost",
  "never-got": "lost",
  "silent-skip": "lost",
  "unexplained-gap": "lost",
  "shed-untold": "lost",
  corrupted: "lost",
  "duplicate-after-dedup": "doubled",
  "stored-twice": "doubled",
  "duplicate-seq": "doubled",
  "ack-differs-on-retry": "doubled",
  "refused-but-stored": "doubled",
  "number-twice": "doubled",
  "room-copy": "doubled",
  "non-monotonic": "order",
  "session-order": "order",
  "chain-order": "order",
  "real-time-inversion": "order",
  "inconsistent-seq": "order",
  "room-order": "order",
};

/** A broken promise. */
export interface Finding {
  readonly rule: string;
  readonly cid: string;
  readonly what: string;
  /** Person who lacks the message, under the rules that say so. */
  readonly user?: string;
}

/** Counts over a recording. */
export interface Counts {
  sent: number;
  acked: number;
  refused: number;
  inFlight: number;
  /** Distinct pairs of a message and a receiver that reached the screen. */
  delivered: number;
  /** Acked messages that a receiver lacks so far, by receiver. */
  waiting: ReadonlyMap<string, number>;
}

/** What was pulled and compared at the end, for a complete judgement. */
export interface Pulled {
  readonly conv: string;
  /** The last seq before the recording began. */
  readonly base: number;
  /** Entries above the base, by the user that pulled them. */
  readonly by: ReadonlyMap<string, readonly StoredEntry[]>;
}

/** Result of a judgement. */
export interface Judgement {
  readonly counts: Counts;
  readonly findings: readonly Finding[];
}

/** A message that a person was shown, with seqs before it that were not. */
interface Jump {
  readonly got: Received;
  readonly from: number;
  /** Seqs that its connection had announced as left out by then. */
  readonly gaps: readonly (readonly [number, number])[];
}

interface Sent {
  user: string;
  device: string;
  session: number;
  conv: string;
  body: number;
  attempts: number;
  chained: boolean;
  ok: number | undefined;
  failed: boolean;
  /** Highest acked seq of the conversation before the first attempt. */
  floor: number;
}

/** Users that a conversation delivers to. */
export type Members = (conv: string) => readonly string[];

/** Returns whether a conversation is a live room, which may lose messages. */
export function isRoom(conv: string): boolean {
  return conv.startsWith("r:");
}

/**
 * Judges a recording by the rules of the project's history checker. Without `pulled` only those rules are applied that
 * need no stored history, so no finding does not mean that nothing is missing. Live rooms have no history: with
 * `roomsUntil`, they are judged up to that time of the recording.
 */
export function judge(events: readonly Stamped[], members: Members, pulled?: Pulled, roomsUntil?: number): Judgement {
  const sends = new Map<string, Sent>();
  const acked = new Map<string, number>();
  const shown = new Map<string, Set<string>>();
  const last = new Map<string, number>();
  const atSeq = new Map<string, string>();
  const gaps = new Map<string, (readonly [number, number])[]>();
  const jumps: Jump[] = [];
  const findings: Finding[] = [];
  const report = (rule: string, cid: string, what: string, user?: string) => findings.push({ rule, cid, what, ...(user === undefined ? {} : { user }) });

  for (const event of events) {
    if ("send_inv" in event) {
      const it = event.send_inv;
      const before = sends.get(it.cid);
      if (before) before.attempts += 1;
      else sends.set(it.cid, { ...it, attempts: 1, ok: undefined, failed: false, floor: acked.get(it.conv) ?? 0 });
    } else if ("send_ok" in event) {
      const { cid, seq } = event.send_ok;
      const sent = sends.get(cid);
      if (!sent) continue;
      acked.set(sent.conv, Math.max(seq, acked.get(sent.conv) ?? 0));
      if (sent.ok !== undefined && sent.ok !== seq && !isRoom(sent.conv)) {
        report("ack-differs-on-retry", cid, `${cid} had ${sent.ok}, then ${seq}`);
      }
      sent.ok ??= seq;
      const key = `${sent.conv} ${seq}`;
      const other = atSeq.get(key);
      if (other !== undefined && other !== cid && !isRoom(sent.conv)) report("duplicate-seq", cid, `${cid} and ${other} have ${seq}`);
      atSeq.set(key, cid);
    } else if ("send_fail" in event) {
      const sent = sends.get(event.send_fail.cid);
      if (sent) sent.failed = true;
    } else if ("gap" in event) {
      const { session, conv, first, last: end } = event.gap;
      gaps.set(`${session} ${conv}`, [...(gaps.get(`${session} ${conv}`) ?? []), [first, end]]);
    } else if ("recv" in event && event.recv.via === "app") checkShown(event.recv);
  }
  checkOrder();
  checkJumps();
  judgeRooms(events, (finding) => findings.push(finding), roomsUntil);
  const counts = count();
  if (pulled) checkPulled(pulled);
  return { counts, findings };

  function checkShown(got: Received): void {
    if (got.cid === null) return;
    const ids = shown.get(got.user) ?? new Set();
    shown.set(got.user, ids);
    if (ids.has(got.cid)) return void report("duplicate-after-dedup", got.cid, `${got.user} was shown ${got.cid} twice`);
    ids.add(got.cid);
    const sent = sends.get(got.cid);
    if (sent && sent.body !== got.body) report("corrupted", got.cid, `${got.cid} reached ${got.user} with other content`);
    if (isRoom(got.conv)) return;
    const key = `${got.user} ${got.conv}`;
    const before = last.get(key);
    if (before !== undefined && got.seq <= before) report("non-monotonic", got.cid, `${got.user} was shown ${got.seq} after ${before}`);
    if (before !== undefined && got.seq > before + 1) jumps.push({ got, from: before + 1, gaps: gaps.get(`${got.session} ${got.conv}`) ?? [] });
    last.set(key, Math.max(got.seq, before ?? 0));
  }

  function checkOrder(): void {
    const sessions = new Map<string, number>();
    const chains = new Map<string, number>();
    for (const [cid, sent] of sends) {
      if (sent.ok === undefined || isRoom(sent.conv)) continue;
      if (sent.ok <= sent.floor) report("real-time-inversion", cid, `${cid} has ${sent.ok}, after ${sent.floor}`);
      const bySession = `${sent.conv} ${sent.session}`;
      const byChain = `${sent.conv} ${sent.user} ${sent.device}`;
      // Either attempt of a repeated send may be the stored one: only its chain orders it.
      if (sent.attempts === 1) orderBy(sessions, bySession, "session-order", cid, sent.ok);
      if (sent.chained) orderBy(chains, byChain, "chain-order", cid, sent.ok);
    }
  }

  function orderBy(lasts: Map<string, number>, key: string, rule: string, cid: string, seq: number): void {
    const before = lasts.get(key) ?? 0;
    if (seq < before) report(rule, cid, `${cid} has ${seq}, after ${before}`);
    lasts.set(key, Math.max(before, seq));
  }

  /** Finds messages that a screen passed over although their seqs are known, by an ack or in what was pulled. */
  function checkJumps(): void {
    const stored = new Map<string, string>();
    for (const entry of [...(pulled?.by.values() ?? [])].flat()) if (entry.cid !== null) stored.set(`${pulled?.conv} ${entry.seq}`, entry.cid);
    for (const { got, from, gaps: announced } of jumps) {
      for (let seq = from; seq < got.seq; seq += 1) {
        const cid = atSeq.get(`${got.conv} ${seq}`) ?? stored.get(`${got.conv} ${seq}`);
        const sent = cid === undefined ? undefined : sends.get(cid);
        if (cid === undefined || !sent || (sent.user === got.user && sent.device === got.device)) continue;
        if (announced.some(([first, end]) => first <= seq && seq <= end)) continue;
        report("silent-skip", cid, `${got.user} was shown ${got.seq} without ${seq}, and no gap was announced`, got.user);
      }
    }
  }

  function receivers(sent: Sent): readonly string[] {
    return members(sent.conv).filter((user) => user !== sent.user);
  }

  function count(): Counts {
    const it: Counts = { sent: sends.size, acked: 0, refused: 0, inFlight: 0, delivered: 0, waiting: new Map() };
    const waiting = new Map<string, number>();
    for (const [cid, sent] of sends) {
      if (sent.ok !== undefined) it.acked += 1;
      else if (sent.failed) it.refused += 1;
      else it.inFlight += 1;
      for (const user of receivers(sent)) {
        if (shown.get(user)?.has(cid)) it.delivered += 1;
        else if (sent.ok !== undefined && !isRoom(sent.conv)) waiting.set(user, (waiting.get(user) ?? 0) + 1);
      }
    }
    it.waiting = waiting;
    return it;
  }

  /** Compares each user's pulled history with what was acked and shown. */
  function checkPulled({ conv, base, by }: Pulled): void {
    const seen = new Set<string>();
    const once = (rule: string, cid: string, what: string, user?: string) => {
      if (!seen.has(`${rule} ${what}`)) report(rule, cid, what, user);
      seen.add(`${rule} ${what}`);
    };
    const places = new Map<number, string>();
    for (const [user, entries] of by) {
      const stored = new Map<string, number>();
      let expected = base + 1;
      for (const entry of entries) {
        if (entry.seq > expected) once("unexplained-gap", "", `${user}'s history has no ${expected}`);
        expected = Math.max(expected, entry.seq + 1);
        if (entry.cid === null) continue;
        const place = places.get(entry.seq);
        if (place !== undefined && place !== entry.cid) once("inconsistent-seq", entry.cid, `${entry.seq} is ${place} for one and ${entry.cid} for another`);
        places.set(entry.seq, entry.cid);
        const before = stored.get(entry.cid);
        if (before !== undefined) once("stored-twice", entry.cid, `${entry.cid} is at ${before} and at ${entry.seq}`);
        stored.set(entry.cid, entry.seq);
        const sent = sends.get(entry.cid);
        if (sent && sent.body !== entry.body) once("corrupted", entry.cid, `${entry.cid} is stored with other content`);
        if (sent?.failed && sent.ok === undefined) once("refused-but-stored", entry.cid, `${entry.cid} was refused and is stored at ${entry.seq}`);
      }
      for (const [cid, sent] of sends) {
        if (sent.conv !== conv || sent.ok === undefined) continue;
        if (stored.get(cid) !== sent.ok) once("lost-acked", cid, `${cid} was acked with ${sent.ok} and is not stored at that seq`);
        if (user !== sent.user && members(conv).includes(user) && !shown.get(user)?.has(cid)) {
          once("never-got", cid, `${user} never got ${sent.ok}, ${cid}`, user);
        }
      }
    }
  }
}

/** Number of findings in a cell. A message that a person lacks counts once, however many rules say so. */
export function inCell(findings: readonly Finding[], cell: Cell): number {
  const counted = findings.filter((it) => (RULES[it.rule] ?? "lost") === cell);
  return new Set(counted.map((it, index) => (it.user === undefined ? index : `${it.cid} ${it.user}`))).size;
}
