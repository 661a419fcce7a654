// Loaded only by pages that need it, so it imports nothing but types.
import type { Core, Engine, Inherited } from './engine.js';
import type { local, TidegateError, typed } from './error.js';
import type { Method } from './methods.js';
import type { Emitted } from './feed.js';
import type { Conversation, OutboxItem, State } from './types.js';

/** Names that tabs with devices of their own share; the node allows 32 devices to a user. */
const DEVICES_MAX = 32;

type Plain = ReturnType<TidegateError['toJSON']>;

/** What a tab needs to know to follow, and to take over. */
interface Snapshot {
  state: State;
  conversations: Conversation[];
  positions: Record<string, number>;
  items: OutboxItem[];
  tail: string | undefined;
  /** The first sync of the device is complete, so a conversation without a position is new. */
  synced: boolean;
}

/** Messages between the tabs. */
type Post =
  | { kind: 'hello' }
  | { kind: 'leader'; tab: string; snapshot: Snapshot }
  | { kind: 'event'; event: Emitted; moved: Record<string, number> }
  | { kind: 'call'; tab: string; id: number; leader: string; method: Method; args: unknown[] }
  | { kind: 'item'; tab: string; id: number; item: OutboxItem }
  | { kind: 'reply'; tab: string; id: number; value?: unknown; error?: Plain };

interface Call {
  method: Method;
  args: unknown[];
  /** Message that a send has become. */
  item?: OutboxItem;
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

/** What the client lends to this module. */
export interface Lent {
  engine(deliver: (event: Emitted, moved: Record<string, number>) => void, inherited: Inherited | undefined): Engine;
  TidegateError: typeof TidegateError;
  local: typeof local;
  typed: typeof typed;
}

/** Returns the event with its errors as plain data, or with plain data as errors. */
function mapErrors(event: Emitted, map: (error: never) => unknown): Emitted {
  const value = event.value as { error?: unknown };
  return value.error ? ({ ...event, value: { ...value, error: map(value.error as never) } } as Emitted) : event;
}

/**
 * Shares one connection between the tabs of an origin: the tab that holds a Web Lock has it and serves the others over a
 * BroadcastChannel. When that tab ends, another one takes over with the positions and the unanswered messages.
 */
export class SharedCore implements Core {
  #lent: Lent;
  #deliver: (event: Emitted) => void;
  #channel: BroadcastChannel;
  #tab = Math.random().toString(36).slice(2);
  #engine: Engine | undefined;
  #release: (() => void) | undefined;
  #abort = new AbortController();
  #calls = new Map<number, Call>();
  #ids = 0;
  #state: State = { name: 'connecting' };
  #conversations = new Map<string, Conversation>();
  #positions: Record<string, number> = {};
  #items = new Map<string, OutboxItem>();
  /** Id that the next chained message will have. */
  #tail: string | undefined;
  #synced = false;
  /** Tab that has the connection; `undefined` until one has announced itself. */
  #leader: string | undefined;
  #isClosing = false;
  /** This tab has its own lock, so it may call the leader. */
  #isPresent = false;
  #name: string;
  /** Conversations of which it is known who is online. */
  #known = new Set<string>();
  /** Conversations that this tab watches, and whether that was answered: then the next leader has to watch them again. */
  #watched = new Map<string, boolean>();
  /** Tabs that watch each conversation, while this tab has the connection. */
  #watchers = new Map<string, Set<string>>();
  /** Watching tabs whose end this tab waits for. */
  #awaited = new Set<string>();

