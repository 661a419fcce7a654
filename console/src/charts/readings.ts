/** What a node said of itself in a second. */
export interface Reading {
  readonly at: number;
  readonly clients: number;
  /** Phase of its drain: 0 is none, 3 closes the clients. */
  readonly phase: number;
}

/** Seconds for which a reading holds when the next one is late. */
export const HOLD = 3;

/** Readings in order, the newest one of each second. */
export function ordered(list: readonly Reading[]): Reading[] {
  return [...new Map(list.map((it) => [it.at, it])).values()].sort((a, b) => a.at - b.at);
}

/**
 * Clients by second from `from` to `to`; a node that reported nothing for longer than `HOLD` seconds has none. `left` is how
 * many are known to have left it in a second, for those since its last reading.
 */
export function counts(readings: readonly Reading[], from: number, to: number, left?: (at: number) => number): number[] {
  const list: number[] = [];
  let index = 0;
  for (let at = from; at <= to; at += 1) {
    while ((readings[index + 1]?.at ?? Infinity) <= at) index += 1;
    const it = readings[index];
    let clients = it && it.at <= at && at - it.at <= HOLD ? it.clients : 0;
    if (it && left) for (let second = it.at + 1; second <= at && clients > 0; second += 1) clients -= left(second);
    list.push(Math.max(0, clients));
  }
  return list;
}

/** Whether a node had a client from second `from` to second `to`. */
export function hadClients(all: Iterable<readonly Reading[]>, from: number, to: number): boolean {
  return [...all].some((list) => list.some((it) => it.clients > 0 && it.at >= from && it.at <= to));
}
