import { reconnectWait, SETTLED_MS } from './backoff.js';
import { fromWireContent, roomOf } from './entries.js';
import { fromClose, local, TidegateError } from './error.js';
import { Feed } from './feed.js';
import { Inbox } from './inbox.js';
import { Outbox } from './outbox.js';
import { Requests, type Outcome } from './requests.js';
import { Subscriptions } from './subscriptions.js';
import { Timers } from './timers.js';
import type { Claims, OutboxItem, Sent, State } from './types.js';
import { Watches } from './watches.js';
import type { ClientFrame, ServerFrame, WireGoAway, WireSettings, WireWelcome } from './wire.js';

/** Longest time from opening a connection to its welcome. */
const LOGIN_MS = 15_000;
/** Time that a connection which was moved away from may still take for answers, and a bye for the close. */
const END_MS = 2000;
const HEARTBEAT_MS = 30_000;
const REPLACED = 3500;
/** How long a node may take to complete a login that this client has given up. */
const LATE_MS = 30_000;
/** Shortest lead of a refresh before the end of the token, if the token lasts for long enough. */
const REFRESH_LEAD_MS = 300_000;
/** The node refuses refreshes of a connection that follow each other more closely. */
const REFRESH_MIN_MS = 2000;

export interface SessionPort {
  /** Opens connection `conn`: to one of `alternates` if one fits, else to an address that the client knows. */
  open(conn: number, alternates: readonly string[]): void;
  write(conn: number, frame: ClientFrame): void;
  /** Closes the connection, if it is open; the session is not informed of its end. */
  end(conn: number): void;
  /** The outcome of a connection, before its `end`: whether its address is worth another attempt. */
  judged(conn: number, good: boolean): void;
  /** Asks the application for another token for connection `conn`, which goes to `renewed`. */
  renew(conn: number): void;
  newId(): string;
  random(): number;
  /** A message is answered, so an outbox forgets it. */
  answered(msgId: string): void;
  moved(conversation: string, seq: number): void;
}

export interface SessionOptions {
  device: string;
  chain: boolean;
  user: string | undefined;
  settings: Omit<WireSettings, 'chain'> | undefined;
  positions: Readonly<Record<string, number>>;
  /** The device has no positions but these yet. */
  fresh: boolean;
  fromStart: boolean;
}

interface Link {
  conn: number;
  /** `opening`, then `login` once hello is written, then `live`; `old` after another one has taken over. */
  phase: 'opening' | 'login' | 'live' | 'old';
  token: string;
  /** Claim `exp` of the token, if it has one that the client can read. */
  exp?: number | undefined;
  /** Until then another login of this client may have replaced the connection. */
  movedUntil: number;
}

/**
 * The client as a state machine without sockets or clocks: it is given what happens, and before that the time in `timers`.
 * It writes frames through its port, and queues events for the application in its feed.
 */
export class Session {
  readonly timers = new Timers();
  readonly feed: Feed;
  readonly inbox: Inbox;
  readonly outbox: Outbox;
  readonly requests: Requests;
  readonly rooms: Subscriptions;
  readonly watches: Watches;
  state: State = { name: 'offline' };
  #options: SessionOptions;
  #port: SessionPort;
  /** The connection that is live, and the one that is to be. */
  #link: Link | undefined;
  #next: Link | undefined;
  #old: Link | undefined;
  #conns = 0;
  #frames = 0;
  #session: string | undefined;
  #heartbeat = HEARTBEAT_MS;
  #heardAt = 0;
  #wroteAt = 0;
  /** By how much the clock of the node is ahead. */
  #ahead = 0;
  #pings = 0;
  #liveAt = Infinity;
  #lateUntil = 0;
  /** Attempts in a row that failed. */
  #tries = 0;
  /** Token that the node has refused, so another one is needed. */
  #refused: string | undefined;
  #byeDone: (() => void) | undefined;
  /** Alternates of the last `goAway`, until a login succeeds: the node that sent it may be gone before the move. */
  #alternates: readonly string[] = [];

