// Sessions and a model node over links that delay, reorder nothing, and are cut; time is simulated.
import { Session } from '../../dist/session.js';
import { ModelNode } from './model_node.mjs';
import { generator } from './random.mjs';

export class World {
  now = 1_000_000;
  sessions = new Map();
  #queue = [];
  #order = 0;
  #conns = 0;
  #ids = 0;

  constructor(seed, { cuts = 0.01, faults = true } = {}) {
    this.random = generator(seed);
    this.cuts = cuts;
    const chance = (p) => faults && this.random() < p;
    this.node = new ModelNode(
      chance,
      () => this.now,
      (id, frame, delay = 0) => this.#toClient(id, { frame }, delay),
      (id, close) => this.#toClient(id, { frame: { close } }, 0),
    );
  }

  at(delay, run) {
    this.#queue.push({ at: this.now + delay, order: this.#order++, run });
  }

  /** Frames to one client stay in order, but for those that are delayed on purpose. */
  #toClient(id, what, delay) {
    const link = this.links.get(id);
    if (!link) return;
    const at = delay > 0 ? this.now + delay : (link.last = Math.max(link.last, this.now + 1 + Math.floor(this.random() * 20)));
    this.at(at - this.now, () => {
      if (!this.links.has(id)) return;
      this.session(link.client).frame(link.conn, structuredClone(what.frame));
      this.drain(link.client);
    });
  }

  links = new Map();

  /** Returns the session of a client, with the time. */
  session(client) {
    client.session.timers.now = this.now;
    return client.session;
  }

  /** Adds a client; `heard` collects what its application gets. */
  add(user, device, { positions = {}, fresh = true, items = [], tail } = {}) {
    const client = { user, device, heard: [], states: [], positions: { ...positions }, by: new Map(), stored: new Map() };
    client.session = new Session(
      { device, chain: true, user, settings: undefined, positions, fresh, fromStart: false },
      {
        open: (conn) => this.at(5, () => this.#open(client, conn)),
        write: (conn, frame) => this.#toNode(client, conn, structuredClone(frame)),
        end: (conn) => this.#end(client, conn),
        judged() {},
        newId: () => `${user}-${device}-${++this.#ids}`,
        random: () => this.random(),
        answered: (msgId) => client.stored.delete(msgId),
        moved: (conversation, seq) => (client.positions[conversation] = seq),
      },
    );
    for (const item of items) client.session.outbox.restore(item);
    client.session.outbox.continueAt(tail);
    this.sessions.set(`${user}/${device}`, client);
    this.session(client).online();
    this.drain(client);
    return client;
  }

  #open(client, conn) {
    if (client.gone || !this.session(client).authorized(conn, client.user, {})) return this.drain(client);
    if (this.random() < this.cuts * 5) {
      this.session(client).lost(conn);
      return this.drain(client);
    }
    const id = ++this.#conns;
    client.by.set(conn, id);
    this.links.set(id, { client, conn, last: 0, lastUp: 0 });
    this.node.connect(id);
    this.session(client).opened(conn);
    this.drain(client);
  }

  #toNode(client, conn, frame) {
    const id = client.by.get(conn);
    const link = this.links.get(id);
    if (!link) return;
    link.lastUp = Math.max(link.lastUp, this.now + 1 + Math.floor(this.random() * 20));
    this.at(link.lastUp - this.now, () => {
      if (!this.links.has(id)) return;
      if (this.random() < this.cuts) return this.cut(id);
      this.node.frame(id, frame);
    });
  }

  #end(client, conn) {
    const id = client.by.get(conn);
    this.links.delete(id);
    this.node.cut(id);
  }

  /** Cuts a connection: whatever is on its way in either direction is lost. */
  cut(id) {
    const { client, conn } = this.links.get(id);
    this.links.delete(id);
    this.node.cut(id);
    this.session(client).lost(conn);
    this.drain(client);
  }

  drain(client) {
    for (let event; (event = client.session.feed.events.shift()); ) {
      if (['message', 'sent'].includes(event.name)) client.heard.push(event);
      if (event.name === 'state') client.states.push(event.value.name);
      if (event.name === 'gap') throw new Error(`gap ${JSON.stringify(event.value)}`);
    }
  }

  /** Lets the time pass until nothing is left to do before `until`, or `stop` returns true. */
  run(until, stop = () => false) {
    const end = this.now + until;
    while (!stop()) {
      let next = end;
      for (const it of this.#queue) next = Math.min(next, it.at);
      for (const client of this.sessions.values()) if (!client.gone) next = Math.min(next, client.session.timers.due());
      if (next >= end) {
        this.now = end;
        return false;
      }
      this.now = Math.max(this.now, next);
      const due = this.#queue.filter((it) => it.at <= this.now).sort((a, b) => a.at - b.at || a.order - b.order);
      this.#queue = this.#queue.filter((it) => it.at > this.now);
      for (const it of due) it.run();
      for (const client of this.sessions.values()) {
        if (client.gone) continue;
        this.session(client).timers.run();
        this.drain(client);
      }
    }
    return true;
  }

  /** Sends a message; the result is pushed to `outcomes`. */
  send(client, to, text, outcomes) {
    const item = this.session(client).outbox.add(
      { toUser: to },
      { text },
      {},
      { done: (sent) => outcomes.push({ text, ...sent }), fail: (error) => outcomes.push({ text, error }) },
    );
    client.stored.set(item.msgId, item);
    client.tail = item.tail;
    this.drain(client);
  }
}
