import type { TidegateError } from './error.js';
import type { Request, Requests } from './requests.js';

type Outcome = Pick<Request, 'done' | 'fail'>;

/** Live rooms that the client has entered, which it enters again after each login. */
export class Rooms {
  /** Rooms with the last call, and whether the join was answered. */
  #all = new Map<string, 'join' | 'entered' | 'leave'>();
  #requests: Requests;

  constructor(requests: Requests) {
    this.#requests = requests;
  }

  join(now: number, room: string, { done, fail }: Outcome): void {
    this.#all.set(room, 'join');
    this.#requests.add(
      {
        ...this.#enter(room),
        done: (frame, then) => {
          if (this.#isIn(room)) this.#all.set(room, 'entered');
          done(frame, then);
        },
        fail: (error, then) => {
          if (this.#isIn(room)) this.#all.delete(room);
          fail(error, then);
        },
      },
      now,
    );
  }

  leave(now: number, room: string, outcome: Outcome): void {
    this.#all.set(room, 'leave');
    this.#requests.add({ ...outcome, body: { leave: { room } }, isStale: () => this.#isIn(room) }, now);
  }

  #isIn(room: string): boolean {
    return this.#all.get(room) !== 'leave';
  }

  #enter(room: string): Pick<Request, 'body' | 'isStale'> {
    return { body: { join: { room } }, isStale: () => !this.#isIn(room) };
  }

  /** Enters all rooms again; a join that is unanswered repeats itself. */
  rejoin(now: number): void {
    for (const [room, last] of this.#all) {
      if (last !== 'entered') continue;
      const fail = (error: TidegateError) => {
        if (!error.temporary && this.#isIn(room)) this.#all.delete(room);
      };
      this.#requests.add({ ...this.#enter(room), once: 'connection', done: () => {}, fail }, now);
    }
  }
}
