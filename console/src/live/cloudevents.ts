import { signal } from "@preact/signals";
import { ApiError, get } from "./api.ts";

/** An event of a node, as a CloudEvent. */
export interface CloudEvent {
  readonly id: string;
  readonly type: string;
  readonly subject: string;
  readonly time: string;
  readonly data: Readonly<Record<string, unknown>>;
}

/** Whether an event is about a user, of whom a part of the name is enough; the subject of an audit entry is its caller. */
export function concerns(it: CloudEvent, user: string): boolean {
  if (it.type !== "tidegate.audit") return it.subject.includes(user);
  const { targets = {} } = it.data as { targets?: Record<string, readonly string[]> };
  return Object.values(targets).flat().some((id) => id.includes(user));
}

/** Whether an event is the audit entry of a request that consoles send by themselves, such as for a token. */
export function isOfConsole(it: CloudEvent): boolean {
  const { route } = it.data as { route?: unknown };
  return it.type === "tidegate.audit" && typeof route === "string" && route.startsWith("/v1/dev/");
}

interface Answer {
  readonly node: string;
  readonly cursor: string;
  readonly missed: boolean;
  readonly events: readonly CloudEvent[];
}

/** Events that the page keeps. */
const KEEP = 4096;

/** Events of this node, the newest first. */
export const list = signal<readonly CloudEvent[]>([]);

/** Why the events could not be read the last time. */
export const failure = signal<ApiError | undefined>(undefined);

/** Whether the list stands still, and how many events wait. */
export const pausedEvents = signal(false);
export const heldBack = signal(0);

/** Whether events were missed, because the page had not asked for longer than the node keeps them. */
export const missed = signal(false);

/** Whether the node has answered. */
export const isRead = signal(false);

let held: CloudEvent[] = [];
let cursor = "";
let users = 0;
let stop: AbortController | undefined;

function add(events: readonly CloudEvent[]): void {
  if (pausedEvents.value) {
    held = [...held, ...events].slice(-KEEP);
    heldBack.value = held.length;
  } else if (events.length > 0) {
    const known = new Set(list.value.slice(0, 500).map((it) => it.id));
    list.value = [...events.filter((it) => !known.has(it.id)).reverse(), ...list.value].slice(0, KEEP);
  }
}

/** Lets the list stand still, or go on. */
export function toggleEvents(): void {
  pausedEvents.value = !pausedEvents.value;
  const waiting = held;
  held = [];
  heldBack.value = 0;
  if (!pausedEvents.value) add(waiting);
}

async function follow(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    try {
      // The first answer comes at once, so that an empty list is known to be empty.
      const it = await get<Answer>(cursor ? `/v1/events?wait_ms=20000&after=${encodeURIComponent(cursor)}` : "/v1/events", signal);
      missed.value ||= it.missed && cursor !== "";
      cursor = it.cursor;
      isRead.value = true;
      failure.value = undefined;
      add(it.events);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError) failure.value = error;
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

/** Asks again at once, after a failure. */
export function retryEvents(): void {
  stop?.abort();
  stop = new AbortController();
  void follow(stop.signal);
}

/** Follows the events of this node as long as a view needs them; returns how to end that. */
export function followEvents(): () => void {
  users += 1;
  if (users === 1) {
    stop = new AbortController();
    void follow(stop.signal);
  }
  return () => {
    users -= 1;
    if (users === 0) stop?.abort();
  };
}
