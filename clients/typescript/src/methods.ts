import type { Engine } from './engine.js';
import { history, isRoom, pullFor, roomOf, toWire } from './entries.js';
import { local, type TidegateError } from './error.js';
import type { Outcome, Request } from './requests.js';
import type { Session } from './session.js';
import type { Changed, Content, History, HistoryOptions, OutboxItem, PullOptions, SendOptions, Sent, Target } from './types.js';
import type { ServerFrame, WirePage } from './wire.js';

/** Most unanswered messages of an outbox. */
const OUTBOX_MAX = 10_000;
/** Most seqs of one `hide`. */
const HIDE_MAX = 200;

/** Calls the session with an outcome that settles the returned promise. */
function settled<T>(engine: Engine, call: (session: Session, outcome: Outcome<T>) => void): Promise<T> {
  return new Promise((done, fail) => engine.run((session) => call(session, { done, fail })));
}

/** Sends a request and returns its answer. */
function ask(engine: Engine, request: Omit<Request, 'done' | 'fail'>): Promise<ServerFrame> {
  return settled(engine, (session, outcome) => session.requests.add({ ...request, ...outcome }));
}

async function send(engine: Engine, [to, content, options, accepted]: [Target, Content, SendOptions, ((item: OutboxItem) => void)?]): Promise<Sent> {
  return settled(engine, ({ outbox }, outcome) => {
    if (outbox.size >= OUTBOX_MAX) throw local('OUTBOX_FULL');
    if (outbox.has(options.msgId ?? '')) throw local('BAD_REQUEST', 'A message with this id is unanswered');
    const item = outbox.add(to, toWire(content), options, outcome, engine.persistent);
    accepted?.(item);
    void engine.stored(item);
  });
}

async function resend(engine: Engine, [item]: [OutboxItem]): Promise<Sent> {
  return settled(engine, ({ outbox }, outcome) => outbox.restore(item, outcome));
}

async function pull(engine: Engine, [conversation, options]: [string, PullOptions]): Promise<WirePage> {
  return (await ask(engine, { body: { pull: { conversation, ...options } }, once: 'notYet' })).page ?? {};
}

async function read(engine: Engine, [conversation, seq]: [string, number?]): Promise<void> {
  const to = engine.run(({ feed }) => {
    const at = seq ?? feed.conversations.get(conversation).maxSeq;
    feed.read(conversation, at);
    return at;
  });
  if (to > 0) await ask(engine, { body: { read: { conversation, seq: to } } });
}

async function leave(engine: Engine, [key]: [string]): Promise<void> {
  if (isRoom(key)) await settled(engine, ({ rooms }, outcome) => rooms.leave(roomOf(key), outcome));
  else await ask(engine, { body: { leave: { conversation: key } }, doneBy: 'NOT_A_MEMBER' });
}

async function change(engine: Engine, body: Request['body']): Promise<Changed> {
  const { sendAck: { seq = 0, duplicate = false } = {} } = await ask(engine, { body });
  return { seq, duplicate };
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
    return history(conversation, page, options);
  },
  recall: (engine: Engine, [conversation, seq]: [string, number]) => change(engine, { recall: { conversation, seq } }),
  edit: (engine: Engine, [conversation, seq, content, msgId]: [string, number, Content, string]) =>
    change(engine, { edit: { conversation, seq, content: toWire(content), msgId } }),
  async clear(engine: Engine, [conversation, seq]: [string, number]): Promise<void> {
    await ask(engine, { body: { clear: { conversation, seq } } });
    engine.run(({ feed }) => feed.remove(conversation, seq, []));
  },
  async hide(engine: Engine, [conversation, seqs]: [string, number[]]): Promise<void> {
    for (let at = 0; at < seqs.length; at += HIDE_MAX) {
      await ask(engine, { body: { hide: { conversation, seqs: seqs.slice(at, at + HIDE_MAX) } } });
    }
    engine.run(({ feed }) => feed.remove(conversation, 0, seqs));
  },
  async join(engine: Engine, [key]: [string]): Promise<void> {
    await settled(engine, ({ rooms }, outcome) => rooms.enter(roomOf(key), outcome));
  },
  async watch(engine: Engine, [conversation]: [string]): Promise<void> {
    await settled(engine, ({ watches }, outcome) => watches.enter(conversation, outcome));
  },
  async unwatch(engine: Engine, [conversation]: [string]): Promise<void> {
    await settled(engine, ({ watches }, outcome) => watches.leave(conversation, outcome));
  },
  async signal(engine: Engine, [to, kind, content]: [Target, string, Content?]): Promise<void> {
    const signal = { ...to, kind, content: content && toWire(content) };
    await ask(engine, { body: { signal }, once: 'always' });
  },
  async react(engine: Engine, [room, kind]: [string, string]): Promise<void> {
    await ask(engine, { body: { react: { room: roomOf(room), kind } }, needs: 'react', once: 'always' });
  },
  async sync(engine: Engine): Promise<void> {
    await settled<void>(engine, (session, outcome) => session.sync(outcome));
  },
  async online(engine: Engine): Promise<void> {
    engine.run((session) => session.online());
  },
  async offline(engine: Engine): Promise<void> {
    engine.run((session) => session.offline());
  },
} as const;

export type Method = keyof typeof METHODS;
