/** What people say to each other while something is broken: for each line one of the first person, and one of the others. */
export const STORY: readonly (readonly [string, string])[] = [
  ["Can you bring the blue folder?", "Sure."],
  ["And the charger.", "Which pier?"],
  ["Pier 4, by the stairs.", "Good."],
  ["The ferry is on time.", "I take the 12:30."],
  ["Left at the yellow crane.", "On my way."],
  ["Blue door, ring twice.", "Got it."],
  ["The rain has stopped.", "At last."],
  ["Walk past the first kiosk.", "I see it."],
  ["Two seats are left.", "Keep one for me."],
  ["The gate opens at noon.", "Then I have time."],
  ["Somebody found your umbrella.", "The green one?"],
  ["Bring some bread, too.", "Two loaves?"],
];

/** Messages before a line within which its text is not said again. */
const APART = 8;

/** Returns the next line of a person, `told` being how many were said so far: it is none of the last texts, whoever said them. */
export function nextLine(told: number, index: 0 | 1, texts: readonly string[]): string {
  const recent = new Set(texts.slice(-APART));
  const lines = STORY.map((_, step) => STORY[(told + step) % STORY.length]?.[index] ?? "");
  return lines.find((line) => !recent.has(line)) ?? "";
}

/** Message that alice's composer begins with. */
export const FIRST = "hello";
