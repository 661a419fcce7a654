const WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];

/** A count in a sentence: words up to twelve, figures above. */
export function count(value: number): string {
  return WORDS[value] ?? grouped(value);
}

const GROUPED = new Intl.NumberFormat("en-GB");

/** A number with its thousands separated. */
export function grouped(value: number): string {
  return GROUPED.format(value);
}

/** A duration for a sentence: `3.2 s`, `18 ms`. */
export function duration(ms: number): string {
  if (ms >= 60_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.max(1, Math.round(ms))} ms`;
}

/** A span of whole seconds or minutes: `45 s`, `5 min`. */
export function span(seconds: number): string {
  return seconds < 60 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}

/** A short duration with one decimal: `0.8 ms`. */
export function fine(ms: number): string {
  return ms >= 10 ? duration(ms) : `${ms.toFixed(1)} ms`;
}

/** A name at the start of a sentence. */
export function capital(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1);
}

/** Seqs in a sentence: `411`, `411 and 412`, `411 to 415`, `411, 413 and 415`. */
export function seqs(list: readonly number[]): string {
  const sorted = [...new Set(list)].sort((a, b) => a - b);
  const [first, last] = [sorted[0], sorted.at(-1)];
  if (first === undefined || last === undefined) return "";
  if (sorted.length > 2 && last - first === sorted.length - 1) return `${first} to ${last}`;
  return joined(sorted.map(String));
}

/** A list in a sentence. */
export function joined(list: readonly string[]): string {
  return list.length < 2 ? (list[0] ?? "") : `${list.slice(0, -1).join(", ")} and ${list.at(-1)}`;
}

/** The end of a long id. */
export function short(id: string): string {
  return id.length > 12 ? `…${id.slice(-5)}` : id;
}

/** A noun with its number. */
export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}
