import { request } from "./api.ts";

/** One event of a stream of server-sent events. */
export interface StreamEvent {
  readonly event: string;
  readonly data: string;
}

/** Splits text into events; the rest is what follows the last complete one. */
export function split(text: string): { readonly events: StreamEvent[]; readonly rest: string } {
  const blocks = text.replaceAll("\r\n", "\n").split("\n\n");
  const rest = blocks.pop() ?? "";
  const events = [];
  for (const block of blocks) {
    let event = "message";
    const data: string[] = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("event:")) event = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).trim());
    }
    if (data.length > 0) events.push({ event, data: data.join("\n") });
  }
  return { events, rest };
}

/** Reads a stream of server-sent events by `fetch`, because `EventSource` can't carry a key; `opened` is called once it is there. */
export async function* lines(path: string, signal: AbortSignal, opened = () => {}): AsyncGenerator<StreamEvent> {
  const { body } = await request(path, { signal, headers: { accept: "text/event-stream" } });
  if (!body) return;
  opened();
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const { events, rest } = split(text + value);
    text = rest;
    yield* events;
  }
}
