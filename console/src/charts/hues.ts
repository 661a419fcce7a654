/** Colour of a node: one of three hues, and how often the hues have repeated before it. */
export interface Hue {
  readonly index: number;
  readonly turn: number;
}

/** Hues of nodes. */
const HUES = 3;

/** Returns the colour of a node by its place among the names; undefined for a name that is none of them. */
export function hueOf(names: readonly string[], node: string): Hue | undefined {
  const place = names.indexOf(node);
  return place < 0 ? undefined : { index: place % HUES, turn: Math.floor(place / HUES) };
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
