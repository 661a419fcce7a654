import type { TidegateError } from './error.js';
import type { Request, Requests } from './requests.js';

type Outcome = Pick<Request, 'done' | 'fail'>;

/** Live rooms that the client has entered, which it enters again after each login. */
export class Rooms {
  /** Rooms that were asked for, and whether the join was answered. */
  #all = new Map<string, boolean>();
  #requests: Requests;

  constructor(requests: Requests) {
    this.#requests = requests;
  }

  join(now: number, room: string, { done, fail }: Outcome): void {
    this.#all.set(room, false);
    this.#requests.add(
      {
        body: { join: { room } },
        done: (frame, then) => {
          if (this.#all.has(room)) this.#all.set(room, true);
          done(frame, then);
        },
        fail: (error, then) => {
          this.#all.delete(room);
          fail(error, then);
        },
      },
      now,
    );
  }

  leave(now: number, room: string, outcome: Outcome): void {
    this.#all.delete(room);
    this.#requests.add({ ...outcome, body: { leave: { room } } }, now);
  }

  /** Enters all rooms again; a join that is unanswered repeats itself. */
  rejoin(now: number): void {
    for (const [room, answered] of this.#all) {
      if (!answered) continue;
      const fail = (error: TidegateError) => {
        if (!error.temporary) this.#all.delete(room);
      };
      this.#requests.add({ body: { join: { room } }, once: 'connection', done: () => {}, fail }, now);
    }
  }
}
