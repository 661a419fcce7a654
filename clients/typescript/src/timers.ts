/** Named points in time, kept by the machine, and its clock. The driver sets `now`, sleeps until `due()` and calls `run`. */
export class Timers {
  /** Time of the call that is being handled. */
  now = 0;
  #all = new Map<string, { at: number; run: () => void }>();

  /** Sets the timer `name` to run after `wait` ms, replacing an earlier one of that name. */
  set(name: string, wait: number, run: () => void): void {
    this.#all.set(name, { at: this.now + wait, run });
  }

  /** Sets the timer `name` unless one is set that runs earlier. */
  soonest(name: string, wait: number, run: () => void): void {
    if (!(this.#all.get(name)?.at! <= this.now + wait)) this.set(name, wait, run);
  }

  clear(...names: string[]): void {
    for (const name of names) this.#all.delete(name);
  }

  /** Time of the earliest timer; `Infinity` if none is set. */
  due(): number {
    return Math.min(...[...this.#all.values()].map((it) => it.at));
  }

  /** Runs the timers that are due, in order of their times. A timer that is set meanwhile waits for the next run. */
  run(): void {
    const due = [...this.#all].filter(([, it]) => it.at <= this.now).sort((a, b) => a[1].at - b[1].at);
    for (const [name, it] of due) {
      if (this.#all.get(name) !== it) continue;
      this.#all.delete(name);
      it.run();
    }
  }
}
