import { doubled } from './backoff.js';
import { isRoom } from './entries.js';
import { fromWire, local, type TidegateError } from './error.js';
import type { Outcome } from './requests.js';
import type { Timers } from './timers.js';
import type { OutboxItem, SendOptions, Sent, Target } from './types.js';
import type { ServerFrame, WireContent, WireWelcome } from './wire.js';

interface Pending extends OutboxItem {
  bytes: number;
  /** Times that it may have been written to a connection. */
  attempts: number;
  /** Id of the frame that is unanswered on this connection; 0: none. */
  frame: number;
  /** Not written before this time; infinite until the item is stored. */
  readyAt: number;
  outcome: Outcome<Sent> | undefined;
}

export interface OutboxPort {
  /** Writes a request to the live connection, and returns the id that its answer will have. */
  write(body: Record<string, unknown>): number;
  /** Returns a fresh message id. */
  newId(): string;
  /** The node has accepted the item. */
  accepted(item: OutboxItem, sent: Sent): void;
  failed(item: OutboxItem, error: TidegateError): void;
}

/**
 * Unanswered messages in the order of writing. Each is repeated under its id until it is accepted or lastingly refused,
 * and chained ones name their successor (SPEC sections 5 and 6).
 */
export class Outbox {
  #items: Pending[] = [];
  #byId = new Map<string, Pending>();
  /** Items by the ids of their frames on this connection. An item that was repeated has several. */
  #byFrame = new Map<number, Pending>();
  #live = false;
  #flying = 0;
  #flyingBytes = 0;
  #maxFlying = 128;
  #maxBytes = 65_536;
  #tail: string;
  #next = 0;
  #chain: boolean;
  #timers: Timers;
  #port: OutboxPort;

  constructor(chain: boolean, timers: Timers, port: OutboxPort) {
    this.#chain = chain;
    this.#timers = timers;
    this.#port = port;
    this.#tail = port.newId();
  }

  get size(): number {
    return this.#items.length;
  }

  has(msgId: string): boolean {
    return this.#byId.has(msgId);
  }

