import type { Finding } from "./judge.ts";
import type { Stamped } from "./history.ts";

/** Time in nanoseconds within which a node announces what it dropped. */
const ANNOUNCED_NS = 2_000_000_000;

interface Said {
  readonly conv: string;
  readonly cid: string;
  readonly user: string;
  readonly device: string;
  readonly first: number;
  attempts: number;
  session: number;
  lastAt: number;
}

/** A connection in a room. */
interface Stay {
  readonly conv: string;
  readonly session: number;
  joined: number | undefined;
  first: number | undefined;
  last: number | undefined;
  lastAt: number;
  shed: number;
  /** Times of announcements without a number, which other nodes cause. */
  readonly uncounted: number[];
  isOpen: boolean;
  readonly ids: Set<string>;
  /** First attempt of the last message from each other connection. */
  readonly latest: Map<number, number>;
}

/**
 * Judges the live rooms of a recording by the checker's rules for them: a message may be dropped, but not in silence, and
 * comes once and in its speaker's order. Only what came before a connection's last push is judged, or, with `until`,
 * before that time for connections that are still open.
 */
export function judgeRooms(events: readonly Stamped[], report: (finding: Finding) => void, until?: number): void {
  const said = new Map<string, Said>();
  const acks: { readonly index: number; readonly at: number; readonly it: Said }[] = [];
  const numbers = new Map<string, string>();
  const stays = new Map<string, Stay>();
  const nodes = new Map<number, string>();
  const owners = new Map<number, { readonly user: string; readonly device: string }>();
  const downs: { readonly node: string; readonly at: number }[] = [];

  const stayOf = (session: number, conv: string): Stay => {
    const key = `${session} ${conv}`;
    const known = stays.get(key) ?? { conv, session, joined: undefined, first: undefined, last: undefined, lastAt: 0, shed: 0, uncounted: [], isOpen: true, ids: new Set(), latest: new Map() };
    stays.set(key, known);
    return known;
  };
  const number = (conv: string, seq: number, cid: string) => {
    const first = numbers.get(`${conv} ${seq}`) ?? cid;
    numbers.set(`${conv} ${seq}`, first);
    if (first !== cid) report({ rule: "number-twice", cid, what: `${seq} of the room is ${first} and ${cid}` });
  };

  events.forEach((event, index) => {
    if ("open" in event) owners.set(event.open.session, event.open);
    else if ("joined" in event) {
      nodes.set(event.joined.session, event.joined.node);
      stayOf(event.joined.session, event.joined.conv).joined ??= index;
    } else if ("close" in event) {
      for (const stay of stays.values()) if (stay.session === event.close.session) stay.isOpen = false;
    } else if ("down" in event) downs.push({ node: event.down.node, at: event.at });
    else if ("shed" in event) {
      const stay = stayOf(event.shed.session, event.shed.conv);
      stay.shed += event.shed.count;
      if (event.shed.count === 0) stay.uncounted.push(event.at);
    } else if ("send_inv" in event && event.send_inv.conv.startsWith("r:")) {
      const { cid, user, device, session, conv } = event.send_inv;
      const it = said.get(cid) ?? { conv, cid, user, device, first: index, attempts: 0, session, lastAt: 0 };
      said.set(cid, Object.assign(it, { attempts: it.attempts + 1, session, lastAt: event.at }));
    } else if ("send_ok" in event) {
      const it = said.get(event.send_ok.cid);
      if (!it) return;
      number(it.conv, event.send_ok.seq, it.cid);
      acks.push({ index, at: event.at, it });
    } else if ("recv" in event && event.recv.via === "push" && event.recv.cid !== null && event.recv.conv.startsWith("r:")) {
      const { session, conv, seq, cid } = event.recv;
      const stay = stayOf(session, conv);
      number(conv, seq, cid);
      stay.first ??= index;
      Object.assign(stay, { last: index, lastAt: event.at });
      const isNew = !stay.ids.has(cid);
      stay.ids.add(cid);
      const it = said.get(cid);
      // Each attempt is passed on again, so only the others have an order and come once.
      if (it?.attempts !== 1) return;
      const before = stay.latest.get(it.session);
      stay.latest.set(it.session, it.first);
      const who = owners.get(session)?.user ?? "";
      if (!isNew) report({ rule: "room-copy", cid, what: `${who} got ${cid} twice` });
      else if (before !== undefined && before > it.first) report({ rule: "room-order", cid, what: `${who} got ${cid} after a later one` });
    }
  });
  for (const stay of stays.values()) checkStay(stay);

  function checkStay(stay: Stay): void {
    const isToEnd = until !== undefined && stay.isOpen && stay.joined !== undefined;
    const since = stay.joined ?? stay.first;
    if (since === undefined || (!isToEnd && stay.last === undefined)) return;
    const [last, lastAt] = isToEnd ? [Infinity, until] : [stay.last ?? 0, stay.lastAt];
    const owner = owners.get(stay.session);
    const here = nodes.get(stay.session);
    const missing: string[] = [];
    for (const { index, at, it } of acks) {
      if (it.conv !== stay.conv || index < since || index >= last || it.first < since) continue;
      if (it.user === owner?.user && it.device === owner.device) continue;
      const by = at + ANNOUNCED_NS;
      if (by > lastAt || stay.ids.has(it.cid)) continue;
      // A node that dies may take with it what it had not passed on to the others.
      const there = nodes.get(it.session);
      const isInTime = (when: number) => when >= it.lastAt && when <= by;
      if (there !== here && (stay.uncounted.some(isInTime) || downs.some((down) => down.node === there && isInTime(down.at)))) continue;
      missing.push(it.cid);
    }
    if (missing.length <= stay.shed) return;
    const what = `${owner?.user ?? "a listener"} missed ${missing.length} of the room, and ${stay.shed} were announced`;
    report({ rule: "shed-untold", cid: missing[0] ?? "", what });
  }
}
