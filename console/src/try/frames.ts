/** A frame of the protocol in its JSON form: its kind, its fields and the id that joins request and answer. */
export interface Frame {
  readonly id: number;
  readonly kind: string;
  readonly body: Record<string, unknown>;
  /** The frame as it went over the wire. */
  readonly raw: string;
}

/** Reads a frame; undefined for an empty frame, which is a sign of life. */
export function parseFrame(raw: string): Frame | undefined {
  if (raw.trim() === "") return undefined;
  const all = JSON.parse(raw) as Record<string, unknown>;
  const kind = Object.keys(all).find((key) => key !== "id");
  if (!kind) return undefined;
  return { id: Number(all["id"] ?? 0), kind, body: (all[kind] ?? {}) as Record<string, unknown>, raw };
}

/** Returns a field as text, empty if it is absent. */
export function text(body: Record<string, unknown>, name: string): string {
  const value = body[name];
  return typeof value === "string" ? value : "";
}

/** Returns a field as a number, 0 if it is absent. */
export function number(body: Record<string, unknown>, name: string): number {
  return Number(body[name] ?? 0);
}

/** Returns the text of a message's content. */
export function contentText(body: Record<string, unknown>): string {
  const content = body["content"] as Record<string, unknown> | undefined;
  return content ? text(content, "text") : "";
}

/** Hash of a content (FNV-1a), which the recording has in place of the content. */
export function hash(value: string): number {
  let state = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(value)) state = Math.imul(state ^ byte, 0x01000193) >>> 0;
  return state;
}

/** Key of the conversation of two users. */
export function direct(a: string, b: string): string {
  return a < b ? `d:${a}:${b}` : `d:${b}:${a}`;
}
