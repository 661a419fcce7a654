/** What the two say to each other while something is broken. */
export const STORY: readonly (readonly [string, string])[] = [
  ["Can you bring the blue folder?", "Sure."],
  ["And the charger.", "Which pier?"],
  ["Pier 4, by the stairs.", "Good."],
  ["The ferry is on time.", "I take the 12:30."],
  ["Left at the yellow crane.", "On my way."],
  ["Blue door, ring twice.", "Got it."],
  ["The rain has stopped.", "At last."],
  ["Walk past the first kiosk.", "I see it."],
];

/** Message that alice's composer begins with. */
export const FIRST = "hello";
