import type { Engine } from './engine.js';
import { history, pullFor, toWire } from './entries.js';
import { local, type TidegateError } from './error.js';
import type { Request } from './requests.js';
import type { Content, History, HistoryOptions, OutboxItem, PullOptions, SendOptions, Sent, Target } from './types.js';
import type { ServerFrame, WirePage } from './wire.js';

/** Most unanswered messages of an outbox. */
const OUTBOX_MAX = 10_000;
/** Most seqs of one `hide`. */
const HIDE_MAX = 200;

/** Sends a request and returns its answer. */
function ask(engine: Engine, request: Omit<Request, 'done' | 'fail'>): Promise<ServerFrame> {
  return new Promise((resolve, reject) => {
    engine.run((now, session) => session.ask(now, { ...request, done: resolve, fail: reject }));
  });
}

async function send(engine: Engine, [to, content, options, accepted]: [Target, Content, SendOptions, ((item: OutboxItem) => void)?]): Promise<Sent> {
  return new Promise<Sent>((resolve, reject) => {
    const item = engine.run((now, session) => {
      if (session.outbox.size >= OUTBOX_MAX) throw local('OUTBOX_FULL');
      const { chain = true, msgId, traceparent } = options;
      if (msgId && session.outbox.has(msgId)) throw local('BAD_REQUEST', 'A message with this id is unanswered');
      const hold = engine.persistent;
      return session.send(now, to, toWire(content), { chained: chain, msgId, traceparent, hold }, resolve, reject);
    });
    accepted?.(item);
    if (engine.persistent) void engine.stored(item);
  });
}

async function resend(engine: Engine, [item]: [OutboxItem]): Promise<Sent> {
  return new Promise<Sent>((resolve, reject) => {
    engine.run((now, session) => {
      session.outbox.restore(item, resolve, reject);
      session.outbox.pump(now);
    });
  });
}

async function pull(engine: Engine, [conversation, options]: [string, PullOptions]): Promise<WirePage> {
  return (await ask(engine, { body: { pull: { conversation, ...options } }, once: 'notYet' })).page ?? {};
}

async function read(engine: Engine, [conversation, seq]: [string, number?]): Promise<void> {
  const to = engine.run((now, session) => {
    const at = seq ?? session.feed.conversations.get(conversation).maxSeq;
    session.marked(now, 'read', conversation, at);
    return at;
  });
  if (to > 0) await ask(engine, { body: { read: { conversation, seq: to } } });
}

async function leave(engine: Engine, [key]: [string]): Promise<void> {
  if (key.startsWith('r:')) {
    await new Promise((done, fail) => engine.run((now, session) => session.rooms.leave(now, key.slice(2), { done, fail })));
    return;
  }
  await ask(engine, { body: { leave: { conversation: key } }, doneBy: 'NOT_A_MEMBER' });
}

/** Calls of a client, by name. They are what tabs of a shared connection send to the one that has it. */
export const METHODS = {
  send,
  resend,
  pull,
  read,
  leave,
  async history(engine: Engine, [conversation, options]: [string, HistoryOptions]): Promise<History> {
    const page = await pull(engine, [conversation, pullFor(options)]).catch((error: TidegateError) => {
      // There is nothing after the end.
      if (error.name !== 'NOT_YET') throw error;
      return {};
    });
    const found = history(conversation, page, options);
    return found.last === 0 ? { ...found, complete: true } : found;
  },
  async recall(engine: Engine, [conversation, seq]: [string, number]): Promise<{ seq: number; duplicate: boolean }> {
    const { sendAck } = await ask(engine, { body: { recall: { conversation, seq } } });
    return { seq: sendAck?.seq ?? 0, duplicate: sendAck?.duplicate ?? false };
  },
  async clear(engine: Engine, [conversation, seq]: [string, number]): Promise<void> {
    await ask(engine, { body: { clear: { conversation, seq } } });
    engine.run((now, session) => session.marked(now, 'clear', conversation, seq));
  },
  async hide(engine: Engine, [conversation, seqs]: [string, number[]]): Promise<void> {
    for (let at = 0; at < seqs.length; at += HIDE_MAX) {
      await ask(engine, { body: { hide: { conversation, seqs: seqs.slice(at, at + HIDE_MAX) } } });
    }
    engine.run((now, session) => session.marked(now, 'hide', conversation, seqs));
  },
  async join(engine: Engine, [key]: [string]): Promise<void> {
    await new Promise((done, fail) => engine.run((now, session) => session.rooms.join(now, key.replace(/^r:/, ''), { done, fail })));
  },
  async signal(engine: Engine, [to, kind, content]: [Target, string, Content?]): Promise<void> {
    const signal = { ...to, kind, content: content && toWire(content) };
    await ask(engine, { body: { signal }, once: 'always' });
  },
  async react(engine: Engine, [room, kind]: [string, string]): Promise<void> {
    engine.run((_, session) => {
      if (session.reacts === false) throw local('UNSUPPORTED', 'No reactions here');
    });
    await ask(engine, { body: { react: { room: room.replace(/^r:/, ''), kind } }, once: 'always' });
  },
  async sync(engine: Engine): Promise<void> {
    await new Promise<void>((done, fail) => engine.run((now, session) => session.sync(now, done, fail)));
  },
  async online(engine: Engine): Promise<void> {
    engine.run((now, session) => session.online(now));
  },
  async offline(engine: Engine): Promise<void> {
    engine.run((now, session) => session.offline(now));
  },
} as const;

export type Method = keyof typeof METHODS;
