import { post } from "./api.ts";

/** An endpoint of webhooks as `GET /v1/webhooks` lists it, and as `GET /v1/webhooks/{webhook}` has it with its progress. */
export interface Webhook {
  readonly id: string;
  readonly url: string;
  readonly types: readonly string[];
  readonly conversations?: readonly string[];
  readonly users?: readonly string[];
  readonly content?: boolean;
  /** `active`, `failing`, `paused`, `disabled`, `unusable` or `starting`. */
  readonly state: string;
  readonly error?: string | null;
  readonly node: string;
  readonly behind?: number;
  readonly lagMs?: number;
  readonly parked?: readonly { readonly conversation: string; readonly seq: number; readonly tries: number }[];
  readonly parkedCount?: number;
  readonly asideCount?: number;
}

/** Endpoints that a node knows. */
export interface WebhookList {
  readonly node: string;
  readonly webhooks: readonly Webhook[];
}

/** An event that was set aside. */
export interface AsideEvent {
  readonly conversation: string;
  readonly seq: number;
  readonly tries: number;
}

/** A page of events that were set aside. */
export interface AsidePage {
  readonly events: readonly AsideEvent[];
  readonly count: number;
}

/** What an endpoint answered. */
export interface Answered {
  readonly taken: boolean;
  readonly status?: number | null;
  readonly error?: string | null;
}

/** Path of an endpoint, or of a part of it. */
export function webhookPath(id: string, part = ""): string {
  return `/v1/webhooks/${encodeURIComponent(id)}${part}`;
}

/** Path of an event that was set aside. */
export function asidePath(id: string, event: AsideEvent): string {
  return webhookPath(id, `/aside/${encodeURIComponent(event.conversation)}/${event.seq}`);
}

/** Stops or continues the deliveries of an endpoint. */
export function setPaused(id: string, isPaused: boolean): Promise<Webhook> {
  return post<Webhook>(webhookPath(id, isPaused ? "/pause" : "/resume"), {});
}

/** Sends an event that says nothing. */
export function testWebhook(id: string): Promise<Answered> {
  return post<Answered>(webhookPath(id, "/test"), {});
}

/** Sends an event that was set aside. */
export function resend(id: string, event: AsideEvent): Promise<Answered> {
  return post<Answered>(`${asidePath(id, event)}/resend`, {});
}
