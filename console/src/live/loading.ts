import { signal } from "@preact/signals";

/** Requests under way whose answer the page has not seen before: what is shown is not complete yet. */
export const pending = signal(0);

/** Addresses that were answered; few enough to keep. */
const answered = new Set<string>();
const KEEP = 500;

/** Counts a request as pending until it ends, unless the same one was answered before: repeated reads show old values meanwhile. */
export async function firstTime<T>(path: string, request: () => Promise<T>): Promise<T> {
  if (answered.has(path)) return request();
  pending.value += 1;
  try {
    return await request();
  } finally {
    pending.value -= 1;
    if (answered.size >= KEEP) answered.clear();
    answered.add(path);
  }
}
