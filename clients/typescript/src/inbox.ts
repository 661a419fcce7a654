import { isRoom } from './entries.js';
import type { Feed } from './feed.js';
import { kept } from './maps.js';
import type { Requests } from './requests.js';
import type { Timers } from './timers.js';
import type { WirePosition, WirePush, WireState } from './wire.js';

/** Time in which a hole may close by itself before it is pulled. */
const HOLE_MS = 200;
/** Wait before a pull that made no progress is repeated. */
const STUCK_MS = 1000;
/** Longest time from the hand-over of a push to its ack. */
const ACK_MS = 250;
/** Handed-over pushes after which the ack goes out at once. */
const ACK_COUNT = 64;
/** Entries of one pull. */
const PULL_LIMIT = 200;
/** Most positions in one frame. */
const POSITIONS_MAX = 1000;
/** Pushes that are held above a hole; further ones are pulled once the hole is filled. */
const HELD_MAX = 1000;
/** Messages of a room that are remembered to recognise copies. */
const ROOM_MEMORY = 256;

/** Entry whose content is not to be handed over: sent by this client with its push, or gone (`null`). */
type Held = { push: WirePush; own: boolean } | null;

interface Place {
  /** Highest seq below which nothing is missing; `undefined` until the first sync. */
  position?: number;
  /** Position where a new device began, if nothing has been handed over since. */
  floor?: number | undefined;
  /** Entries above the position, by seq. */
  held: Map<number, Held>;
  /** Ranges above the position that are not available. */
  gone: { first: number; last: number }[];
  /** Highest seq that is known to exist. */
  target: number;
  pulling: boolean;
  /** Highest seq that was pushed on this connection, and highest that was acked on it. */
  pushed: number;
  acked: number;
  /** A copy of an acked push came, so the ack is repeated. */
  again: boolean;
}

export interface InboxPort {
  /** Returns whether the push is a message of this client. */
  isOwn(push: WirePush): boolean;
  /** Everything up to `seq` has been handed over or is not available. */
  moved(conversation: string, seq: number): void;
  /** Sends an ack. */
  ack(conversation: string, seq: number): void;
}

/** Positions of all conversations: hands each entry over once and in order, and pulls what is missing (SPEC section 7). */
export class Inbox {
  #places = new Map<string, Place>();
  #rooms = new Map<string, Set<string>>();
  #fresh: boolean;
  #syncing = false;
  #timers: Timers;
  #requests: Requests;
  #feed: Feed;
  #port: InboxPort;

  /** Creates an inbox with known positions. A `fresh` device begins each other conversation at what is new. */
  constructor(positions: Readonly<Record<string, number>>, fresh: boolean, timers: Timers, requests: Requests, feed: Feed, port: InboxPort) {
    this.#fresh = fresh;
    this.#timers = timers;
    this.#requests = requests;
    this.#feed = feed;
    this.#port = port;
    for (const [conversation, seq] of Object.entries(positions)) if (conversation) this.#place(conversation).position = seq;
  }

