import { signal } from "@preact/signals";
import { ApiError } from "./api.ts";
import { noteAsked } from "./asked.ts";
import { EVENTS_MAX, EventList, type CloudEvent } from "./cloudevents.ts";
import { lines } from "./events.ts";

/** Types of the feed by the name of the filter that asks for them. */
export const FEED_TYPES: Readonly<Record<string, string>> = {
  "": "tidegate.*",
  messages: "tidegate.message.accepted",
  changes: "tidegate.message.edited,tidegate.message.recalled,tidegate.message.pruned",
  groups: "tidegate.group.*,tidegate.member.*",
  cluster: "tidegate.node.*,tidegate.partition.*",
};

/** The feed of all nodes, from when the page began to follow it. */
export const ofAll = new EventList();

/** Why the feed could not be followed the last time. */
export const feedFailure = signal<ApiError | undefined>(undefined);

/** Whether the node sends the feed. */
export const isFollowed = signal(false);

/** Numbers of partitions that the feed no longer had. */
export const hasGap = signal(false);

/** Time between two attempts, and between two changes of the page: a busy cluster accepts thousands of messages a second. */
const AGAIN_MS = 2000;
const DRAWN_MS = 250;

/** Path of the feed of some types. */
export function feedPath(kind: string): string {
  return `/v1/events/stream?types=${encodeURIComponent(FEED_TYPES[kind] ?? "tidegate.*")}`;
}

/** Whether an event of the feed is of a user or of its conversation, of which a part of the name is enough. */
export function isAbout({ subject, data }: CloudEvent, text: string): boolean {
  const { sender, by, users } = data as { sender?: unknown; by?: unknown; users?: unknown };
  return [subject, sender, by, ...(Array.isArray(users) ? users : [])].some((it) => typeof it === "string" && it.includes(text));
}

/** Follows the feed of some types until the returned function is called; begins with an empty list. */
export function followFeed(kind: string): () => void {
  const stop = new AbortController();
  const path = feedPath(kind);
  let waiting: CloudEvent[] = [];
  ofAll.clear();
  [isFollowed.value, hasGap.value, feedFailure.value] = [false, false, undefined];
  noteAsked(path);
  const timer = setInterval(() => {
    const events = waiting;
    waiting = [];
    ofAll.add(events);
  }, DRAWN_MS);
  const follow = async () => {
    while (!stop.signal.aborted) {
      try {
        for await (const { event, data } of lines(path, stop.signal, () => {
          isFollowed.value = true;
          feedFailure.value = undefined;
        })) {
          if (event === "gap") hasGap.value = true;
          else if (event.startsWith("tidegate.")) {
            waiting.push(JSON.parse(data) as CloudEvent);
            // A hidden page draws nothing for a while.
            if (waiting.length > 2 * EVENTS_MAX) waiting = waiting.slice(-EVENTS_MAX);
          }
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        feedFailure.value = error instanceof ApiError ? error : new ApiError(0, "No answer", "The stream of events ended.", "The page tries again by itself.", true);
      }
      isFollowed.value = false;
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  };
  void follow();
  return () => {
    stop.abort();
    clearInterval(timer);
  };
}
