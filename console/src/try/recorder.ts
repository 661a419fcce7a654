import { contentText, direct, hash, number, text, type Frame } from "./frames.ts";
import type { HistoryEvent, Received, Stamped } from "./history.ts";

interface Link {
  readonly user: string;
  readonly device: string;
  /** Sends without an answer, by the id of their frame. */
  readonly open: Map<number, string>;
  readonly joins: Map<number, string>;
  readonly highest: Map<string, number>;
  node: string;
  code: number;
}

/** The conversation key of a live room, which frames may name without its kind. */
function roomKey(room: string): string {
  return room.startsWith("r:") ? room : `r:${room}`;
}

/**
 * Writes what the links of the page carry as a history for the checker. Only messages that were first sent by this page
 * are recorded: what others send to the same users is counted as `foreign`.
 */
export class Recorder {
  readonly events: Stamped[] = [];
  /** Messages of the recording, with their sender, device, conversation and hash. */
  readonly sends = new Map<string, { user: string; device: string; conv: string; body: number }>();
  /** Seqs of messages that somebody else sent. */
  readonly foreign = new Map<number, string>();
  /** Messages that are hidden from a person by a planted fault. */
  readonly hidden = new Set<string>();
  private readonly links = new Map<number, Link>();

  /** Begins the record of a connection. */
  opened(session: number, user: string, device: string): void {
    this.links.set(session, { user, device, open: new Map(), joins: new Map(), highest: new Map(), node: "", code: 0 });
  }

  /** Records the end of a connection. */
  closed(session: number, at: number): void {
    const link = this.links.get(session);
    if (!link) return;
    this.links.delete(session);
    for (const cid of link.open.values()) this.push(at, { send_info: { cid } });
    if (link.node) this.push(at, { close: { session, code: link.code } });
  }

  /** Records a frame. */
  frame(session: number, direction: "in" | "out", frame: Frame, at: number): void {
    const link = this.links.get(session);
    if (!link) return;
    if (direction === "out") this.outgoing(session, link, frame, at);
    else this.incoming(session, link, frame, at);
  }

  /** Records that a message reached a person's screen. */
  shown(session: number, user: string, device: string, it: { conversation: string; seq: number; msgId: string; text: string }, at: number): void {
    if (!this.sends.has(it.msgId) || this.hidden.has(`${user} ${it.msgId}`)) return;
    const recv: Received = { user, device, session, conv: it.conversation, seq: it.seq, cid: it.msgId, body: hash(it.text), via: "app" };
    this.push(at, { recv });
  }

  /** Adds an event. */
  push(at: number, event: HistoryEvent): void {
    this.events.push({ at: Math.round(at * 1e6), ...event });
  }

  private outgoing(session: number, { user, device, open, joins }: Link, { id, kind, body }: Frame, at: number): void {
    if (kind === "join") joins.set(id, roomKey(text(body, "room")));
    if (kind !== "send") return;
    const cid = text(body, "msgId");
    const to = text(body, "toUser");
    const conv = to ? direct(user, to) : text(body, "conversation");
    const it = { user, device, conv, body: hash(contentText(body)) };
    if (!this.sends.has(cid)) this.sends.set(cid, it);
    open.set(id, cid);
    this.push(at, { send_inv: { ...it, session, cid, attempt: number(body, "attempt"), chained: text(body, "nextId") !== "" } });
  }

  private incoming(session: number, link: Link, { id, kind, body }: Frame, at: number): void {
    const conv = text(body, "conversation");
    switch (kind) {
      case "welcome":
        link.node = text(body, "node");
        return this.push(at, { open: { user: link.user, device: link.device, session } });
      case "sendAck": {
        const cid = text(body, "msgId");
        link.open.delete(id);
        if (this.sends.has(cid)) this.push(at, { send_ok: { cid, seq: number(body, "seq"), duplicate: body["duplicate"] === true } });
        return;
      }
      case "error": {
        const cid = link.open.get(id);
        if (cid === undefined) return;
        link.open.delete(id);
        return this.push(at, body["temporary"] === true ? { send_info: { cid } } : { send_fail: { cid, code: number(body, "code") } });
      }
      case "push":
        link.highest.set(conv, Math.max(number(body, "seq"), link.highest.get(conv) ?? 0));
        return this.received(session, link, conv, body, "push", at);
      case "page": {
        const messages = Array.isArray(body["messages"]) ? (body["messages"] as Record<string, unknown>[]) : [];
        for (const message of messages) this.received(session, link, conv, message, "pull", at);
        return;
      }
      case "behind":
        return this.push(at, { gap: { session, conv, first: (link.highest.get(conv) ?? 0) + 1, last: number(body, "maxSeq") } });
      case "shed":
        return this.push(at, { shed: { session, conv: roomKey(text(body, "room")), count: number(body, "count") } });
      case "done": {
        const room = link.joins.get(id);
        if (room !== undefined) this.push(at, { joined: { session, conv: room, node: link.node } });
        return;
      }
      case "close":
        link.code = number(body, "code");
    }
  }

  private received(session: number, { user, device }: Link, conv: string, message: Record<string, unknown>, via: "push" | "pull", at: number): void {
    const seq = number(message, "seq");
    const recv = { user, device, session, conv: text(message, "conversation") || conv, seq, via };
    if (message["event"]) return this.push(at, { recv: { ...recv, cid: null, body: 0 } });
    const cid = text(message, "msgId");
    if (message["recall"] || !cid) return;
    if (!this.sends.has(cid)) return void this.foreign.set(seq, cid);
    if (this.hidden.has(`${user} ${cid}`)) return;
    this.push(at, { recv: { ...recv, cid, body: hash(contentText(message)) } });
  }
}
