/** Returns a generator of numbers in [0, 1) that depends on the seed alone (mulberry32). */
export function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Seed of the run: `SEED`, or a fresh one. */
export const baseSeed = Number(process.env.SEED ?? Date.now() % 1_000_000);