  constructor(options: SessionOptions, port: SessionPort) {
    this.#options = options;
    this.#port = port;
    this.feed = new Feed(
      (conversation, seq, seqs) => this.inbox.removed(conversation, seq, seqs),
      // Unread counts can't be derived after every change: asks for them, once for several changes.
      () =>
        this.timers.soonest('counts', 1000, () => {
          if (this.#link) this.sync();
        }),
    );
    this.feed.user = options.user;
    const write = (body: ClientFrame) => this.#request(this.#link, body);
    this.outbox = new Outbox(options.chain, this.timers, {
      write,
      newId: port.newId,
      accepted: (item, sent) => this.#accepted(item, sent),
      failed: (item, error) => {
        port.answered(item.msgId);
        this.feed.emit('failed', { msgId: item.msgId, to: item.to, content: fromWireContent(item.content), error });
      },
    });
    this.requests = new Requests(this.timers, write);
    this.rooms = new Subscriptions(this.requests, (room, ends) => ({ body: { [ends ? 'leave' : 'join']: { room } } }));
    this.watches = new Watches(this.requests, this.feed);
    this.inbox = new Inbox(options.positions, options.fresh && !options.fromStart, this.timers, this.requests, this.feed, {
      isOwn: (push) => !!push.msgId && this.outbox.has(push.msgId) && [undefined, push.sender].includes(this.feed.user),
      moved: port.moved,
      ack: (conversation, seq) => this.#write(this.#link, { ack: { conversation, seq } }),
    });
  }

  #become(state: State): void {
    this.state = state;
    this.feed.emit('state', state);
    if (state.name !== 'live') this.watches.lost();
  }

