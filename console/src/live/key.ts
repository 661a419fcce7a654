import { signal } from "@preact/signals";

/** The key of the admin port, as long as the page lives; it is stored nowhere. */
let key = "";

/** Whether the node asks for a key, and whether it refused the one that was given. */
export const keyAsked = signal<"" | "missing" | "refused">("");

/** Uses a key from now on. */
export function setKey(value: string): void {
  key = value;
  keyAsked.value = "";
}

/** Notes that the node answered without accepting a key. */
export function keyRefused(): void {
  keyAsked.value = key ? "refused" : "missing";
}

/** Header of a request that carries the key. */
export function keyHeader(): Record<string, string> {
  return key ? { authorization: `Bearer ${key}` } : {};
}
