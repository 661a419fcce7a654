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

/** Uses a key if the node takes it. It is asked once, because each refused request counts and a view would send several. */
export async function tryKey(value: string): Promise<void> {
  const answer = await fetch("/v1/key", { headers: { authorization: `Bearer ${value}` } }).catch(() => undefined);
  // A valid key is never limited, so 429 is a refusal too.
  if (answer?.status === 401 || answer?.status === 429) keyAsked.value = "refused";
  else setKey(value);
}

/**
 * Notes that the node refused a request with this header. A refused key is not sent again, because each try counts, and a late
 * answer to an older key says nothing of the present one.
 */
export function keyRefused(sent: Record<string, string>): void {
  if (sent["authorization"] !== keyHeader()["authorization"]) return;
  if (key) keyAsked.value = "refused";
  else if (!keyAsked.value) keyAsked.value = "missing";
  key = "";
}

/** Header of a request that carries the key. */
export function keyHeader(): Record<string, string> {
  return key ? { authorization: `Bearer ${key}` } : {};
}
