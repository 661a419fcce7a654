/** Clients that moved between two nodes in a second; an empty name is outside: new clients, or clients that left. */
export interface Move {
  readonly from: string;
  readonly to: string;
  readonly count: number;
}

/** One second of the cluster: the clients of each node at its end, and the moves in it. */
export interface Second {
  readonly at: number;
  readonly counts: ReadonlyMap<string, number>;
  readonly moves: readonly Move[];
}

/** Strands in each lane after a second, from top to bottom; the strands that cross are in no lane. */
export interface Step {
  readonly at: number;
  readonly lanes: readonly (readonly number[])[];
}

/** A strand that left a lane in a second, and arrives in another one `FLIGHT` seconds later. */
export interface Crossing {
  readonly strand: number;
  readonly from: number;
  readonly to: number;
  readonly at: number;
}

/** Seconds that a second waits until it becomes strands, because clients are counted where they arrive, after they have left. */
export const LOOK = 4;

/** Seconds that a crossing strand is drawn between its lanes. */
export const FLIGHT = 12;

/** Strands by which a lane may differ from the count of its node: over a half, or each client would make it flicker. */
const SLACK = 0.75;

const EPSILON = 1e-9;

/**
 * Turns counts and moves into strands of a fixed number of clients. A strand is in one lane or crosses to one, and what
 * leaves a lane for another one arrives there; clients that only come or go begin and end strands.
 */
export class Strands {
  readonly steps: Step[] = [];
  readonly crossings: Crossing[] = [];
  private readonly lanes: number[][];
  private readonly credit = new Map<string, number>();
  private waiting: Second[] = [];
  private flying: Crossing[] = [];
  private next = 1;
  private readonly names: readonly string[];
  private readonly unit: number;
  private readonly keep: number;

  constructor(names: readonly string[], unit: number, keep = 900) {
    this.names = names;
    this.unit = unit;
    this.keep = keep;
    this.lanes = names.map(() => []);
  }

  /** Takes the next second; the step of a second follows `LOOK` seconds later. */
  feed(second: Second): void {
    this.waiting.push(second);
    if (this.waiting.length <= LOOK) return;
    this.step();
    this.waiting = this.waiting.slice(1);
  }

  private step(): void {
    const [second] = this.waiting;
    if (!second) return;
    this.land(second.at);
    if (this.steps.length === 0) this.names.forEach((_, lane) => this.begin(lane, Math.round(this.target(lane, second))));
    else this.move(second);
    this.settle();
    const before = this.steps.at(-1)?.lanes;
    this.steps.push({ at: second.at, lanes: this.lanes.map((lane, index) => same(before?.[index], lane) ?? [...lane]) });
    if (this.steps.length > this.keep) this.steps.shift();
    while ((this.crossings[0]?.at ?? Infinity) < second.at - this.keep) this.crossings.shift();
  }

  private target(lane: number, second: Second): number {
    return (second.counts.get(this.names[lane] ?? "") ?? 0) / this.unit;
  }

  private land(at: number): void {
    const landed = this.flying.filter((it) => it.at + FLIGHT <= at);
    if (landed.length === 0) return;
    this.flying = this.flying.filter((it) => it.at + FLIGHT > at);
    for (const { strand, from, to } of landed) {
      if (from < to) this.lanes[to]?.unshift(strand);
      else this.lanes[to]?.push(strand);
    }
  }

  private begin(lane: number, count: number): void {
    for (let index = 0; index < count; index += 1) this.lanes[lane]?.push(this.next++);
  }

  /** Returns how many strands a lane has, with those on their way to it. */
  private have(lane: number): number {
    return (this.lanes[lane]?.length ?? 0) + this.flying.filter((it) => it.to === lane).length;
  }

  /** Returns the fewest strands that the counts of a lane ask for in the seconds that wait. */
  private least(lane: number): number {
    return Math.min(...this.waiting.map((second) => this.target(lane, second)));
  }

