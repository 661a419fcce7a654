import { reconnectWait } from './backoff.js';
import { claimsOf, Engine, randomId, tokenFor, type Core, type Transport } from './engine.js';
import { local, TidegateError, typed } from './error.js';
import type { Method } from './methods.js';
import type { Emitted } from './feed.js';
import { kept } from './maps.js';
import { indexedDbStore } from './stores.js';
import type { Lent } from './tabs.js';
import type {
  Changed,
  Content,
  Conversation,
  EventName,
  Events,
  History,
  HistoryOptions,
  Options,
  Page,
  PullOptions,
  SendOptions,
  Sent,
  State,
  Target,
  To,
} from './types.js';

const ID = /^[A-Za-z0-9_.-]{1,64}$/;
const KEY = /^[dgr]:[A-Za-z0-9_.:-]{1,129}$/;

/** Returns the receiver as the protocol names it. */
function target(to: To): Target {
  const it: Target =
    typeof to === 'string' ? (to.includes(':') ? { conversation: to } : { toUser: to }) : 'user' in to ? { toUser: to.user } : to;
  if (it.toUser !== undefined ? !ID.test(it.toUser) : !KEY.test(it.conversation ?? '')) {
    throw local('BAD_REQUEST', 'Not a user id or conversation key');
  }
  return it;
}

const contentOf = (content: string | Content): Content => (typeof content === 'string' ? { text: content } : content);

/** A connection to Tidegate that is kept up, with everything that a chat application does over it. */
export class Client {
  #core: Promise<Core>;
  #handlers = new Map<EventName, Set<(value: never) => void>>();
  #state: State = { name: 'connecting' };
  #conversations = new Map<string, Conversation>();
  /** Users that are online in each watched conversation; `undefined` when that is no longer known. */
  #presence = new Map<string, string[] | undefined>();
  #user: string | undefined;
  /** Aborted when the application ends the client. */
  #life = new AbortController();
  #over = new Promise<void>((resolve) => this.#life.signal.addEventListener('abort', () => resolve()));