  /** Adds a message, which is sent, and returns its item. With `hold` it waits for `release`. */
  add(to: Target, content: WireContent, options: SendOptions, outcome?: Outcome<Sent>, hold?: boolean): OutboxItem {
    const inOrder = this.#chain && options.chain !== false && options.msgId === undefined;
    const room = inOrder && isRoom(to.conversation ?? '') ? to.conversation : undefined;
    const chained = inOrder && !room;
    const fresh = this.#port.newId();
    const { msgId = chained ? this.#tail : fresh, traceparent, flags } = options;
    const item: OutboxItem = { msgId, at: this.#next, to, content, chained, room, tail: chained ? fresh : undefined, traceparent, flags };
    // Throws if the content is no JSON, before the chain has promised its id.
    this.#push(item, 0, hold ? Infinity : 0, outcome);
    this.#next++;
    this.continueAt(item.tail);
    this.pump();
    return item;
  }

  /** Continues the chain of an earlier run at the id that it promised last. */
  continueAt(tail: string | undefined): void {
    this.#tail = tail ?? this.#tail;
  }

  /** Adds an item of an earlier run or of another tab; it may have been sent before. */
  restore(item: OutboxItem, outcome?: Outcome<Sent>): void {
    this.#next = Math.max(this.#next, item.at + 1);
    const present = this.#byId.get(item.msgId);
    if (present) present.outcome ??= outcome;
    else {
      this.#push(item, 1, 0, outcome);
      this.pump();
    }
  }

  #push(item: OutboxItem, attempts: number, readyAt: number, outcome: Outcome<Sent> | undefined): void {
    const bytes = JSON.stringify(item.content).length + 256;
    const pending: Pending = { ...item, bytes, attempts, frame: 0, readyAt, outcome };
    this.#items.push(pending);
    this.#byId.set(item.msgId, pending);
  }

  /** The item is stored, so it may be sent. */
  release(msgId: string): void {
    const item = this.#byId.get(msgId);
    if (item && item.readyAt === Infinity) {
      item.readyAt = 0;
      this.pump();
    }
  }

  /** Fields of `hello` that declare the chain. */
  declaration(): string | undefined {
    return this.#chain ? this.#successor(-1) : undefined;
  }

  live(welcome: WireWelcome): void {
    const limits = welcome.limits ?? {};
    this.#maxFlying = Math.max(1, Math.min(limits.inFlightMax ?? 128, limits.holdMax ?? 128, 128));
    this.#maxBytes = Math.min(limits.holdBytesMax ?? 65_536, 262_144);
    this.resume();
  }

  /** The connection has ended: whatever was unanswered is sent again after the next login. */
  lost(): void {
    this.#live = false;
    this.#byFrame.clear();
    this.#flying = 0;
    this.#flyingBytes = 0;
    for (const item of this.#items) {
      item.frame = 0;
      if (item.readyAt !== Infinity) item.readyAt = 0;
    }
  }

  /** Stops writing without giving up on answers, while another connection logs in. */
  hold(): void {
    this.#live = false;
  }

  /** Continues on the present connection after `hold`. */
  resume(): void {
    this.#live = true;
    this.pump();
  }

  /** Writes what may be written now, in order. */
  pump(): void {
    if (!this.#live) return;
    // Lines in which a message waits: the chain, and each room.
    const blocked = new Set<string>();
    for (let at = 0; at < this.#items.length; at++) {
      const item = this.#items[at]!;
      const line = item.chained ? '' : (item.room ?? item.msgId);
      if (item.frame || blocked.has(line)) continue;
      const wait = item.readyAt - this.#timers.now;
      if (wait > 0) {
        blocked.add(line);
        this.#timers.soonest('outbox', wait, () => this.pump());
        continue;
      }
      const full = this.#flying >= this.#maxFlying || this.#flyingBytes + item.bytes > this.#maxBytes;
      if (full && this.#flying > 0) break;
      this.#write(item, at);
    }
  }

  #write(item: Pending, at: number): void {
    this.#flying++;
    this.#flyingBytes += item.bytes;
    const { to, msgId, content, traceparent, flags } = item;
    // Absent fields are undefined, which JSON omits.
    const send = { ...to, msgId, nextId: item.chained ? this.#successor(at) : undefined, attempt: item.attempts++ || undefined, content, traceparent, flags };
    item.frame = this.#port.write({ send });
    this.#byFrame.set(item.frame, item);
  }

  /** Returns the id of the first chained item after the place `at`, or that of the next one. */
  #successor(at: number): string {
    return this.#items.find((it, place) => place > at && it.chained)?.msgId ?? this.#tail;
  }

  /** Handles a `sendAck` or `error`; returns whether it answered a message of the outbox. */
  answer(frame: ServerFrame): boolean {
    const ack = frame.sendAck;
    const framed = this.#byFrame.get(frame.id ?? 0);
    this.#byFrame.delete(frame.id ?? 0);
    const item = this.#byId.get(ack?.msgId || framed?.msgId || '');
    // An answer to a message that is answered already changes nothing.
    if (!item) return framed !== undefined;
    if (ack) {
      const { conversation = item.to.conversation ?? '', seq = 0, time = 0, duplicate = false } = ack;
      const sent: Sent = { conversation, msgId: item.msgId, seq, time, duplicate };
      this.#remove(item);
      this.#port.accepted(item, sent);
      item.outcome?.done(sent);
    } else if (frame.error) {
      const error = fromWire(frame.error);
      if (error.temporary) {
        // A later copy is on its way, whose answer counts.
        if (item.frame !== frame.id) return true;
        this.#again(item, error);
      } else {
        this.#remove(item);
        this.#port.failed(item, error);
        item.outcome?.fail(error);
      }
    }
    this.pump();
    return true;
  }

  #again(item: Pending, error: TidegateError): void {
    this.#land(item);
    item.readyAt = this.#timers.now + (error.retryAfterMs || doubled(item.attempts - 1));
    if (error.name !== 'ORDER_BROKEN') return;
    // A predecessor never reached the log: the whole chain is sent again from the first unanswered id.
    for (const other of this.#items) {
      if (other.chained && other.readyAt !== Infinity) {
        this.#land(other);
        other.readyAt = item.readyAt;
      }
    }
  }

  /** The node waits for this id: sends it at once, if it is unanswered. */
  expected(msgId: string | undefined): void {
    const at = this.#items.findIndex((it) => it.msgId === msgId);
    const item = this.#items[at];
    if (!item || !this.#live || item.readyAt === Infinity) return;
    this.#land(item);
    this.#write(item, at);
    this.pump();
  }

  #land(item: Pending): void {
    if (!item.frame) return;
    item.frame = 0;
    this.#flying--;
    this.#flyingBytes -= item.bytes;
  }

  #remove(item: Pending): void {
    this.#land(item);
    this.#byId.delete(item.msgId);
    this.#items.splice(this.#items.indexOf(item), 1);
  }

  /** Rejects what is unanswered; a persistent outbox keeps its items. */
  close(): void {
    this.lost();
    const items = this.#items;
    this.#items = [];
    this.#byId.clear();
    for (const item of items) item.outcome?.fail(local('CLOSED'));
  }
}