  #write(link: Link | undefined, frame: ClientFrame): void {
    if (!link || link.phase === 'old') return;
    this.#wroteAt = this.timers.now;
    this.#port.write(link.conn, frame);
  }

  /** Writes a frame that has an answer, and returns the id of both. */
  #request(link: Link | undefined, body: ClientFrame): number {
    const id = ++this.#frames;
    this.#write(link, { id, ...body });
    return id;
  }

  // Calls of the driver.

  /** Connects, or connects at once if the client waits: the network may be back. */
  online(): void {
    if (this.#link || this.#next) return;
    if (this.state.name === 'closed') this.#tries = 0;
    this.#refused = undefined;
    this.#open();
  }

  /** Ends the connection and stays without one until `online`. */
  offline(): void {
    this.#bye();
    this.#dropAll();
    this.#become({ name: 'offline' });
  }

  /** Says bye, waits for the close of the node, and ends; `done` is called then. */
  close(done: () => void): void {
    const finish = () => {
      this.#byeDone = undefined;
      this.timers.clear('bye');
      this.#dropAll();
      if (this.state.name !== 'closed') this.#become({ name: 'closed', error: this.state.error });
      this.outbox.close();
      this.requests.close(local('CLOSED'));
      done();
    };
    if (!this.#bye()) return finish();
    this.#byeDone = finish;
    this.timers.set('bye', END_MS, finish);
  }

  #bye(): boolean {
    if (this.#link?.phase !== 'live') return false;
    this.inbox.flush();
    this.#request(this.#link, { bye: {} });
    this.outbox.hold();
    this.requests.hold();
    return true;
  }

  /** Asks for the states of all conversations. */
  sync({ done, fail }: Outcome<void> = { done() {}, fail() {} }): void {
    this.requests.add({
      body: { sync: { positions: this.inbox.positions() } },
      once: 'connection',
      part: ({ conversationState: state }) => {
        if (!state) return;
        this.feed.state(state);
        this.inbox.state(state);
      },
      done: (frame) => {
        this.inbox.synced();
        this.feed.emit('synced', { unread: frame.syncEnd?.unread ?? 0 });
        done();
      },
      fail,
    });
  }

  // Connections.

  #open(): void {
    this.timers.clear('retry');
    const link: Link = { conn: ++this.#conns, phase: 'opening', token: '', movedUntil: 0 };
    this.#next = link;
    if (!this.#link) this.#become({ name: 'connecting', error: this.state.error });
    this.timers.set('login', LOGIN_MS, () => this.#ended(link));
    this.#port.open(link.conn, this.#alternates);
  }

  /** The application has this token for the login. Returns whether to open the connection with it. */
  authorized(conn: number, token: string, { sub: user, exp }: Claims): boolean {
    const link = this.#next;
    if (link?.conn !== conn) return false;
    link.token = token;
    link.exp = exp;
    this.feed.user ??= user;
    // Positions, chain and unanswered messages are of the user before.
    if (user && user !== this.feed.user) this.#shut(local('OTHER_USER'));
    // Another login with the same token would end the same way.
    else if (token === this.#refused) this.#shut(this.state.error);
    else return true;
    return false;
  }

  /** The connection is open. */
  opened(conn: number): void {
    const link = this.#next;
    if (link?.conn !== conn) return this.#port.end(conn);
    link.phase = 'login';
    if (this.#link) this.#link.movedUntil = Infinity;
    // From here on the node may let the new connection replace the old one: writes go to the new one.
    this.outbox.hold();
    this.requests.hold();
    const { device, chain } = this.#options;
    // Absent fields are undefined, which JSON omits.
    const settings = chain ? { ...this.#options.settings, chain } : this.#options.settings;
    const hello = { version: 1, token: link.token, device, resume: this.#session, nextId: this.outbox.declaration(), settings, features: ['refresh', 'react', 'watch'] };
    this.#request(link, { hello });
  }

  /** The connection has ended without a close frame, or could not be made for the reason `error`. */
  lost(conn: number, error?: TidegateError): void {
    const link = this.#find(conn);
    if (link) this.#ended(link, error);
  }

  #find(conn: number): Link | undefined {
    return [this.#link, this.#next, this.#old].find((it) => it?.conn === conn);
  }

  #ended(link: Link, error?: TidegateError): void {
    if (link !== this.#old) this.#port.judged(link.conn, link.phase === 'live' && error?.reconnect !== 'after');
    this.#port.end(link.conn);
    if (link === this.#old) {
      this.#old = undefined;
      this.timers.clear('old');
      return;
    }
    if (link === this.#link) {
      this.#link = undefined;
      this.timers.clear('goAway', 'beat', 'refresh');
      this.#lostAll();
      if (this.#byeDone) {
        this.state = { ...this.state, error };
        return this.#byeDone();
      }
      // The new connection is on its way, and its login has replaced this one.
      if (this.#next && (this.#next.phase === 'login' || error?.reconnect !== 'never')) return;
      if (this.#next) this.#port.end(this.#next.conn);
      this.#next = undefined;
      this.#settle();
    } else {
      this.#next = undefined;
      this.timers.clear('login');
      // The node may still complete it, which replaces the later one.
      if (link.phase === 'login' && !error) this.#lateUntil = this.timers.now + LATE_MS;
      if (this.#link) return this.#stay(this.#link);
    }
    const isToken = error?.name.startsWith('TOKEN_');
    // An empty token stands for cookies, which may be others after the end of those that were accepted.
    if (isToken) this.#refused = link.token || link.phase === 'login' ? link.token : undefined;
    else if (error?.reconnect === 'never') return this.#shut(error);
    const wait = reconnectWait(this.#tries++, isToken ? undefined : error, this.#port.random());
    this.#become({ name: 'waiting', retryAt: this.timers.now + wait, error });
    this.timers.set('retry', wait, () => this.#open());
  }

  /** The count of attempts restarts after a while of being live. */
  #settle(): void {
    if (this.timers.now - this.#liveAt >= SETTLED_MS) this.#tries = 0;
  }

  /** The move to another node has failed: goes on with the present connection until the node closes it. */
  #stay(link: Link): void {
    link.phase = 'live';
    // The failed login may still have replaced it.
    link.movedUntil = Math.min(link.movedUntil, this.timers.now + LATE_MS);
    this.outbox.resume();
    this.requests.live();
  }

  /** Ends for the reason of the node; only `online` connects again. Unanswered messages stay in the outbox. */
  #shut(error: TidegateError | undefined): void {
    this.#dropAll();
    this.#become({ name: 'closed', error });
    this.requests.close(error ?? local('CLOSED'));
    if (this.#byeDone) this.#byeDone();
  }

  #lostAll(): void {
    this.outbox.lost();
    this.inbox.lost();
    this.requests.lost();
  }

  #dropAll(): void {
    for (const link of [this.#link, this.#next, this.#old]) if (link) this.#port.end(link.conn);
    this.#link = this.#next = this.#old = undefined;
    this.#alternates = [];
    this.timers.clear('retry', 'login', 'goAway', 'beat', 'refresh', 'old');
    this.#lostAll();
  }

  #welcome(link: Link, welcome: WireWelcome): void {
    const { now } = this.timers;
    this.timers.clear('login');
    this.#port.judged(link.conn, true);
    if (this.#link) this.#leaveOld(this.#link);
    this.#lostAll();
    this.#next = undefined;
    this.#alternates = [];
    this.#link = link;
    link.phase = 'live';
    link.movedUntil = this.#lateUntil;
    this.#refused = undefined;
    this.#session = welcome.session;
    this.#heartbeat = welcome.heartbeatMs || HEARTBEAT_MS;
    this.feed.counting = welcome.settings?.unread || 'all';
    this.#liveAt = this.#heardAt = now;
    this.#become({ name: 'live', node: welcome.node, session: welcome.session, user: this.feed.user });
    // A message to a room is refused before the join.
    this.watches.again();
    this.rooms.again();
    this.requests.features = welcome.features ?? [];
    this.requests.live();
    this.outbox.live(welcome);
    this.inbox.syncStarted();
    this.sync();
    this.#beat(link);
    this.timers.clear('refresh');
    this.#ahead = (welcome.serverTime || now) - now;
    if (this.requests.features.includes('refresh')) this.#planRefresh(link);
  }

  /**
   * Asks for another token five to ten minutes before the present one ends, or after a half to three quarters of what is
   * left of it, if that is later. The spread keeps clients apart whose tokens end at the same time.
   */
  #planRefresh(link: Link): void {
    const left = (link.exp ?? 0) * 1000 - this.timers.now - this.#ahead;
    // Also false for NaN: `exp` of a foreign token may be of another type.
    if (!(left > 0)) return;
    const wait = left - Math.min(left / 4, REFRESH_LEAD_MS) * (1 + this.#port.random());
    this.timers.set('refresh', Math.max(wait, REFRESH_MIN_MS), () => this.#port.renew(link.conn));
  }

  /** The application has this token for a refresh of connection `conn`, or failed for the reason `error`. */
  renewed(conn: number, token: string, { exp }: Claims, error?: TidegateError): void {
    const link = this.#link;
    // A later connection has logged in with a token of its own.
    if (link?.conn !== conn) return;
    const settle = (error?: TidegateError) => {
      this.feed.emit('refresh', { error });
      this.#planRefresh(link);
    };
    if (error) return settle(error);
    // The application has no other token yet.
    if (token === link.token) return this.#planRefresh(link);
    this.requests.add({
      body: { refresh: { token } },
      once: 'connection',
      done: () => {
        link.token = token;
        link.exp = exp;
        settle();
      },
      // The end of the connection, which has no code, settles nothing: the next login has another token.
      fail: (error) => error.code && settle(error),
    });
  }

  /** Lets a replaced connection end by itself, so that its last answers arrive. */
  #leaveOld(link: Link): void {
    link.phase = 'old';
    if (this.#old) this.#port.end(this.#old.conn);
    this.#old = link;
    this.timers.set('old', END_MS, () => {
      this.#old = undefined;
      this.#port.end(link.conn);
    });
  }

  /** Pings when nothing else was written, and gives up a connection that is silent. */
  #beat(link: Link): void {
    const now = this.timers.now;
    const silence = this.#heardAt + 2.5 * this.#heartbeat - now;
    if (silence <= 0) return this.#ended(link);
    // A quarter of the heartbeat is left for delays.
    const quiet = 0.75 * this.#heartbeat;
    if (now >= this.#wroteAt + quiet) this.#ping();
    this.timers.set('beat', Math.min(silence, this.#wroteAt + quiet - now), () => this.#beat(link));
  }

  /** Every other ping carries the positions, so an idle client learns of a lost push. */
  #ping(): void {
    const positions = this.#pings++ % 2 === 0 && this.requests.idle ? this.inbox.positions() : [];
    if (positions.length === 0) return this.#write(this.#link, { ping: {} });
    this.requests.add({
      body: { ping: { positions } },
      once: 'always',
      done: (frame) => {
        for (const { conversation, seq = 0 } of frame.pong?.positions ?? []) this.inbox.exists(conversation, seq);
      },
      fail: () => {},
    });
  }

  #goAway(wire: WireGoAway): void {
    const goAway = { afterMs: 0, windowMs: 0, alternates: [], reason: '', ...wire };
    this.feed.emit('goAway', goAway);
    this.#alternates = goAway.alternates;
    this.#settle();
    // Nodes that send the client back and forth at once make it wait longer each time.
    const wait = this.#tries ? reconnectWait(this.#tries, undefined, this.#port.random()) : 0;
    this.timers.set('goAway', goAway.afterMs + this.#port.random() * goAway.windowMs + wait, () => {
      if (this.#next || !this.#link || this.#byeDone) return;
      this.#tries++;
      // Its node stops, so another known address comes first.
      this.#port.judged(this.#link.conn, false);
      this.#open();
    });
  }

  // Frames.

  /** Handles a frame of the node. */
  frame(conn: number, frame: ServerFrame): void {
    const link = this.#find(conn);
    if (!link) return;
    if (link === this.#link) this.#heardAt = this.timers.now;
    if (frame.close) {
      const isExpected = frame.close.code === REPLACED && this.timers.now < link.movedUntil;
      return this.#ended(link, isExpected ? undefined : fromClose(frame.close));
    }
    if (link === this.#next) {
      if (frame.welcome && link.phase === 'login') this.#welcome(link, frame.welcome);
      return;
    }
    if (frame.ping) return this.#write(link, { id: frame.id, pong: {} });
    if (frame.sendAck || frame.error) {
      if (link === this.#old && !frame.sendAck) return;
      if (this.outbox.answer(frame)) return;
    }
    if (frame.push) return this.inbox.push(frame.push, false);
    if (link === this.#old) return;
    if (this.requests.answer(frame)) return;
    if (frame.behind) this.inbox.exists(frame.behind.conversation, frame.behind.maxSeq ?? 0);
    else if (frame.goAway) this.#goAway(frame.goAway);
    else if (frame.notice) this.#notice(frame.notice);
    else if (frame.presence) this.watches.report(frame.presence);
    else this.feed.inform(frame);
  }

  #notice(notice: NonNullable<ServerFrame['notice']>): void {
    // A kind that is newer than the node's table comes as a number.
    const kind = String(notice.kind ?? '');
    this.feed.emit('notice', { ...notice, kind });
    if (kind.endsWith('ROOM_REMOVED')) this.rooms.removed(roomOf(notice.conversation ?? ''));
    // A skipped id gets its answer without a repeat.
    if (!kind.endsWith('_SKIPPED')) this.outbox.expected(notice.expected);
  }

  /** A message of this client has its place, which fills a hole like a push. */
  #accepted(item: OutboxItem, sent: Sent): void {
    this.#port.answered(item.msgId);
    this.feed.emit('accepted', sent);
    if (!sent.conversation) return;
    const { conversation, msgId, seq, time } = sent;
    const push = { conversation, seq, sender: this.feed.user ?? '', msgId, time, content: item.content, flags: item.flags };
    this.inbox.push(push, true);
  }
}
