/** Colour of a node: one of three hues, and how often the hues have repeated before it. */
export interface Hue {
  readonly index: number;
  readonly turn: number;
}

/** Hues of nodes. */
const HUES = 3;

/** Colours that look different: each hue is plain, or has one of two patterns. */
const SLOTS = 3 * HUES;

/** Returns the colour that a name asks for, on every page: by the number at its end, so that nodes in a row differ, or by a hash. */
function wanted(name: string): number {
  const number = /(\d{1,9})$/.exec(name)?.[1];
  if (number !== undefined) return (Number(number) + SLOTS - 1) % SLOTS;
  let hash = 0x811c9dc5;
  for (const unit of name) hash = Math.imul(hash ^ (unit.codePointAt(0) ?? 0), 0x01000193) >>> 0;
  return hash % SLOTS;
}

/**
 * Gives new names a colour each, in their order, and keeps those that were given. A name whose colour is taken gets the next
 * free one; once none is free, two names have the same.
 */
export function withSlots(given: ReadonlyMap<string, number>, names: readonly string[]): ReadonlyMap<string, number> {
  const next = new Map(given);
  for (const name of [...names].sort()) {
    if (next.has(name)) continue;
    const taken = new Set(next.values());
    const slots = Array.from({ length: SLOTS }, (_, step) => (wanted(name) + step) % SLOTS);
    next.set(name, slots.find((slot) => !taken.has(slot)) ?? wanted(name));
  }
  return next;
}

/** Returns a colour; undefined for a name without one. */
export function hueAt(slot: number | undefined): Hue | undefined {
  return slot === undefined ? undefined : { index: slot % HUES, turn: Math.floor(slot / HUES) };
}

/** Classes that give a part a colour. Hues repeat with a pattern; a node that is not there any more is grey and hollow, as no other node is. */
export function hueClass(hue: Hue | undefined): string {
  if (!hue) return "of-none";
  const pattern = hue.turn === 0 ? "" : ` turn-${hue.turn % 2 === 1 ? 1 : 2}`;
  return `of-${hue.index}${pattern}`;
}

/** Class that gives a part the colour of another node as its second one. */
export function secondClass(hue: Hue | undefined): string {
  return hue ? `to-${hue.index}` : "to-none";
}
