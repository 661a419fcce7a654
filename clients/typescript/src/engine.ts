import { Addresses } from './addresses.js';
import { askAssign } from './assign.js';
import type { Dial, Socket } from './dial.js';
import { local, typed, type LocalName, type TidegateError } from './error.js';
import { METHODS, type Method } from './methods.js';
import type { Emitted } from './feed.js';
import { Session } from './session.js';
import type { Claims, Options, OutboxItem, OutboxStore } from './types.js';
import type { ServerFrame } from './wire.js';

/** Longest delay of a timer; longer ones overflow. */
const SLEEP_MAX_MS = 2 ** 31 - 1;

export type TransportOptions = Pick<Options, 'webSocket'>;

export interface Transport {
  /** Returns how to connect to an address; `undefined` if its scheme is not supported here. */
  dial(address: string, options: TransportOptions): Dial | undefined;
  /** Transport that `assign` is asked for. */
  kind(options: TransportOptions): 'ws' | 'tcp';
}

/** What a client takes its calls to: the connection of this tab, or of another one. */
export interface Core {
  call(method: Method, args: unknown[]): Promise<unknown>;
  close(): Promise<void>;
  /** Ends without a trace, as if the process was killed. */
  drop(): void;
}

export interface EngineOptions extends Omit<Options, 'user'> {
  device: string;
  /** Storage of this user and device; `undefined` for none. */
  store: OutboxStore | undefined;
  user: string | undefined;
}

/** What an earlier leader of the tabs has left: positions, and messages whose answer is outstanding. */
export interface Inherited {
  positions: Record<string, number>;
  items: OutboxItem[];
  tail: string | undefined;
  fresh: boolean;
}

/** Returns a random id of 128 bits. */
export function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (it) => it.toString(16).padStart(2, '0')).join('');
}

/** Returns a token for the next login. */
export const tokenFor = async ({ token }: Pick<Options, 'token'>): Promise<string> => (typeof token === 'string' ? token : token());

/** Returns the claims of a token; none if it is no JWT. */
export function claimsOf(token: string): Claims {
  try {
    return { ...JSON.parse(atob(token.split('.')[1]!.replace(/-/g, '+').replace(/_/g, '/'))) } as Claims;
  } catch {
    return {};
  }
}

/** Drives a session with sockets, timers and storage. */
export class Engine implements Core {
  readonly session: Promise<Session>;
  #session: Session | undefined;
  #store: OutboxStore | undefined;
  #options: EngineOptions;
  #transport: Transport;
  #deliver: (event: Emitted, positions: Record<string, number>) => void;
  #addresses: Addresses;
  #assignedUntil = 0;
  /** Connections that the session wants, with their sockets once these are being opened. */
  #conns = new Map<number, { socket?: Socket; address?: string }>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #saving: Promise<void> | undefined;
  /** What the storage holds is known. */
  #isReadable = false;
  /** Positions that changed since they were stored. */
  #unsaved: Record<string, number> = {};
  #moved: Record<string, number> = {};
  #isOver = false;

  constructor(
    options: EngineOptions,
    transport: Transport,
    deliver: (event: Emitted, positions: Record<string, number>) => void,
    inherited?: Inherited,
  ) {
    this.#options = options;
    this.#store = options.store;
    this.#transport = transport;
    this.#deliver = deliver;
    this.#addresses = new Addresses(options.assign, options.addresses);
    this.session = this.#start(inherited);
  }