  private move(second: Second): void {
    for (const { from, to, count } of second.moves) {
      const [a, b] = [this.names.indexOf(from), this.names.indexOf(to)];
      if (a < 0 || b < 0 || a === b) continue;
      const key = `${a} ${b}`;
      let credit = (this.credit.get(key) ?? 0) + count / this.unit;
      for (; credit >= 1 - EPSILON; credit -= 1) {
        const lane = this.lanes[a] ?? [];
        // A strand whose clients came back late has ended already; another one must not leave in its place.
        if (lane.length === 0 || this.have(a) - 1 < this.least(a) - SLACK) continue;
        const strand = a < b ? lane.pop() : lane.shift();
        if (strand === undefined) continue;
        this.leave({ strand, from: a, to: b, at: second.at });
      }
      this.credit.set(key, Math.max(0, credit));
    }
  }

  private leave(crossing: Crossing): void {
    this.flying.push(crossing);
    this.crossings.push(crossing);
  }

  /** Returns how many strands the moves of the seconds ahead will take to or from a lane. */
  private ahead(lane: number, side: "from" | "to"): number {
    const name = this.names[lane];
    let sum = 0;
    for (const second of this.waiting.slice(1)) {
      for (const it of second.moves) if (it[side] === name && it.from && it.to && it.from !== it.to) sum += it.count / this.unit;
    }
    return sum;
  }

  /** Returns how many strands moves will take to or from a lane, with those that were too small for a strand so far. */
  private pending(lane: number, side: "from" | "to"): number {
    let sum = this.ahead(lane, side);
    for (const [key, credit] of this.credit) if (Number(key.split(" ")[side === "from" ? 0 : 1]) === lane) sum += credit;
    return sum;
  }

  private settle(): void {
    for (let lane = 0; lane < this.names.length; lane += 1) {
      const most = Math.max(...this.waiting.map((second) => this.target(lane, second)));
      if (most === 0) this.empty(lane);
      const over = this.have(lane) - most - this.pending(lane, "from");
      for (let excess = over; excess > SLACK && (this.lanes[lane]?.length ?? 0) > 0; excess -= 1) this.lanes[lane]?.pop();
      const under = this.least(lane) - this.have(lane) - this.pending(lane, "to");
      this.begin(lane, Math.max(0, Math.ceil(under - SLACK)));
    }
  }

  /** Takes the last strand of a node without clients to where the rest of them went, though they were fewer than a strand. */
  private empty(lane: number): void {
    const strands = this.lanes[lane] ?? [];
    if (strands.length === 0 || this.ahead(lane, "from") > 0) return;
    const rests = [...this.credit].filter(([key, credit]) => key.startsWith(`${lane} `) && credit > 0).sort((a, b) => b[1] - a[1]);
    for (const [key] of rests) this.credit.set(key, 0);
    const to = Number(rests[0]?.[0].split(" ")[1] ?? -1);
    const strand = to >= 0 ? (lane < to ? strands.pop() : strands.shift()) : undefined;
    if (strand !== undefined) this.leave({ strand, from: lane, to, at: this.waiting[0]?.at ?? 0 });
    strands.length = 0;
  }
}

function same(before: readonly number[] | undefined, lane: readonly number[]): readonly number[] | undefined {
  return before && before.length === lane.length && before.every((strand, index) => strand === lane[index]) ? before : undefined;
}

/** Clients of a strand for the largest total: a 180th of it, as a round number of whole clients. */
export function unitOf(total: number): number {
  const wanted = total / 180;
  if (wanted <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(wanted));
  // A strand of 2.5 clients can't be said, so the step between 1 and 5 is 2 there.
  const steps = [1, power === 1 ? 2 : 2.5, 5, 10].map((it) => it * power);
  return steps.reduce((best, it) => (Math.abs(Math.log(it / wanted)) < Math.abs(Math.log(best / wanted)) ? it : best));
}
