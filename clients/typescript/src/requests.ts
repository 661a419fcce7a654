import { doubled } from './backoff.js';
import { fromWire, local, type TidegateError } from './error.js';
import type { Timers } from './timers.js';
import type { ClientFrame, ServerFrame } from './wire.js';

/** Queries in flight. The node answers one at a time and reads nothing else meanwhile, so few are sent ahead. */
const FLYING_MAX = 4;

/** Request that is no send: repeated after temporary errors and reconnects until it has an answer. */
export interface Request {
  body: Record<string, unknown>;
  /** When it fails instead of being repeated: always, with the connection, after `NOT_YET`, or after any temporary error. */
  once?: 'always' | 'connection' | 'notYet' | 'temporary';
  /** Name of the error that says that it was carried out already, if the connection ended before its answer. */
  doneBy?: string;
  /** Whether a later request has made it needless: then it is not repeated, and counts as done. */
  isStale?(): boolean;
  /** Takes a frame of an answer that has several. */
  part?(frame: ServerFrame, now: number): void;
  done(frame: ServerFrame, now: number): void;
  fail(error: TidegateError, now: number): void;
}

interface Flying {
  request: Request;
  tries: number;
  readyAt: number;
  /** A connection ended before the answer came. */
  isInDoubt: boolean;
}

/** Requests in the order in which they were made. */
export class Requests {
  #waiting: Flying[] = [];
  #flying = new Map<number, Flying>();
  #live = false;
  #timers: Timers;
  #port: { write(frame: ClientFrame): void; frameId(): number };

  constructor(timers: Timers, port: { write(frame: ClientFrame): void; frameId(): number }) {
    this.#timers = timers;
    this.#port = port;
  }

  /** Whether nothing is unanswered. */
  get idle(): boolean {
    return this.#flying.size === 0;
  }

  add(request: Request, now: number): void {
    if (request.once === 'always' && !this.#live) return request.fail(local('OFFLINE'), now);
    const it: Flying = { request, tries: 0, readyAt: 0, isInDoubt: false };
    // What belongs to the connection, such as its sync, comes first.
    if (request.once === 'connection') this.#waiting.unshift(it);
    else this.#waiting.push(it);
    this.pump(now);
  }

  live(now: number): void {
    this.#live = true;
    this.pump(now);
  }

  hold(): void {
    this.#live = false;
  }

  lost(now: number): void {
    this.#live = false;
    for (const it of this.#flying.values()) it.isInDoubt = true;
    const all = [...this.#flying.values(), ...this.#waiting];
    const ends = (it: Flying) => it.request.once === 'always' || it.request.once === 'connection';
    this.#flying.clear();
    for (const it of all) it.readyAt = 0;
    this.#waiting = all.filter((it) => !ends(it));
    for (const it of all) if (ends(it)) it.request.fail(local('OFFLINE'), now);
  }

  /** Fails everything. The end of a session is no answer: a request that handles temporary errors itself gets one. */
  close(error: TidegateError, now: number): void {
    this.#live = false;
    const all = [...this.#flying.values(), ...this.#waiting];
    this.#flying.clear();
    this.#waiting = [];
    for (const { request } of all) request.fail(request.once === 'temporary' ? local('OFFLINE') : error, now);
  }

  pump(now: number): void {
    if (!this.#live) return;
    let wake = Infinity;
    const later: Flying[] = [];
    for (const it of this.#waiting) {
      if (it.readyAt > now || this.#flying.size >= FLYING_MAX) {
        if (it.readyAt > now) wake = Math.min(wake, it.readyAt);
        later.push(it);
        continue;
      }
      if (it.tries++ && it.request.isStale?.()) {
        it.request.done({}, now);
        continue;
      }
      const id = this.#port.frameId();
      this.#flying.set(id, it);
      this.#port.write({ id, ...it.request.body });
    }
    this.#waiting = later;
    if (wake < Infinity) this.#timers.soonest('requests', wake, (then) => this.pump(then));
  }

  /** Handles an answer; returns whether it belongs to one of these requests. */
  answer(frame: ServerFrame, now: number): boolean {
    const id = frame.id ?? 0;
    const it = this.#flying.get(id);
    if (!it) return false;
    if (frame.conversationState) {
      it.request.part?.(frame, now);
      return true;
    }
    this.#flying.delete(id);
    const error = frame.error && fromWire(frame.error);
    if (!error || (it.isInDoubt && error.name === it.request.doneBy)) {
      it.request.done(frame, now);
    } else if (this.#ends(it.request, error)) {
      it.request.fail(error, now);
    } else {
      it.readyAt = now + (error.retryAfterMs || doubled(it.tries - 1));
      this.#waiting.unshift(it);
    }
    this.pump(now);
    return true;
  }

  #ends(request: Request, error: TidegateError): boolean {
    if (!error.temporary || request.once === 'always' || request.once === 'temporary') return true;
    return request.once === 'notYet' && error.name === 'NOT_YET';
  }
}
