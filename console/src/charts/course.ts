import { Apportion } from "./apportion.ts";
import { counts, type Reading } from "./readings.ts";
import { Strands, unitOf, type Move } from "./strands.ts";

/** All that is known of the clients of the nodes. */
export interface Known {
  readonly names: readonly string[];
  readonly readings: ReadonlyMap<string, readonly Reading[]>;
  /** Moves by second; undefined where no node counts them. */
  readonly flows: ReadonlyMap<number, readonly Move[]> | undefined;
  /** The node whose clock counts; without it the newest reading of all does. */
  readonly own?: string;
  /** Changes when seconds that were known before may have changed. */
  readonly revision: number;
}

/** Seconds that are kept. */
export const KEEP = 900;

/** Seconds that a reading of a peer may be late, beyond those for which a reading holds: its clock may differ by five. */
export const LATE = 4;

/** Strands of the last 15 minutes, which grow by the seconds that become known. */
export class Course {
  strands = new Strands([], 1);
  names: readonly string[] = [];
  unit = 1;
  private key = "";
  private fed = 0;
  private apportion = new Apportion([]);
  private flows: Known["flows"];

  /** Takes what is known now. Other nodes, another unit or changed seconds begin the course again from its start. */
  update(known: Known): void {
    this.flows = known.flows;
    const all = [...known.readings.values()].flat();
    const newest = known.readings.get(known.own ?? "")?.at(-1)?.at ?? all.reduce((most, it) => Math.max(most, it.at), 0);
    const first = Math.max(newest - KEEP, all.reduce((least, it) => Math.min(least, it.at), newest));
    const unit = unitOf(most(known, first, newest));
    const key = [...known.names, unit, known.revision, known.flows ? "flows" : "counts"].join(" ");
    if (key !== this.key || this.fed < first - 1) {
      this.key = key;
      this.names = known.names;
      this.unit = unit;
      this.strands = new Strands(known.names, unit, KEEP);
      this.apportion = new Apportion(known.names);
      this.fed = first - 1;
    }
    const from = this.fed + 1;
    const lists = known.names.map((name) => counts(known.readings.get(name) ?? [], from, newest - LATE));
    for (let at = from; at <= newest - LATE; at += 1) {
      const now = lists.map((list) => list[at - from] ?? 0);
      const guessed = this.apportion.next(now);
      // Moves are known later than counts, so they are looked up when the second becomes a step.
      const moves = () => (this.flows ? (this.flows.get(at) ?? []) : guessed);
      this.strands.feed({ at, counts: new Map(known.names.map((name, index) => [name, now[index] ?? 0])), get moves() { return moves(); } });
      this.fed = at;
    }
  }
}

/** Most clients of all nodes in a second. */
function most(known: Known, from: number, to: number): number {
  const lists = known.names.map((name) => counts(known.readings.get(name) ?? [], from, to));
  let best = 0;
  for (let index = 0; index <= to - from; index += 1) best = Math.max(best, lists.reduce((sum, list) => sum + (list[index] ?? 0), 0));
  return best;
}