  async #start(inherited: Inherited | undefined): Promise<Session> {
    const store = this.#store;
    const stored = await store?.load().catch(() => undefined);
    // After a failure the positions of the device are unknown, and must not be replaced by those of a new one.
    this.#isReadable = stored !== undefined;
    const session = new Session(
      {
        device: this.#options.device,
        chain: this.#options.chain ?? true,
        user: this.#options.user,
        settings: this.#options.settings,
        positions: { ...stored?.positions, ...inherited?.positions, ...this.#options.positions },
        fresh: !stored?.positions && (inherited?.fresh ?? true),
        fromStart: this.#options.from === 'start',
      },
      {
        open: (conn, alternates) => void this.#open(conn, alternates),
        write: (conn, frame) => this.#conns.get(conn)?.socket?.send(JSON.stringify(frame)),
        end: (conn) => this.#end(conn),
        judged: (conn, good) => {
          const address = this.#conns.get(conn)?.address;
          if (address) this.#addresses.judged(address, good);
        },
        renew: (conn) => {
          const give = (token: string, error?: TidegateError) =>
            this.#isOver || this.run(() => session.renewed(conn, token, claimsOf(token), error));
          tokenFor(this.#options).then(give, (error: unknown) => give('', typed(error, 'NO_TOKEN')));
        },
        newId: randomId,
        random: this.#options.random ?? Math.random,
        answered: (msgId) => void store?.remove(msgId).catch(() => {}),
        moved: (conversation, seq) => {
          this.#unsaved[conversation] = this.#moved[conversation] = seq;
        },
      },
    );
    for (const item of [...(stored?.items ?? []), ...(inherited?.items ?? [])]) session.outbox.restore(item);
    session.outbox.continueAt(inherited?.tail ?? stored?.tail);
    this.#session = session;
    if (!this.#isOver) this.run(() => session.online());
    return session;
  }

  /** Calls the session, then hands over its events and sleeps until its next timer. */
  run<T>(what: (session: Session) => T): T {
    const session = this.#session!;
    session.timers.now = Date.now();
    try {
      return what(session);
    } finally {
      this.#settle(session);
    }
  }

  #settle(session: Session): void {
    for (let event; (event = session.feed.events.shift()); ) {
      const moved = this.#moved;
      this.#moved = {};
      if (!this.#isOver || event.name === 'state') this.#deliver(event, moved);
      // The device has positions from now on, even if it has no conversations.
      if (event.name === 'synced') this.#unsaved[''] = 0;
    }
    if (this.#isReadable) this.#saving ??= this.#save().finally(() => (this.#saving = undefined));
    clearTimeout(this.#timer);
    const wait = session.timers.due() - Date.now();
    if (wait < Infinity && !this.#isOver) {
      this.#timer = setTimeout(() => this.#guarded(() => session.timers.run()), Math.min(wait, SLEEP_MAX_MS));
    }
  }

  /** Calls the session with what comes from a node; gives up the connections `conns` if that is malformed. */
  #guarded(what: (session: Session) => void, conns = [...this.#conns.keys()]): void {
    try {
      this.run(what);
    } catch {
      for (const conn of conns) this.#lost(conn);
    }
  }

  async call(method: Method, args: unknown[]): Promise<unknown> {
    await this.session;
    return METHODS[method](this, args as never);
  }

  /** Stores a message, if there is a store, and only then lets it be sent. */
  async stored(item: OutboxItem): Promise<void> {
    const store = this.#store;
    if (!store) return;
    await store.put(item).catch(() => {});
    this.run((session) => session.outbox.release(item.msgId));
  }

  get persistent(): boolean {
    return this.#store !== undefined;
  }

  async close(): Promise<void> {
    await this.session;
    await new Promise<void>((done) => this.run((session) => session.close(done)));
    // The event of the end is queued after `done` was called.
    this.run(() => {});
    await this.#saving;
    this.drop();
  }

  drop(): void {
    this.#isOver = true;
    clearTimeout(this.#timer);
    for (const conn of this.#conns.keys()) this.#end(conn);
  }

  /** Stores what has changed, one transaction at a time. */
  async #save(): Promise<void> {
    while (Object.keys(this.#unsaved).length > 0) {
      const changed = this.#unsaved;
      this.#unsaved = {};
      await this.#store!.savePositions(changed).catch(() => {});
    }
  }

  #end(conn: number): void {
    this.#conns.get(conn)?.socket?.close();
    this.#conns.delete(conn);
  }

  async #open(conn: number, alternates: readonly string[]): Promise<void> {
    if (this.#isOver) return;
    const entry: { socket?: Socket; address?: string } = {};
    this.#conns.set(conn, entry);
    let failure: LocalName = 'NO_TOKEN';
    try {
      const token = await tokenFor(this.#options);
      failure = 'UNREACHABLE';
      if (!this.#conns.has(conn)) return;
      if (!this.run((session) => session.authorized(conn, token, claimsOf(token)))) return;
      const address = this.#addresses.alternate(alternates) ?? (await this.#address(conn, token));
      if (!this.#conns.has(conn)) return;
      const dial = address && this.#transport.dial(address, this.#options);
      if (!dial) throw local('NO_ADDRESS', address && `This platform has no transport for ${address}`);
      entry.address = address;
      let isOpen = false;
      entry.socket = dial(address, {
        opened: () => {
          isOpen = true;
          this.run((session) => session.opened(conn));
        },
        text: (text) => {
          if (text) this.#guarded((session) => session.frame(conn, JSON.parse(text) as ServerFrame), [conn]);
        },
        closed: (cause) => this.#lost(conn, isOpen ? undefined : local(failure, `${address}: ${cause || 'no connection'}`)),
      });
    } catch (error) {
      this.#lost(conn, typed(error, failure));
    }
  }

  #lost(conn: number, error?: TidegateError): void {
    if (!this.#conns.has(conn)) return;
    this.run((session) => session.lost(conn, error));
    this.#end(conn);
  }

  /** Returns the address to connect to, after asking `assign` if its last answer is too old or useless. */
  async #address(conn: number, token: string): Promise<string | undefined> {
    const { assign, addresses, zone, credentials } = this.#options;
    if (assign !== undefined && (Date.now() >= this.#assignedUntil || this.#addresses.exhausted)) {
      const answer = await askAssign(assign, this.#transport.kind(this.#options), token, zone, credentials);
      if (answer.close) {
        this.run((session) => session.frame(conn, { close: answer.close! }));
        return undefined;
      }
      this.#assignedUntil = Date.now() + answer.ttlMs;
      this.#addresses.set([...answer.addresses, ...(addresses ?? [])]);
    }
    return this.#addresses.next();
  }
}
