import { contentText, number, text, type Frame } from "../try/frames.ts";
import { capital, duration, fine, seqs, short } from "./numbers.ts";

/** A frame in words. */
export interface FrameWords {
  readonly name: string;
  readonly words: string;
  readonly tone: "" | "amber" | "red";
  /** Whether the frame confirms something that is written and synced. */
  readonly synced: boolean;
}

/** What the words need to know about messages. */
export interface Known {
  /** Milliseconds from receipt to sync of a message, once the node's trace was read. */
  syncMs(msgId: string): number | undefined;
  /** Whether the node stores messages on disk. */
  readonly durable: boolean;
  readonly device: string;
  readonly node: string;
  /** The conversation that the page shows. */
  readonly conv: string;
}

const HIDDEN = new Set(["ping", "pong", "done", "signal", "nextIdIs", "nextId", "receipt"]);

function pageSeqs(body: Record<string, unknown>): number[] {
  const messages = body["messages"];
  return Array.isArray(messages) ? messages.map((it) => Number((it as { seq?: unknown }).seq)) : [];
}

const MEMBER: Readonly<Record<string, string>> = {
  MEMBER_CHANGE_JOINED: "joined", MEMBER_CHANGE_LEFT: "left", MEMBER_CHANGE_KICKED: "removed",
};

/** Describes a frame of a person's link; undefined for frames that would only be noise. */
export function describe(frame: Frame, direction: "in" | "out", person: string, known: Known): FrameWords | undefined {
  const { kind, body } = frame;
  if (HIDDEN.has(kind)) return undefined;
  const say = (words: string, tone: FrameWords["tone"] = "", synced = false, name = kind): FrameWords => ({ name, words, tone, synced });
  switch (kind) {
    case "hello":
      return say(`${person}’s ${known.device}`);
    case "welcome":
      return say(`session on ${text(body, "node") || known.node}`);
    case "send":
      return say(`${contentText(body)}${number(body, "attempt") > 0 ? " (again)" : ""}`);
    case "sendAck": {
      const ms = known.syncMs(text(body, "msgId"));
      const room = text(body, "conversation").startsWith("r:");
      const same = body["duplicate"] === true ? ", duplicate" : ms !== undefined && !room ? `, synced in ${fine(ms)}` : "";
      return say(`${room ? "passed on" : number(body, "seq")}${same}`, "", known.durable && !room);
    }
    case "error":
      return say(`${number(body, "code")} ${text(body, "name")}`, body["temporary"] === true ? "amber" : "red");
    case "push": {
      if (body["event"]) {
        const event = body["event"] as Record<string, unknown>;
        const users = Array.isArray(event["users"]) ? event["users"].join(", ") : "";
        const change = text(event, "change");
        return say(change === "MEMBER_CHANGE_CREATED" ? `${number(body, "seq")}, group created` : `${number(body, "seq")}, ${users} ${MEMBER[change] ?? "changed"}`);
      }
      return say(text(body, "conversation").startsWith("r:") ? contentText(body) : `seq ${number(body, "seq")}`);
    }
    case "ack":
      return say(`has all up to ${number(body, "seq")}`);
    case "read":
      return say(`everything up to ${number(body, "seq")}`);
    case "sync":
      return say(direction === "out" ? "what is new?" : "");
    case "conversationState":
      // The rows of older groups of these people would only hide those of this conversation.
      return text(body, "conversation") === known.conv ? say(`there is up to ${number(body, "maxSeq")}`, "", false, "state") : undefined;
    case "syncEnd":
      return say("that was all");
    case "pull":
      return say(number(body, "cursor") > 0 ? `what follows ${number(body, "cursor")}` : "the history");
    case "page":
      return say(pageSeqs(body).length > 0 ? seqs(pageSeqs(body)) : "nothing");
    case "behind":
      return say(`there is more, up to ${number(body, "maxSeq")}`, "amber");
    case "shed":
      return say(`${number(body, "count")} dropped`, "amber");
    case "notice": {
      const notice = text(body, "kind");
      const id = short(text(body, "expected"));
      if (notice === "NOTICE_KIND_ORDER_BLOCKED") return say(`blocked: where is ${id}?`, "amber");
      if (notice === "NOTICE_KIND_ORDER_SKIPPED") return say(`${id} given up`, "amber");
      return say(notice.replace("NOTICE_KIND_", "").toLowerCase().replaceAll("_", " "), "amber");
    }
    case "goAway": {
      const after = number(body, "afterMs") + number(body, "windowMs");
      return say(`leave within ${duration(after)}`, "amber");
    }
    case "close":
      return say(text(body, "name") || capital("ended"), text(body, "name") === "BYE" || text(body, "name") === "REPLACED" ? "" : "red");
    case "bye":
      return say("goodbye");
    case "join":
      return say(text(body, "room"));
    case "leave":
      return say(text(body, "room") || text(body, "conversation"));
    default:
      return say("");
  }
}