  /** Connects; applications call `connect` instead. */
  constructor(options: Options, transport: Transport) {
    this.#user = options.user;
    const base = options.device ?? defaultDevice();
    if (!ID.test(base)) throw local('BAD_REQUEST', 'Not a device name');
    this.#core = this.#start(options, base, transport).catch((reason: unknown) => {
      const error = typed(reason, 'UNSUPPORTED');
      this.#deliver({ name: 'state', value: { name: 'closed', error } });
      throw error;
    });
    this.#core.catch(() => {});
    globalThis.window?.addEventListener('online', () => this.#state.name === 'waiting' && this.online(), { signal: this.#life.signal });
  }

  async #start(options: Options, base: string, transport: Transport): Promise<Core> {
    const { outbox } = options;
    const isShared = options.tabs === 'shared';
    const isStored = outbox === 'indexeddb';
    const tabs = isShared || options.tabs === 'own' ? await import('./tabs.js') : undefined;
    const device = tabs && !isShared ? await tabs.claimDevice(base) : base;
    const user = options.user ?? (isShared || isStored ? await this.#firstUser(options) : undefined);
    const name = `${user ?? ''}:${options.assign ?? options.addresses?.[0] ?? ''}:${device}`;
    const store = isStored ? indexedDbStore(name) : typeof outbox === 'object' ? outbox : undefined;
    const deliver = (event: Emitted) => this.#deliver(event);
    const lent: Lent = {
      engine: (to, inherited) => new Engine({ ...options, device, store, user }, transport, to, inherited),
      TidegateError,
      local,
      typed,
    };
    return isShared ? new tabs!.SharedCore(name, lent, deliver) : lent.engine(deliver, undefined);
  }

  /** Returns the user of the first token: what is kept in a browser is named by the user. */
  async #firstUser(options: Options): Promise<string | undefined> {
    for (let tries = 0; ; tries++) {
      const asked = tokenFor(options).catch(async (reason: unknown) => {
        const wait = reconnectWait(tries, undefined, (options.random ?? Math.random)());
        if (!this.#isOver) this.#deliver({ name: 'state', value: { name: 'waiting', retryAt: Date.now() + wait, error: typed(reason, 'NO_TOKEN') } });
        await new Promise((resolve) => setTimeout(resolve, wait));
      });
      const token = await Promise.race([asked, this.#over]);
      if (this.#isOver) throw local('CLOSED');
      if (token !== undefined) return claimsOf(token).sub;
    }
  }

  get #isOver(): boolean {
    return this.#life.signal.aborted;
  }

  /** The connection at the moment. */
  get state(): State {
    return this.#state;
  }

  /** The user, once it is known. */
  get user(): string | undefined {
    return this.#user;
  }

  /** Resolves when the client is live, rejects when it is closed. */
  live(): Promise<void> {
    return new Promise((resolve, reject) => {
      const check = ({ name, error }: State): void => {
        if (name === 'live') resolve();
        else if (name === 'closed') reject(error ?? local('CLOSED'));
        else return;
        off();
      };
      const off = this.on('state', check);
      check(this.#state);
    });
  }

  /** Calls `handler` with each event of this name; returns the function that ends this. */
  on<N extends EventName>(name: N, handler: (value: Events[N]) => void): () => void {
    const all = kept<EventName, Set<(value: never) => void>>(this.#handlers, name, () => new Set());
    all.add(handler);
    return () => void all.delete(handler);
  }

  #deliver(event: Emitted): void {
    if (event.name === 'state') {
      this.#state = event.value;
      this.#user ??= event.value.user;
    }
    if (event.name === 'conversation') this.#conversations.set(event.value.conversation, event.value);
    if (event.name === 'presence') this.#presence.set(event.value.conversation, event.value.online);
    for (const handler of this.#handlers.get(event.name) ?? []) {
      try {
        handler(event.value as never);
      } catch (error) {
        // An error of a handler is the application's, and must not stop the others.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }

  async #call<T>(method: Method, ...args: unknown[]): Promise<T> {
    if (this.#isOver) throw local('CLOSED');
    const core = await this.#core;
    try {
      return (await core.call(method, args)) as T;
    } catch (error) {
      throw typed(error, 'BAD_REQUEST');
    }
  }

  /**
   * Sends a message. Resolves when it is durable and has its place; rejects with a lasting error. Until then the message
   * is repeated under its id, across reconnects.
   */
  async send(to: To, content: string | Content, options: SendOptions = {}): Promise<Sent> {
    const it = target(to);
    if (options.msgId !== undefined && !ID.test(options.msgId)) throw local('BAD_REQUEST', 'Not a message id');
    return this.#call('send', it, contentOf(content), options);
  }

  /** Conversations of the user, as far as they are known. */
  conversations(): Conversation[] {
    return [...this.#conversations.values()];
  }

  /** Number of unread messages in all conversations. */
  unread(): number {
    return this.conversations().reduce((sum, it) => sum + it.unread, 0);
  }

  /** Asks for the state of all conversations. */
  sync(): Promise<void> {
    return this.#call('sync');
  }

  /** Returns a part of a conversation's history; without a choice the newest. */
  history(conversation: string, options: HistoryOptions = {}): Promise<History> {
    return this.#call('history', conversation, options);
  }

  /** Returns a page as it is on the wire. */
  pull(conversation: string, options: PullOptions): Promise<Page> {
    return this.#call('pull', conversation, options);
  }

  /** Moves the read mark of the user, on all devices; by default to the newest entry. */
  read(conversation: string, seq?: number): Promise<void> {
    return this.#call('read', conversation, seq);
  }

  /** Takes a message back for all users. */
  recall(conversation: string, seq: number): Promise<Changed> {
    return this.#call('recall', conversation, seq);
  }

  /** Replaces the content of a message for all users, with the event `edit` on every device, this one included. */
  edit(conversation: string, seq: number, content: string | Content): Promise<Changed> {
    return this.#call('edit', conversation, seq, contentOf(content), randomId());
  }

  /** Removes everything up to `seq` for this user. */
  clear(conversation: string, seq: number): Promise<void> {
    return this.#call('clear', conversation, seq);
  }

  /** Removes single entries for this user. */
  hide(conversation: string, seqs: number[]): Promise<void> {
    return this.#call('hide', conversation, seqs);
  }

  /** Enters a live room (`r:hall` or `hall`), and enters it again after each reconnect. */
  join(room: string): Promise<void> {
    return this.#call('join', room);
  }

  /** Leaves a live room (`r:…`), or ends the user's membership of a group (`g:…`). */
  leave(conversation: string): Promise<void> {
    return this.#call('leave', conversation);
  }

  /** Asks who of a conversation is online, also after each reconnect; resolves when the node reports it by the event `presence`. */
  watch(conversation: string): Promise<void> {
    return this.#call('watch', conversation);
  }

  /** Ends the reports that `watch` has asked for. */
  unwatch(conversation: string): Promise<void> {
    return this.#call('unwatch', conversation);
  }

  /** Users of a watched conversation that are online, sorted; `undefined` while that is unknown. */
  presence(conversation: string): string[] | undefined {
    return this.#presence.get(conversation);
  }

  /** Sends a volatile event such as `typing`; rejects when the client is not live. */
  async signal(to: To, kind: string, content?: string | Content): Promise<void> {
    return this.#call('signal', target(to), kind, content === undefined ? undefined : contentOf(content));
  }

  /** Adds a reaction such as `like` to a live room that the client is in; rejects when the client is not live, or its node has no reactions. */
  react(room: string, kind: string): Promise<void> {
    return this.#call('react', room, kind);
  }

  /** Disconnects and stays so until `online`; messages are kept. */
  offline(): void {
    void this.#call('offline').catch(() => {});
  }

  /** Connects at once, also after the node has closed the client lastingly. */
  online(): void {
    void this.#call('online').catch(() => {});
  }

  /** Says bye and ends. Unanswered sends reject; those of a persistent outbox are repeated by the next client. */
  async close(): Promise<void> {
    if (this.#isOver) return;
    this.#life.abort();
    await this.#core.then((core) => core.close(), () => {});
  }

  /** Ends without a trace, as if the process was killed. For tests. */
  drop(): void {
    this.#life.abort();
    this.#handlers.clear();
    this.#core.then((core) => core.drop(), () => {});
  }
}

/** Returns a name that this browser keeps, because each device of a user has one connection. */
function defaultDevice(): string {
  try {
    const key = 'tidegate:device';
    const present = localStorage.getItem(key) ?? `web-${randomId().slice(0, 12)}`;
    localStorage.setItem(key, present);
    return present;
  } catch {
    return typeof window === 'undefined' ? 'node' : 'web';
  }
}

export { TidegateError };
