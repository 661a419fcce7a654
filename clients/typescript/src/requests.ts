import { doubled } from './backoff.js';
import { fromWire, local, type TidegateError } from './error.js';
import type { Timers } from './timers.js';
import type { ServerFrame } from './wire.js';

/** Queries in flight. The node answers one at a time and reads nothing else meanwhile, so few are sent ahead. */
const FLYING_MAX = 4;

/** Takes the end of a call: one of both, once. */
export interface Outcome<T> {
  done(value: T): void;
  fail(error: TidegateError): void;
}

/** Request that is no send: repeated after temporary errors and reconnects until it has an answer. */
export interface Request extends Outcome<ServerFrame> {
  body: Record<string, unknown>;
  /** Feature that `welcome` must name, or the request fails. */
  needs?: string;
  /** When it fails instead of being repeated: always, with the connection, after `NOT_YET`, or after any temporary error. */
  once?: 'always' | 'connection' | 'notYet' | 'temporary' | undefined;
  /** Name of the error that says that it was carried out already, if the connection ended before its answer. */
  doneBy?: string;
  /** Whether a later request has made it needless: then it is not repeated, and counts as done. */
  isStale?(): boolean;
  /** Takes a frame of an answer that has several. */
  part?(frame: ServerFrame): void;
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
  /** Optional parts of the protocol that the node of the last login has. */
  features: readonly string[] = [];
  #waiting: Flying[] = [];
  #flying = new Map<number, Flying>();
  #live = false;
  #timers: Timers;
  /** Writes a request to the live connection, and returns the id that its answer will have. */
  #write: (body: Record<string, unknown>) => number;

  constructor(timers: Timers, write: (body: Record<string, unknown>) => number) {
    this.#timers = timers;
    this.#write = write;
  }

  /** Whether nothing is unanswered. */
  get idle(): boolean {
    return this.#flying.size === 0;
  }

  add(request: Request): void {
    // Throws if the application gave what is no JSON, before others wait behind it.
    JSON.stringify(request.body);
    if (request.once === 'always' && !this.#live) return request.fail(local('OFFLINE'));
    const it: Flying = { request, tries: 0, readyAt: 0, isInDoubt: false };
    // What belongs to the connection, such as its sync, comes first.
    if (request.once === 'connection') this.#waiting.unshift(it);
    else this.#waiting.push(it);
    this.pump();
  }

  live(): void {
    this.#live = true;
    this.pump();
  }

  hold(): void {
    this.#live = false;
  }

  lost(): void {
    for (const it of this.#flying.values()) it.isInDoubt = true;
    this.#end(local('OFFLINE'), ({ once }) => once === 'always' || once === 'connection');
  }

  /** Fails everything. The end of a session is no answer: a request that handles temporary errors itself gets one. */
  close(error: TidegateError): void {
    this.#end(error, () => true);
  }

  #end(error: TidegateError, ends: (request: Request) => boolean): void {
    this.#live = false;
    const all = [...this.#flying.values(), ...this.#waiting];
    this.#flying.clear();
    this.#waiting = all.filter((it) => !ends(it.request));
    for (const it of all) {
      const { request } = it;
      it.readyAt = 0;
      if (ends(request)) request.fail(request.once === 'temporary' ? local('OFFLINE') : error);
    }
  }

  pump(): void {
    if (!this.#live) return;
    const all = this.#waiting;
    this.#waiting = [];
    for (const it of all) {
      const wait = it.readyAt - this.#timers.now;
      if (wait > 0) this.#timers.soonest('requests', wait, () => this.pump());
      else if (this.#flying.size < FLYING_MAX) {
        this.#start(it);
        continue;
      }
      this.#waiting.push(it);
    }
  }

  #start(it: Flying): void {
    const { needs, isStale, body, done, fail } = it.request;
    if (needs && !this.features.includes(needs)) return fail(local('UNSUPPORTED', 'The node lacks ' + needs));
    if (it.tries++ && isStale?.()) return done({});
    this.#flying.set(this.#write(body), it);
  }

  /** Handles an answer; returns whether it belongs to one of these requests. */
  answer(frame: ServerFrame): boolean {
    const id = frame.id ?? 0;
    const it = this.#flying.get(id);
    if (!it) return false;
    if (frame.conversationState) {
      it.request.part?.(frame);
      return true;
    }
    this.#flying.delete(id);
    const { once } = it.request;
    const error = frame.error && fromWire(frame.error);
    if (!error || (it.isInDoubt && error.name === it.request.doneBy)) {
      it.request.done(frame);
    } else if (!error.temporary || once === 'always' || once === 'temporary' || (once === 'notYet' && error.name === 'NOT_YET')) {
      it.request.fail(error);
    } else {
      it.readyAt = this.#timers.now + (error.retryAfterMs || doubled(it.tries - 1));
      this.#waiting.unshift(it);
    }
    this.pump();
    return true;
  }
}
