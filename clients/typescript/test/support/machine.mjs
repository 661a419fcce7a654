import { Session } from '../../dist/session.js';

/** A session whose port only records; time moves by `tick`. */
export class Machine {
  opens = [];
  written = [];
  ended = [];
  events = [];
  /** Connections that want another token, with the times. */
  renewals = [];
  #ids = 0;

  constructor(options = {}, random = () => 0.5) {
    this.session = new Session(
      { device: 'phone', chain: false, user: 'alice', settings: undefined, positions: {}, fresh: true, fromStart: false, ...options },
      {
        open: (conn, alternates) => this.opens.push({ conn, alternates, at: this.now }),
        write: (conn, frame) => this.written.push({ conn, ...JSON.parse(JSON.stringify(frame)) }),
        end: (conn) => this.ended.push(conn),
        judged() {},
        renew: (conn) => this.renewals.push({ conn, at: this.now }),
        newId: () => `m${++this.#ids}`,
        random,
        answered() {},
        moved() {},
      },
    );
    this.now = 1_000_000;
    this.session.online();
    this.#drain();
  }

  get now() {
    return this.session.timers.now;
  }

  set now(now) {
    this.session.timers.now = now;
  }

  #drain() {
    this.events.push(...this.session.feed.events.splice(0));
  }

  get conn() {
    return this.opens.at(-1).conn;
  }

  /** Names of the states since the last call. */
  states() {
    const states = this.events.filter((it) => it.name === 'state').map((it) => it.value.name);
    this.events = this.events.filter((it) => it.name !== 'state');
    return states;
  }

  /** Values of the events of one name. */
  of(name) {
    return this.events.filter((it) => it.name === name).map((it) => it.value);
  }

  /** Frames of one kind that were written. */
  frames(kind) {
    return this.written.filter((it) => it[kind]);
  }

  open(token = 't1', claims = {}) {
    if (this.session.authorized(this.conn, token, claims)) this.session.opened(this.conn);
    this.#drain();
  }

  frame(frame, conn = this.conn) {
    this.session.frame(conn, frame);
    this.#drain();
  }

  lost(conn = this.conn) {
    this.session.lost(conn);
    this.#drain();
  }

  /** Lets `ms` pass, timer by timer. */
  tick(ms) {
    const end = this.now + ms;
    for (let due; (due = this.session.timers.due()) <= end; ) {
      this.now = Math.max(this.now, due);
      this.session.timers.run();
      this.#drain();
    }
    this.now = end;
  }

  /** Logs in, and answers the sync with these states. */
  login(welcome = {}, states = [], ...token) {
    this.open(...token);
    this.frame({ id: this.frames('hello').at(-1).id, welcome: { session: 's1', node: 'n1', heartbeatMs: 30_000, ...welcome } });
    const { id } = this.frames('sync').at(-1);
    for (const conversationState of states) this.frame({ id, conversationState });
    this.frame({ id, syncEnd: {} });
  }

  send(text, to = 'bob', options = {}) {
    const outcome = {};
    const target = to.includes(':') ? { conversation: to } : { toUser: to };
    this.session.outbox.add(target, { text }, options, { done: (sent) => (outcome.sent = sent), fail: (error) => (outcome.error = error) });
    this.#drain();
    return outcome;
  }

  /** The application answers a renewal. */
  renewed(token, exp, error) {
    this.session.renewed(this.conn, token, { exp }, error);
    this.#drain();
  }

  push(seq, more = {}) {
    this.frame({ push: { conversation: 'd:alice:bob', seq, sender: 'bob', msgId: `b${seq}`, time: seq, content: { text: `t${seq}` }, ...more } });
  }
}
