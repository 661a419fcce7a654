// Frames of the protocol in their JSON form (protocol/SPEC.md, section 2). Default values are omitted on the wire.
import type { RoomStats } from './types.js';

/** Content of a message as it is on the wire: `data` in base64, unknown fields unchanged. */
export interface WireContent {
  text?: string;
  data?: string;
  [field: string]: unknown;
}

export interface WirePush {
  conversation: string;
  seq?: number;
  sender?: string;
  msgId?: string;
  time?: number;
  content?: WireContent;
  event?: { change?: string; users?: string[]; role?: string; settings?: Record<string, string> };
  recall?: { seq?: number };
  edit?: { seq?: number; content?: WireContent };
  edited?: { seq?: number; time?: number };
  flags?: number | undefined;
}

export interface WireError {
  code?: number;
  name?: string | undefined;
  message?: string;
  temporary?: boolean;
  retryAfterMs?: number | undefined;
  detail?: Record<string, string>;
}

export interface WireClose {
  code?: number;
  name?: string;
  reason?: string;
  reconnect?: string;
  afterMs?: number;
}

export interface WireState {
  conversation: string;
  maxSeq?: number;
  minSeq?: number;
  readSeq?: number;
  unread?: number;
  last?: WirePush;
  clearedSeq?: number;
  hidden?: number[];
}

export interface WirePage {
  conversation?: string;
  messages?: WirePush[];
  recalled?: number[];
  expired?: { first?: number; last?: number }[];
  completeTo?: number;
}

export interface WireSettings {
  chain?: boolean;
  ackTimeoutMs?: number;
  ackTries?: number;
  heartbeatMs?: number;
  unread?: 'all' | 'direct' | 'none';
  retention?: 'none' | '1d' | '7d' | '30d' | 'forever';
  search?: 'on' | 'off';
  presence?: 'on' | 'off';
}

export interface WireWelcome {
  session?: string;
  node?: string;
  heartbeatMs?: number;
  limits?: { frameBytesMax?: number; contentBytesMax?: number; holdMax?: number; holdBytesMax?: number; inFlightMax?: number };
  serverTime?: number;
  nextId?: string;
  settings?: WireSettings;
  features?: string[];
}

export interface WireGoAway {
  afterMs?: number;
  windowMs?: number;
  alternates?: string[];
  reason?: string;
}

export interface WirePresence {
  conversation: string;
  online?: string[];
  offline?: string[];
  complete?: boolean;
  ended?: boolean;
}

export interface WirePosition {
  conversation: string;
  seq?: number;
}

/** Frame from the node; kinds that are not listed are ignored. */
export interface ServerFrame {
  id?: number;
  welcome?: WireWelcome;
  sendAck?: { conversation?: string; msgId?: string; seq?: number; time?: number; duplicate?: boolean };
  error?: WireError;
  push?: WirePush;
  pong?: { positions?: WirePosition[]; time?: number };
  nextIdIs?: { nextId?: string };
  behind?: { conversation: string; maxSeq?: number };
  shed?: { room: string; count?: number };
  notice?: { kind?: string; expected?: string; msgId?: string; conversation?: string; message?: string };
  goAway?: WireGoAway;
  ping?: object;
  close?: WireClose;
  page?: WirePage;
  conversationState?: WireState;
  syncEnd?: { unread?: number };
  receipt?: { conversation: string; user?: string; seq?: number };
  cleared?: { conversation: string; seq?: number };
  hidden?: { conversation: string; seqs?: number[] };
  roomStats?: RoomStats;
  presence?: WirePresence;
  signal?: { conversation: string; kind?: string; content?: WireContent; sender?: string };
}

/** Frame from the client. */
export type ClientFrame = { id?: number | undefined } & Record<string, unknown>;
