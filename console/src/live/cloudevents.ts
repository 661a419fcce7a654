import { signal } from "@preact/signals";
import { ApiError, get } from "./api.ts";
import { noteAsked } from "./asked.ts";

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

/** Events that a list keeps. */
export const EVENTS_MAX = 4096;

/** A list of events, the newest first, that can stand still while further ones wait. */
export class EventList {
  readonly list = signal<readonly CloudEvent[]>([]);
  readonly isPaused = signal(false);
  /** How many events wait. */
  readonly heldBack = signal(0);
  private held: readonly CloudEvent[] = [];

  /** Adds events, the oldest first; those that the list has already are dropped. */
  add(events: readonly CloudEvent[]): void {
    if (this.isPaused.value) {
      this.held = [...this.held, ...events].slice(-EVENTS_MAX);
      this.heldBack.value = this.held.length;
    } else if (events.length > 0) {
      const known = new Set(this.list.value.slice(0, 500).map((it) => it.id));
      this.list.value = [...events.filter((it) => !known.has(it.id)).reverse(), ...this.list.value].slice(0, EVENTS_MAX);
    }
  }

  /** Lets the list stand still, or go on with what has waited. */
  readonly toggle = (): void => {
    this.isPaused.value = !this.isPaused.value;
    const waiting = this.held;
    this.held = [];
    this.heldBack.value = 0;
    if (!this.isPaused.value) this.add(waiting);
  };

  /** Removes all events. */
  clear(): void {
    this.held = [];
    this.heldBack.value = 0;
    this.list.value = [];
  }
}

/** Events of this node. */
export const ofNode = new EventList();

/** Events of this node, the newest first. */
export const list = ofNode.list;

/** Why the events could not be read the last time. */
export const failure = signal<ApiError | undefined>(undefined);

/** Whether events were missed, because the page had not asked for longer than the node keeps them. */
export const missed = signal(false);

/** Whether the node has answered. */
export const isRead = signal(false);

let cursor = "";
let users = 0;
let stop: AbortController | undefined;

async function follow(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    try {
      // The first answer comes at once, so that an empty list is known to be empty.
      const it = await get<Answer>(cursor ? `/v1/events?wait_ms=20000&after=${encodeURIComponent(cursor)}` : "/v1/events", signal);
      missed.value ||= it.missed && cursor !== "";
      cursor = it.cursor;
      isRead.value = true;
      failure.value = undefined;
      ofNode.add(it.events);
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
  noteAsked("/v1/events");
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
