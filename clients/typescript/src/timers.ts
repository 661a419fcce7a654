/** Named points in time, kept by the machine. The driver sleeps until `due()` and calls `run`. */
export class Timers {
  #all = new Map<string, { at: number; run: (now: number) => void }>();

  /** Sets the timer `name`, replacing an earlier one of that name. */
  set(name: string, at: number, run: (now: number) => void): void {
    this.#all.set(name, { at, run });
  }

  /** Sets the timer `name` unless one is set for an earlier time. */
  soonest(name: string, at: number, run: (now: number) => void): void {
    const present = this.#all.get(name);
    if (!present || present.at > at) this.set(name, at, run);
  }

  clear(name: string): void {
    this.#all.delete(name);
  }

  /** Time of the earliest timer; `undefined` if none is set. */
  due(): number | undefined {
    let least: number | undefined;
    for (const { at } of this.#all.values()) if (least === undefined || at < least) least = at;
    return least;
  }

  /** Runs the timers that are due, in order of their times. A timer that is set meanwhile waits for the next run. */
  run(now: number): void {
    const due = [...this.#all].filter(([, it]) => it.at <= now).sort((a, b) => a[1].at - b[1].at);
    for (const [name, it] of due) {
      if (this.#all.get(name) !== it) continue;
      this.#all.delete(name);
      it.run(now);
    }
  }
}