  constructor(name: string, lent: Lent, deliver: (event: Emitted) => void) {
    // An open channel would keep a process of Node alive.
    if (!navigator.locks) throw new Error('Web Locks are missing');
    this.#lent = lent;
    this.#deliver = deliver;
    this.#name = `tidegate:${name}`;
    this.#channel = new BroadcastChannel(this.#name);
    this.#channel.onmessage = ({ data }: MessageEvent<Post>) => this.#received(data);
    const held = new Promise<void>((resolve) => (this.#release = resolve));
    // The leader waits for this lock, which the tab has before its first call: it is free when the tab has ended.
    this.#lock(this.#lockOf(this.#tab), () => {
      this.#post({ kind: 'hello' });
      this.#isPresent = true;
      return held;
    });
    this.#lock(this.#name, () => {
      this.#lead();
      return held;
    });
  }

  /** Calls `granted` when this tab has the lock, which it keeps until the returned promise ends. */
  #lock(name: string, granted: () => Promise<void> | undefined): void {
    const { signal } = this.#abort;
    navigator.locks.request(name, { signal }, () => (signal.aborted ? undefined : granted())).catch(() => {});
  }

  /** Returns any error as plain data for other tabs. */
  #plain = (error: unknown): Plain => this.#lent.typed(error, 'BAD_REQUEST').toJSON();

  #revive = (error: Plain): TidegateError => new this.#lent.TidegateError(error);

  #lockOf(tab: string): string {
    return `${this.#name}:${tab}`;
  }

  #post(post: Post): void {
    this.#channel.postMessage(post);
  }

  #lead(): void {
    const inherited = this.#leader ? { positions: this.#positions, items: [...this.#items.values()], tail: this.#tail, fresh: !this.#synced } : undefined;
    this.#engine = this.#lent.engine((event, moved) => {
      // The end of this tab is none for the others.
      if (!this.#isClosing) this.#post({ kind: 'event', event: mapErrors(event, this.#plain), moved });
      this.#take(event, moved);
    }, inherited);
    this.#announce();
    for (const [id, call] of this.#calls) this.#dispatch(id, call);
    this.#watchAgain();
  }

  #announce(): void {
    const state = mapErrors({ name: 'state', value: this.#state }, this.#plain).value as State;
    const snapshot: Snapshot = {
      state,
      conversations: [...this.#conversations.values()],
      positions: this.#positions,
      items: [...this.#items.values()],
      tail: this.#tail,
      synced: this.#synced,
    };
    this.#post({ kind: 'leader', tab: this.#tab, snapshot });
  }

  #keep(item: OutboxItem): void {
    this.#items.set(item.msgId, item);
    this.#tail = item.tail ?? this.#tail;
  }

  #take(event: Emitted, moved: Record<string, number>): void {
    Object.assign(this.#positions, moved);
    if (event.name === 'state') this.#state = event.value;
    if (event.name === 'conversation') this.#conversations.set(event.value.conversation, event.value);
    if (event.name === 'presence') {
      const { conversation, online } = event.value;
      this.#known[online ? 'add' : 'delete'](conversation);
      // Unknown on a live connection: the watch of all tabs has ended.
      if (!online && this.#state.name === 'live') {
        if (this.#watched.get(conversation)) this.#watched.delete(conversation);
        this.#watchers.delete(conversation);
      }
    }
    if (event.name === 'synced') this.#synced = true;
    if (event.name === 'accepted' || event.name === 'failed') this.#items.delete(event.value.msgId);
    this.#deliver(event);
  }

  #received(post: Post): void {
    switch (post.kind) {
      case 'hello':
        if (this.#engine) this.#announce();
        break;
      case 'leader':
        if (this.#isPresent) this.#follow(post.tab, post.snapshot);
        break;
      case 'event':
        if (!this.#engine) this.#take(mapErrors(post.event, this.#revive), post.moved);
        break;
      case 'call':
        if (this.#engine && post.leader === this.#tab) void this.#serve(post);
        break;
      case 'item':
        this.#keep(post.item);
        if (post.tab === this.#tab) this.#become(post.id, post.item);
        break;
      case 'reply':
        if (post.tab === this.#tab) this.#replied(post.id, post.value, post.error);
        break;
    }
  }

  /** The call has become this message, which may have been sent from here on. */
  #become(id: number, item: OutboxItem): void {
    const call = this.#calls.get(id);
    if (call) call.item = item;
  }

  #follow(leader: string, snapshot: Snapshot): void {
    if (this.#engine) return;
    const isNew = this.#leader !== leader;
    this.#leader = leader;
    this.#positions = { ...this.#positions, ...snapshot.positions };
    for (const item of snapshot.items) this.#keep(item);
    this.#tail = snapshot.tail ?? this.#tail;
    this.#synced ||= snapshot.synced;
    for (const value of snapshot.conversations) this.#take({ name: 'conversation', value }, {});
    this.#take(mapErrors({ name: 'state', value: snapshot.state }, this.#revive), {});
    if (!isNew) return;
    for (const [id, call] of this.#calls) this.#request(id, call);
    this.#watchAgain();
  }

  /**
   * Sends a call to the tab that has the connection; a message that may have been sent goes under its id. Each call goes to
   * each leader once: when it is made, or when the leader announces itself for the first time.
   */
  #request(id: number, { method, args, item }: Call): void {
    const to = { kind: 'call', tab: this.#tab, id, leader: this.#leader! } as const;
    this.#post(item ? { ...to, method: 'resend', args: [item] } : { ...to, method, args });
  }

  async #serve({ tab, id, method, args }: Post & { kind: 'call' }): Promise<void> {
    try {
      const value = await this.#run(tab, id, method, args);
      this.#post({ kind: 'reply', tab, id, value });
    } catch (error) {
      // A call that this tab has not finished goes to the next one that has the connection.
      if (!this.#isClosing) this.#post({ kind: 'reply', tab, id, error: this.#plain(error) });
    }
  }

  #run(tab: string, id: number, method: Method, args: unknown[]): Promise<unknown> {
    if (method === 'watch' || method === 'unwatch') return this.#count(tab, method, args[0] as string);
    if (method !== 'send') return this.#engine!.call(method, args);
    const accepted = (item: OutboxItem) => {
      this.#keep(item);
      this.#post({ kind: 'item', tab, id, item });
    };
    return this.#engine!.call(method, [...args, accepted]);
  }

  /** Carries out a call that starts or ends what a tab watches: reports end with the last tab. */
  async #count(tab: string, method: 'watch' | 'unwatch', conversation: string): Promise<unknown> {
    const tabs = this.#watchers.get(conversation) ?? new Set();
    if (method === 'unwatch') {
      tabs.delete(tab);
      if (tabs.size > 0) return undefined;
      this.#watchers.delete(conversation);
      return this.#engine!.call(method, [conversation]);
    }
    this.#watchers.set(conversation, tabs.add(tab));
    this.#awaitEnd(tab);
    try {
      // Also when another tab watches it: the answer brings the whole list.
      return await this.#engine!.call(method, [conversation]);
    } catch (error) {
      tabs.delete(tab);
      throw error;
    }
  }

  /** Ends what another tab watches when that tab has ended, also by a crash. */
  #awaitEnd(tab: string): void {
    if (tab === this.#tab || this.#awaited.has(tab)) return;
    this.#awaited.add(tab);
    this.#lock(this.#lockOf(tab), () => {
      this.#awaited.delete(tab);
      for (const [conversation, tabs] of this.#watchers) if (tabs.has(tab)) this.#count(tab, 'unwatch', conversation).catch(() => {});
      return undefined;
    });
  }

  /** Another tab has the connection now, and knows nothing of what this one watches, nor who is online. */
  #watchAgain(): void {
    for (const conversation of this.#known) this.#deliver({ name: 'presence', value: { conversation, online: undefined } });
    this.#known.clear();
    for (const [conversation, isAnswered] of this.#watched) if (isAnswered) this.call('watch', [conversation]).catch(() => {});
  }

  #dispatch(id: number, call: Call): void {
    const running = call.item ? this.#engine!.call('resend', [call.item]) : this.#run(this.#tab, id, call.method, call.args);
    running.then(
      (value) => this.#replied(id, value),
      (error: unknown) => this.#replied(id, undefined, this.#plain(error)),
    );
  }

  #replied(id: number, value: unknown, error?: Plain): void {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    if (!call) return;
    const conversation = call.args[0] as string;
    if (call.method === 'watch' && this.#watched.has(conversation)) {
      if (error) this.#watched.delete(conversation);
      else this.#watched.set(conversation, true);
    }
    if (error) call.reject(this.#revive(error));
    else call.resolve(value);
  }

  call(method: Method, args: unknown[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const id = ++this.#ids;
      const call: Call = { method, args: this.#copy(args), resolve, reject };
      this.#calls.set(id, call);
      const conversation = args[0] as string;
      if (method === 'watch') this.#watched.set(conversation, this.#watched.get(conversation) ?? false);
      if (method === 'unwatch') this.#watched.delete(conversation);
      if (this.#engine) this.#dispatch(id, call);
      else if (this.#leader) this.#request(id, call);
    });
  }

  /** Returns the arguments as another tab gets them; throws if they can't be sent to one. */
  #copy(args: unknown[]): unknown[] {
    try {
      return structuredClone(args);
    } catch (error) {
      throw this.#lent.typed(error, 'BAD_REQUEST');
    }
  }

  async close(): Promise<void> {
    this.#isClosing = true;
    await this.#engine?.close();
    this.drop();
    if (this.#state.name !== 'closed') this.#take({ name: 'state', value: { name: 'closed' } }, {});
    for (const id of [...this.#calls.keys()]) this.#replied(id, undefined, this.#plain(this.#lent.local('CLOSED')));
  }

  drop(): void {
    this.#engine?.drop();
    this.#channel.close();
    this.#abort.abort();
    this.#release?.();
  }
}

/** Returns a device name that no other tab of the origin has; the tab keeps it until it ends. */
export async function claimDevice(base: string): Promise<string> {
  for (let n = 1; n <= DEVICES_MAX; n++) {
    const name = `${base}-${n}`;
    const isMine = await new Promise<boolean>((resolve) => {
      void navigator.locks.request(`tidegate:device:${name}`, { ifAvailable: true }, (lock) => {
        resolve(lock !== null);
        return lock ? new Promise(() => {}) : undefined;
      });
    });
    if (isMine) return name;
  }
  return `${base}-${Math.random().toString(36).slice(2)}`;
}
