import type { TidegateError } from './error.js';
import type { WireContent, WirePage, WireSettings } from './wire.js';

/** Content of a message: text, bytes or a JSON value (SPEC section 5). Other fields are passed on unchanged. */
export interface Content {
  text?: string;
  data?: Uint8Array;
  /** JSON value, not `null`; may be there together with `text` or `data`. */
  json?: unknown;
  /** Kind of `json` or `data`. */
  type?: string;
  /** Seq of a message of the same conversation. */
  replyTo?: number;
  /** Users, and `*` for all. */
  mentions?: string[];
  [field: string]: unknown;
}

/** Receiver of a message: a user id, a conversation key (with a colon), or one of them by name. */
export type To = string | { user: string } | { conversation: string };

export interface Target {
  toUser?: string;
  conversation?: string;
}

/** Outcome of a send: the message is durable and has its permanent place. */
export interface Sent {
  conversation: string;
  msgId: string;
  seq: number;
  time: number;
  /** An earlier attempt had been accepted. */
  duplicate: boolean;
}

/** Outcome of a recall or an edit, which has a place of its own. */
export interface Changed {
  seq: number;
  /** It had been carried out before. */
  duplicate: boolean;
}

export interface SendOptions {
  /** Id of the message instead of a random one. Such a message is outside the chain. */
  msgId?: string;
  /** `false`: outside the chain, so it does not wait for earlier messages. */
  chain?: boolean;
  /** W3C trace context. */
  traceparent?: string;
  /** Sum of 1 (transient: not stored), 2 (silent: not counted as unread) and 4 (no notice of push providers). Not for rooms. */
  flags?: number;
}

export interface Message {
  conversation: string;
  seq: number;
  sender: string;
  msgId: string;
  time: number;
  content: Content;
  /** Seq of the newest edit that `content` has, if there was one. */
  edit?: number | undefined;
  /** The conversation is a live room: `seq` neither orders nor counts. */
  room: boolean;
  /** As in `SendOptions`; 65536: a hook that should have decided about it did not answer. */
  flags?: number | undefined;
}

export type Change = 'CREATED' | 'JOINED' | 'LEFT' | 'KICKED' | 'ROLE' | 'SETTINGS' | 'DELETED' | 'MUTED' | 'UNMUTED';

export interface GroupChange {
  conversation: string;
  seq: number;
  sender: string;
  time: number;
  change: Change;
  users: string[];
  role?: string | undefined;
  settings?: Record<string, string> | undefined;
}

export interface Recall {
  conversation: string;
  /** Seq of the recall itself. */
  seq: number;
  sender: string;
  time: number;
  /** Seq of the message whose content is to be discarded. */
  recalled: number;
}

export interface Edit {
  conversation: string;
  /** Seq of the edit itself. */
  seq: number;
  sender: string;
  time: number;
  /** Seq of the message whose content is replaced. */
  edited: number;
  /** In a history that of the newest edit, and empty where it was too large for the page: pull the message. */
  content: Content;
}

/** What is pushed, and an entry of a history. */
export type PushEntry =
  | ({ kind: 'message' } & Message)
  | ({ kind: 'change' } & GroupChange)
  | ({ kind: 'recall' } & Recall)
  | ({ kind: 'edit' } & Edit);

/** One place of a history. `recalled` has lost its content; `expired` is a range that is not available. */
export type Entry =
  | PushEntry
  | { kind: 'recalled'; conversation: string; seq: number }
  | { kind: 'expired'; conversation: string; seq: number; last: number };

export interface History {
  conversation: string;
  /** Ascending by seq. */
  entries: Entry[];
  /** First and last seq that the page covers; 0 if it is empty. Continue from them. */
  first: number;
  last: number;
  /** Highest seq that exists for the user. */
  completeTo: number;
  /** Nothing follows in the direction that was asked for. */
  complete: boolean;
}

/** Which part of a history; without a choice the newest. The choices exclude each other. */
export interface HistoryOptions {
  before?: number;
  after?: number;
  around?: number;
  /** First entry not before this time, in ms since 1970, and what follows. */
  time?: number;
  seqs?: number[];
  limit?: number;
}

export interface PullOptions {
  cursor?: number;
  direction?: 'DIRECTION_FORWARD' | 'DIRECTION_BACKWARD' | 'DIRECTION_AROUND';
  limit?: number;
  seqs?: number[];
  time?: number;
}

export interface Conversation {
  conversation: string;
  maxSeq: number;
  minSeq: number;
  readSeq: number;
  /** Other users' messages above `readSeq`. */
  unread: number;
  /** Newest message or change that can be shown, with its newest content, as far as it is known. */
  last?: Entry;
  clearedSeq: number;
  hidden: number[];
}

export interface State {
  name: 'connecting' | 'live' | 'waiting' | 'offline' | 'closed';
  /** Time of the next attempt by `Date.now()`, when waiting. */
  retryAt?: number | undefined;
  /** Why the last connection ended, if the node said so, or why the last one could not be made. */
  error?: TidegateError | undefined;
  node?: string | undefined;
  session?: string | undefined;
  user?: string | undefined;
}

/** Claims of a token that the client reads. */
export interface Claims {
  sub?: string;
  exp?: number;
}

export interface Signal {
  conversation: string;
  sender: string;
  kind: string;
  content?: Content | undefined;
}

export interface Notice {
  kind: string;
  expected?: string;
  msgId?: string;
  conversation?: string;
  message?: string;
  count?: number;
  threshold?: number;
  windowMs?: number;
  since?: number;
  action?: string;
  intervalMs?: number;
}

