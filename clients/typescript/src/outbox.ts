import { doubled } from './backoff.js';
import { fromWire, local, type TidegateError } from './error.js';
import type { Timers } from './timers.js';
import type { OutboxItem, Sent, Target } from './types.js';
import type { ClientFrame, ServerFrame, WireContent, WireWelcome } from './wire.js';

interface Pending extends OutboxItem {
  bytes: number;
  /** Times that it may have been written to a connection. */
  attempts: number;
  /** Id of the frame that is unanswered on this connection; 0: none. */
  frame: number;
  /** Not written before this time; infinite until the item is stored. */
  readyAt: number;
  done: ((sent: Sent) => void) | undefined;
  fail: ((error: TidegateError) => void) | undefined;
}

export interface OutboxPort {
  /** Writes a frame to the live connection. */
  write(frame: ClientFrame): void;
  /** Returns a fresh frame id. */
  frameId(): number;
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

  /** Adds a message and returns its item. With `hold` it waits for `release`. */
  add(
    to: Target,
    content: WireContent,
    options: { msgId?: string | undefined; chained: boolean; traceparent?: string | undefined; hold?: boolean },
    done?: (sent: Sent) => void,
    fail?: (error: TidegateError) => void,
  ): OutboxItem {
    const chained = this.#chain && options.chained && options.msgId === undefined && !to.conversation?.startsWith('r:');
    const fresh = this.#port.newId();
    const { msgId = chained ? this.#tail : fresh, traceparent } = options;
    const item: OutboxItem = { msgId, at: this.#next, to, content, chained, tail: chained ? fresh : undefined, traceparent };
    // Throws if the content is no JSON, before the chain has promised its id.
    this.#push(item, 0, options.hold ? Infinity : 0, done, fail);
    this.#next++;
    this.continueAt(item.tail);
    return item;
  }

  /** Continues the chain of an earlier run at the id that it promised last. */
  continueAt(tail: string | undefined): void {
    this.#tail = tail ?? this.#tail;
  }

  /** Adds an item of an earlier run or of another tab; it may have been sent before. */
  restore(item: OutboxItem, done?: (sent: Sent) => void, fail?: (error: TidegateError) => void): void {
    this.#next = Math.max(this.#next, item.at + 1);
    const present = this.#byId.get(item.msgId);
    if (present) {
      present.done ??= done;
      present.fail ??= fail;
    } else {
      this.#push(item, 1, 0, done, fail);
    }
  }

  #push(item: OutboxItem, attempts: number, readyAt: number, done?: (sent: Sent) => void, fail?: (error: TidegateError) => void): void {
    const bytes = JSON.stringify(item.content).length + 256;
    const pending: Pending = { ...item, bytes, attempts, frame: 0, readyAt, done, fail };
    this.#items.push(pending);
    this.#byId.set(item.msgId, pending);
  }

  /** The item is stored, so it may be sent. */
  release(msgId: string, now: number): void {
    const item = this.#byId.get(msgId);
    if (item && item.readyAt === Infinity) {
      item.readyAt = 0;
      this.pump(now);
    }
  }

  /** Fields of `hello` that declare the chain. */
  declaration(): string | undefined {
    return this.#chain ? (this.#items.find((it) => it.chained)?.msgId ?? this.#tail) : undefined;
  }

  live(welcome: WireWelcome, now: number): void {
    const limits = welcome.limits ?? {};
    this.#maxFlying = Math.max(1, Math.min(limits.inFlightMax ?? 128, limits.holdMax ?? 128, 128));
    this.#maxBytes = Math.min(limits.holdBytesMax ?? 65_536, 262_144);
    this.#live = true;
    this.pump(now);
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
  resume(now: number): void {
    this.#live = true;
    this.pump(now);
  }

  /** Writes what may be written now, in order. */
  pump(now: number): void {
    if (!this.#live) return;
    let blocked = false;
    let wake = Infinity;
    for (let at = 0; at < this.#items.length; at++) {
      const item = this.#items[at]!;
      if (item.frame || (blocked && item.chained)) continue;
      if (item.readyAt > now) {
        blocked ||= item.chained;
        wake = Math.min(wake, item.readyAt);
        continue;
      }
      const full = this.#flying >= this.#maxFlying || this.#flyingBytes + item.bytes > this.#maxBytes;
      if (full && this.#flying > 0) break;
      this.#write(item, at);
    }
    if (wake < Infinity) this.#timers.soonest('outbox', wake, (then) => this.pump(then));
  }

  #write(item: Pending, at: number): void {
    item.frame = this.#port.frameId();
    this.#byFrame.set(item.frame, item);
    this.#flying++;
    this.#flyingBytes += item.bytes;
    const { to, msgId, content, traceparent } = item;
    // Absent fields are undefined, which JSON omits.
    const send = { ...to, msgId, nextId: item.chained ? this.#successor(at) : undefined, attempt: item.attempts++ || undefined, content, traceparent };
    this.#port.write({ id: item.frame, send });
  }

  #successor(at: number): string {
    for (let next = at + 1; next < this.#items.length; next++) {
      if (this.#items[next]!.chained) return this.#items[next]!.msgId;
    }
    return this.#tail;
  }

  /** Handles a `sendAck` or `error`; returns whether it answered a message of the outbox. */
  answer(frame: ServerFrame, now: number): boolean {
    const ack = frame.sendAck;
    const framed = this.#byFrame.get(frame.id ?? 0);
    this.#byFrame.delete(frame.id ?? 0);
    const item = this.#byId.get(ack?.msgId || framed?.msgId || '');
    // An answer to a message that is answered already changes nothing.
    if (!item) return framed !== undefined;
    if (ack) {
      const sent: Sent = {
        conversation: ack.conversation ?? item.to.conversation ?? '',
        msgId: item.msgId,
        seq: ack.seq ?? 0,
        time: ack.time ?? 0,
        duplicate: ack.duplicate ?? false,
      };
      this.#remove(item);
      this.#port.accepted(item, sent);
      item.done?.(sent);
    } else if (frame.error) {
      const error = fromWire(frame.error);
      if (error.temporary) {
        // A later copy is on its way, whose answer counts.
        if (item.frame !== frame.id) return true;
        this.#again(item, error, now);
      } else {
        this.#remove(item);
        this.#port.failed(item, error);
        item.fail?.(error);
      }
    }
    this.pump(now);
    return true;
  }

  #again(item: Pending, error: TidegateError, now: number): void {
    this.#land(item);
    item.readyAt = now + (error.retryAfterMs || doubled(item.attempts - 1));
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
  expected(msgId: string | undefined, now: number): void {
    const at = this.#items.findIndex((it) => it.msgId === msgId);
    const item = this.#items[at];
    if (!item || !this.#live || item.readyAt === Infinity) return;
    this.#land(item);
    this.#write(item, at);
    this.pump(now);
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
  close(error: TidegateError = local('CLOSED')): void {
    this.lost();
    const items = this.#items;
    this.#items = [];
    this.#byId.clear();
    for (const item of items) item.fail?.(error);
  }
}