  /** Returns the place of a conversation, which has entries up to `seq`. */
  #place(conversation: string, seq = 0): Place {
    const place: Place = kept(this.#places, conversation, () => ({
      held: new Map(),
      gone: [],
      target: 0,
      pulling: false,
      pushed: 0,
      acked: 0,
      again: false,
    }));
    place.target = Math.max(place.target, seq);
    return place;
  }

  /** Positions for `sync` and `ping`, the most recently active first. */
  positions(): WirePosition[] {
    const list: WirePosition[] = [];
    for (const [conversation, place] of this.#places) if (place.position !== undefined) list.push({ conversation, seq: place.position });
    return list.slice(-POSITIONS_MAX).reverse();
  }

  /** A login has asked for the state of all conversations. */
  syncStarted(): void {
    this.#syncing = true;
    this.#timers.set('sync', STUCK_MS, () => this.#settle(false));
  }

  /** The sync is complete: a conversation that it did not name is new. */
  synced(): void {
    this.#settle(true);
    this.#fresh = false;
  }

  #settle(complete: boolean): void {
    this.#timers.clear('sync');
    if (complete) this.#syncing = false;
    for (const [conversation, place] of this.#places) {
      if (place.position !== undefined || place.held.size === 0) continue;
      place.position = complete || !this.#fresh ? 0 : Math.min(...place.held.keys()) - 1;
      this.#advance(conversation, place, false);
    }
  }

  state(state: WireState): void {
    const { conversation, minSeq = 0, maxSeq = 0, clearedSeq = 0, hidden = [] } = state;
    const place = this.#place(conversation, maxSeq);
    if (place.position === undefined) {
      const held = Math.min(...place.held.keys());
      place.position = Math.max(Math.min(maxSeq, (this.#fresh ? held : minSeq) - 1), 0);
      if (this.#fresh) place.floor = place.position;
      this.#port.moved(conversation, place.position);
    }
    this.removed(conversation, clearedSeq, hidden);
    this.#advance(conversation, place, true);
  }

  /** The conversation has entries up to `seq`, by `behind`, a `pong` or the ack of a send. */
  exists(conversation: string, seq: number): void {
    const place = this.#place(conversation, seq);
    if (place.position === undefined) {
      if (this.#syncing && this.#fresh) return;
      place.position = 0;
    }
    this.#advance(conversation, place, true);
  }

  /** Takes a push, or a message of this client that has been accepted (`sent`). */
  push(push: WirePush, sent: boolean): void {
    const own = sent || this.#port.isOwn(push);
    const { conversation } = push;
    const seq = push.seq ?? 0;
    if (isRoom(conversation)) return this.#room(push, own);
    const place = this.#place(conversation, seq);
    if (place.position === undefined) {
      if (this.#syncing && seq > 1) {
        this.#hold(place, push, own);
        this.#timers.soonest('sync', STUCK_MS, () => this.#settle(false));
        return;
      }
      place.position = 0;
    }
    if (!sent) {
      place.pushed = Math.max(place.pushed, seq);
      place.again ||= seq <= place.acked;
    }
    // The node pushes what it accepted after the login, even if the state of the first sync covers it.
    if (place.position === place.floor && seq <= place.position && !sent) {
      place.target = place.position;
      place.position = seq - 1;
      place.floor = undefined;
    }
    if (seq > place.position) {
      if (place.held.size < HELD_MAX || seq === place.position + 1) this.#hold(place, push, own);
      this.#advance(conversation, place, false);
    }
    this.#wantAck(place);
  }

  #hold(place: Place, push: WirePush, own: boolean): void {
    const seq = push.seq ?? 0;
    place.target = Math.max(place.target, seq);
    if (!place.held.has(seq)) place.held.set(seq, { push, own });
    const recalled = push.recall?.seq;
    if (recalled !== undefined && recalled > (place.position ?? 0)) place.held.set(recalled, null);
  }

  #room(push: WirePush, own: boolean): void {
    const id = `${push.sender} ${push.msgId}`;
    const known = kept(this.#rooms, push.conversation, () => new Set());
    if (known.has(id)) return;
    known.add(id);
    if (known.size > ROOM_MEMORY) known.delete(known.values().next().value!);
    this.#feed.deliver(push, own);
  }

  /** The user has cleared up to `seq`, or hidden `seqs`: what is held of that is not handed over. */
  removed(conversation: string, seq: number, seqs: readonly number[]): void {
    const held = this.#places.get(conversation)?.held;
    for (const at of held?.keys() ?? []) if (at <= seq || seqs.includes(at)) held!.set(at, null);
  }

  /** Hands over what has become complete, then sees to the next hole. `known` holes are pulled at once. */
  #advance(conversation: string, place: Place, known: boolean): void {
    const before = place.position!;
    this.#drain(conversation, place);
    if (place.position !== before) {
      // The most recently active conversation is the last one of the map.
      this.#places.delete(conversation);
      this.#places.set(conversation, place);
    }
    this.#pull(conversation, place, known ? 0 : HOLE_MS);
  }

  #drain(conversation: string, place: Place): void {
    for (;;) {
      const next = place.position! + 1;
      const held = place.held.get(next);
      if (held !== undefined) {
        place.held.delete(next);
        // An entry that can't be handed over is pulled again.
        if (held) this.#feed.deliver(held.push, held.own);
        place.position = next;
      } else {
        const range = place.gone.find((it) => it.first <= next && it.last >= next);
        if (!range) break;
        // What was pushed is handed over, though pages do not have it: it was transient, or lies above the bound of the user.
        const above = [...place.held.keys()].filter((seq) => seq > next);
        place.position = Math.min(range.last, ...above.map((seq) => seq - 1));
      }
      this.#port.moved(conversation, place.position);
    }
    const position = place.position!;
    for (const seq of place.held.keys()) if (seq <= position) place.held.delete(seq);
    place.gone = place.gone.filter((it) => it.last > position);
  }

  /** Pulls what is missing, if something is, unless that closes by itself within `wait`. */
  #pull(conversation: string, place: Place, wait: number): void {
    const cursor = place.position!;
    if (cursor >= place.target || place.pulling) return;
    const timer = 'hole ' + conversation;
    if (wait > 0) return this.#timers.soonest(timer, wait, () => this.#pull(conversation, place, 0));
    this.#timers.clear(timer);
    place.pulling = true;
    this.#requests.add({
      body: { pull: { conversation, cursor, limit: PULL_LIMIT, direction: 'DIRECTION_FORWARD' } },
      once: 'temporary',
      done: ({ page = {} }) => {
        place.pulling = false;
        for (const push of page.messages ?? []) if ((push.seq ?? 0) > place.position!) this.#hold(place, push, this.#port.isOwn(push));
        for (const seq of page.recalled ?? []) if (seq > place.position!) place.held.set(seq, null);
        for (const { first = 0, last = 0 } of page.expired ?? []) if (last > place.position!) place.gone.push({ first, last });
        this.#drain(conversation, place);
        this.#wantAck(place);
        this.#pull(conversation, place, place.position! > cursor ? 0 : STUCK_MS);
      },
      fail: (error) => {
        place.pulling = false;
        if (error.temporary) return this.#pull(conversation, place, error.retryAfterMs || STUCK_MS);
        // Nothing more can be had: goes on behind the hole.
        const first = place.position! + 1;
        const last = place.held.size > 0 ? Math.min(...place.held.keys()) - 1 : place.target;
        if (last < first) return;
        place.position = last;
        this.#feed.emit('gap', { conversation, first, last });
        this.#port.moved(conversation, last);
        this.#advance(conversation, place, true);
      },
    });
  }

  /** Number of entries that an ack would cover now, 0 if none is due. */
  #due(place: Place): number {
    const position = place.position ?? 0;
    return place.again ? 1 : Math.min(position, place.pushed) > place.acked ? position - place.acked : 0;
  }

  #wantAck(place: Place): void {
    const due = this.#due(place);
    if (due > 0) this.#timers.soonest('ack', (due >= ACK_COUNT && place.acked > 0 ? 0 : ACK_MS), () => this.#ack());
  }

  #ack(): void {
    for (const [conversation, place] of this.#places) {
      if (this.#due(place) === 0) continue;
      place.acked = place.position!;
      place.again = false;
      this.#port.ack(conversation, place.acked);
    }
  }

  /** Sends the acks that are due now, before a connection ends. */
  flush(): void {
    this.#timers.clear('ack');
    this.#ack();
  }

  /** The connection has ended: its pushes need no ack any more, the next sync covers them. */
  lost(): void {
    this.#timers.clear('ack', 'sync');
    this.#syncing = false;
    for (const place of this.#places.values()) {
      place.pushed = place.acked = 0;
      place.again = false;
    }
  }
}