export interface GoAway {
  afterMs: number;
  windowMs: number;
  alternates: string[];
  reason: string;
}

/** Numbers of a live room; absent ones are 0 or unchanged. */
export interface RoomStats {
  room: string;
  /** Messages that were left out because the room is over its rate. */
  leftOut?: number;
  /** Connections in the room on all nodes, if they are counted and the number has changed. */
  members?: number;
  /** Reactions by kind: those since the last frame, and all that the node knows of. */
  reactions?: { kind: string; sum?: number; total?: number }[];
}

/** Who of a watched conversation is online. */
export interface Presence {
  conversation: string;
  /** All that are online, sorted; the user as well. `undefined` when that is no longer known: the client is not live, or the watch has ended. */
  online: string[] | undefined;
}

/** Events and their values. */
export interface Events {
  state: State;
  /** A message of another user or device: once, in the order of its conversation. */
  message: Message;
  /** A message of this client, in the order of its conversation. */
  sent: Message;
  /** The node has answered a send of this client. */
  accepted: Sent;
  /** A send ended with a lasting error. */
  failed: { msgId: string; to: Target; content: Content; error: TidegateError };
  change: GroupChange;
  recall: Recall;
  /** The content of a message was replaced. */
  edit: Edit;
  receipt: { conversation: string; seq: number };
  cleared: { conversation: string; seq: number };
  hidden: { conversation: string; seqs: number[] };
  signal: Signal;
  shed: { room: string; count: number };
  /** Members and reactions of a live room, and the number of messages left out of it. */
  roomStats: RoomStats;
  /** Each change of who of a watched conversation is online. */
  presence: Presence;
  /** Entries that can't be had, because the user is no longer a member. */
  gap: { conversation: string; first: number; last: number };
  /** The state of a conversation has changed. */
  conversation: Conversation;
  /** A sync after a login is complete. */
  synced: { unread: number };
  /** The token of the connection was replaced, or could not be for the reason `error`; the connection goes on either way. */
  refresh: { error?: TidegateError | undefined };
  notice: Notice;
  goAway: GoAway;
}

export type EventName = keyof Events;

/** An unanswered message, as an outbox stores it. */
export interface OutboxItem {
  msgId: string;
  /** Place in the order of the outbox. */
  at: number;
  to: Target;
  content: WireContent;
  chained: boolean;
  /** Room whose messages keep the order in which they were written. */
  room?: string | undefined;
  /** Id that the next chained message will have. */
  tail?: string | undefined;
  traceparent?: string | undefined;
  flags?: number | undefined;
}

/** What a storage holds. */
export interface Stored {
  /** Unanswered messages in the order of their `at`. */
  items: OutboxItem[];
  /** Positions of the conversations; `undefined` before the first sync of the device. */
  positions: Record<string, number> | undefined;
  /** `tail` of the last item that was put and had one. */
  tail: string | undefined;
}

/** Storage for the outbox and for the positions of conversations. Failures are ignored: the client goes on in memory, and stores no positions if `load` failed. */
export interface OutboxStore {
  load(): Promise<Stored>;
  /** Stores an item, and its `tail` apart from it: the tail stays when the item is removed. */
  put(item: OutboxItem): Promise<void>;
  remove(msgId: string): Promise<void>;
  /** Stores positions that have changed; the key '' stands for the device itself. */
  savePositions(changed: Record<string, number>): Promise<void>;
}

/** The part of a WebSocket that the client uses. */
export interface WebSocketLike {
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  send(data: string): void;
  close(): void;
}

export interface Options {
  /**
   * Addresses of nodes, best first: `ws://`, `wss://`, in Node also `tcp://` and `tls://`. The array is read at each
   * attempt without `assign`, so addresses that are pushed to it later are tried as well.
   */
  addresses?: readonly string[];
  /** Base URL of `GET /v1/assign` on any client port, such as `https://chat.example`. */
  assign?: string;
  /** Zone of the client, for `assign`. */
  zone?: string;
  /**
   * Whether a browser sends cookies with the request to `assign`, as in `fetch`. `include` also sends them to another
   * origin, which a login by cookie through the hook `login` needs. Default: `same-origin`.
   */
  credentials?: 'omit' | 'same-origin' | 'include';
  /** Token, or a function that returns a fresh one: before each login, and while connected before the present one ends. */
  token: string | (() => string | Promise<string>);
  /** Name of the device; the same one across restarts. */
  device?: string;
  /** User of the token; by default its claim `sub`. */
  user?: string;
  /** Whether sends keep the order in which they were written; true by default. */
  chain?: boolean;
  outbox?: 'memory' | 'indexeddb' | OutboxStore;
  /** `shared`: the tabs of an origin share one connection; `own`: each tab is a device. Default: `single`. */
  tabs?: 'single' | 'shared' | 'own';
  /** Where a device without positions begins: at what is new, or at the start of each conversation. */
  from?: 'now' | 'start';
  /** Last seq that the application has of each conversation. */
  positions?: Readonly<Record<string, number>>;
  /** Settings of the user, SPEC section 3. */
  settings?: Omit<WireSettings, 'chain'>;
  /** Creates the socket for an address instead of the platform's WebSocket. */
  webSocket?: (url: string, protocols: string[]) => WebSocketLike;
  /** Source of randomness for waits, uniform in [0, 1). */
  random?: () => number;
}

export type Page = WirePage;
