import type { Outcome, Request, Requests } from './requests.js';
import type { ServerFrame } from './wire.js';

/** Request that enters the subscription `name`, or with `ends` leaves it. */
type Change = (name: string, ends?: true) => Pick<Request, 'body' | 'needs'>;

/** Subscriptions of a connection, such as live rooms, which the client enters again after each login. */
export class Subscriptions {
  /** Names with the last call, or `done` once its enter was answered. One that was refused is not here. */
  #all = new Map<string, 'enter' | 'done' | 'leave'>();
  #requests: Requests;
  #change: Change;

  constructor(requests: Requests, change: Change) {
    this.#requests = requests;
    this.#change = change;
  }

  enter(name: string, outcome: Outcome<ServerFrame>): void {
    this.#all.set(name, 'enter');
    this.#enter(name, outcome);
  }

  leave(name: string, outcome: Outcome<ServerFrame>): void {
    this.removed(name);
    this.#requests.add({ ...this.#change(name, true), ...outcome, isStale: () => this.#isIn(name) });
  }

  /** The node has ended the subscription, which the client no longer enters by itself. */
  removed(name: string): void {
    this.#all.set(name, 'leave');
    this.gone(name);
  }

  /** The node has ended an entered subscription; one that is not answered goes on. */
  protected lapsed(name: string): void {
    if (this.#all.get(name) === 'done') this.#all.set(name, 'leave');
    this.gone(name);
  }

  /** Enters all again; a request that is unanswered repeats itself. */
  again(): void {
    const outcome = { done() {}, fail() {} };
    for (const [name, last] of this.#all) if (last === 'done') this.#enter(name, outcome, 'connection');
  }

  /** The subscription has ended, or could not be entered again. */
  protected gone(_name: string): void {}

  protected has(name: string): boolean {
    return this.#all.has(name) && this.#isIn(name);
  }

  #isIn(name: string): boolean {
    return this.#all.get(name) !== 'leave';
  }

  #enter(name: string, { done, fail }: Outcome<ServerFrame>, once?: 'connection'): void {
    this.#requests.add({
      ...this.#change(name),
      once,
      isStale: () => !this.#isIn(name),
      done: (frame) => {
        if (this.#isIn(name)) this.#all.set(name, 'done');
        done(frame);
      },
      fail: (error) => {
        // Errors of the client itself, such as the end of the connection, are no refusals.
        if (error.code && this.#isIn(name)) this.#all.delete(name);
        this.gone(name);
        fail(error);
      },
    });
  }
}
