import { contentText, hash, number, text, type Frame } from "./frames.ts";
import type { StoredEntry } from "./history.ts";
import type { Tap } from "./tap.ts";

/** Entries of a page of history at most. */
const LIMIT = 200;

/** Asks for the last seq of a conversation; 0 if it has none. */
export async function lastSeq(tap: Tap, conversation: string): Promise<number> {
  let last = 0;
  await tap.request("pull", { conversation, direction: "DIRECTION_BACKWARD", limit: 1 }, (frame) => {
    if (frame.kind === "page") last = number(frame.body, "completeTo");
    return true;
  });
  return last;
}

/** Pulls the first entry of a history. */
export async function firstEntry(tap: Tap, conversation: string): Promise<StoredEntry | undefined> {
  const entries: StoredEntry[] = [];
  await pullOn(tap, conversation, 0, entries, 1);
  return entries[0];
}

/** Continues the pull of a history behind the entries that are there, to its end or by `count` entries. The client does not see it. */
export async function pullOn(tap: Tap, conversation: string, base: number, entries: StoredEntry[], count = Infinity): Promise<void> {
  for (let isMore = true; isMore; ) {
    isMore = false;
    const cursor = entries.at(-1)?.seq ?? base;
    const take = (frame: Frame) => {
      if (frame.kind !== "page") return true;
      const list = (frame.body["messages"] ?? []) as Record<string, unknown>[];
      for (const it of list) {
        const isMessage = !it["event"] && !it["recall"];
        const event = it["event"] as { change?: string; users?: string[] } | undefined;
        const isJoin = event?.change === "MEMBER_CHANGE_CREATED" || event?.change === "MEMBER_CHANGE_JOINED";
        entries.push({
          seq: number(it, "seq"), sender: text(it, "sender"), cid: isMessage ? text(it, "msgId") : null, body: hash(contentText(it)),
          ...(isJoin ? { joined: event?.users ?? [] } : {}),
        });
      }
      isMore = list.length > 0 && entries.length < count && (entries.at(-1)?.seq ?? 0) < number(frame.body, "completeTo");
      return true;
    };
    await tap.request("pull", { conversation, cursor, direction: "DIRECTION_FORWARD", limit: Math.min(LIMIT, count) }, take);
  }
}
