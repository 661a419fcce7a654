// A node as the protocol describes it, much simplified, for simulations: conversations, dedup, chains, pushes, pulls.

const CODES = { RATE_LIMITED: 4014, UNKNOWN: 4012, NOT_YET: 4015, BUSY: 4013, BAD_LINK: 4004, BAD_STATE: 1003 };
const PAGE = 5;

const refusal = (name, temporary, retryAfterMs = 0) => ({
  error: { code: CODES[name], name, message: name, ...(temporary ? { temporary, retryAfterMs } : {}) },
});

/** State that outlives connections, and the connections. `chance(p)` decides about faults. */
export class ModelNode {
  logs = new Map();
  done = new Map();
  chains = new Map();
  conns = new Map();
  violations = [];

  constructor(chance, now, deliver, close) {
    this.chance = chance;
    this.now = now;
    this.deliver = deliver;
    this.close = close;
  }

  log(conversation) {
    if (!this.logs.has(conversation)) this.logs.set(conversation, []);
    return this.logs.get(conversation);
  }

  connect(id) {
    this.conns.set(id, { id, user: undefined, held: [], refused: undefined, live: false });
  }

  cut(id) {
    this.conns.delete(id);
  }

  /** Ends a connection so that its client does not connect again by itself. */
  kick(id) {
    this.close(id, { code: 3501, name: 'KICKED', reconnect: 'RECONNECT_NEVER' });
    this.conns.delete(id);
  }

  /** Forgets the position of a chain, as a node does that restarts. */
  forget() {
    for (const chain of this.chains.values()) chain.expected = undefined;
  }

  frame(id, frame) {
    const conn = this.conns.get(id);
    if (!conn) return;
    const reply = (body) => this.deliver(id, frame.id ? { id: frame.id, ...body } : body);
    if (frame.hello) return this.#hello(conn, frame, reply);
    if (!conn.live) return this.violations.push(`${Object.keys(frame)} before welcome`);
    if (frame.send) this.#send(conn, frame.send, reply);
    else if (frame.ack) this.#ack(conn, frame.ack);
    else if (frame.sync) this.#sync(conn, reply);
    else if (frame.pull) this.#pull(conn, frame.pull, reply);
    else if (frame.ping) this.#ping(conn, frame.ping, reply);
    else if (frame.bye) {
      reply({ done: {} });
      this.close(id, { code: 3000, name: 'BYE', reconnect: 'RECONNECT_NOW' });
    }
  }

  #hello(conn, { hello }, reply) {
    if (conn.live) return this.violations.push('second hello');
    [conn.user, conn.device] = [hello.token, hello.device];
    for (const other of this.conns.values()) {
      if (other !== conn && other.live && other.user === conn.user && other.device === conn.device) {
        this.close(other.id, { code: 3500, name: 'REPLACED', reconnect: 'RECONNECT_NEVER' });
        this.conns.delete(other.id);
      }
    }
    conn.live = true;
    conn.key = `${conn.user}/${conn.device}`;
    if (!this.done.has(conn.key)) this.done.set(conn.key, new Map());
    let nextId;
    if (hello.nextId) {
      const chain = this.chains.get(conn.key) ?? {};
      this.chains.set(conn.key, chain);
      // The table of section 6: the declaration wins unless it is done.
      if (!chain.expected || !this.done.get(conn.key).has(hello.nextId)) chain.expected = hello.nextId;
      nextId = chain.expected;
    }
    reply({ welcome: { session: `s${conn.id}`, node: 'n1', heartbeatMs: 5000, limits: { inFlightMax: 16, holdMax: 16 }, ...(nextId ? { nextId } : {}) } });
  }

  #send(conn, send, reply) {
    const chain = send.nextId ? this.chains.get(conn.key) : undefined;
    // A retry of a done id is answered at once. If the chain expects it, because it was forgotten, it also goes on from there.
    if (this.done.get(conn.key).has(send.msgId)) {
      this.#again(conn, send, reply);
      if (chain?.expected !== send.msgId) return;
      chain.expected = send.nextId;
      return this.#release(conn, chain);
    }
    if (!send.nextId) return this.#accept(conn, send, reply);
    if (conn.refused) {
      if (send.msgId !== conn.refused) return reply(refusal('RATE_LIMITED', true, 100));
      conn.refused = undefined;
    }
    conn.held.push({ send, reply });
    this.#release(conn, chain);
  }

  #again(conn, send, reply) {
    const { content, ack } = this.done.get(conn.key).get(send.msgId);
    if (content !== JSON.stringify(send.content)) this.violations.push(`${send.msgId} has another content`);
    if (!send.attempt) this.violations.push(`${send.msgId} is repeated with attempt 0`);
    reply({ sendAck: { ...ack, duplicate: true } });
  }

  #release(conn, chain) {
    for (;;) {
      const at = conn.held.findIndex((it) => it.send.msgId === chain.expected);
      if (at < 0) return;
      const [{ send: next, reply: answer }] = conn.held.splice(at, 1);
      if (this.chance(0.05)) {
        conn.refused = next.msgId;
        answer(refusal('RATE_LIMITED', true, 100));
        for (const it of conn.held.splice(0)) it.reply(refusal('RATE_LIMITED', true, 100));
        return;
      }
      chain.expected = next.nextId;
      this.#accept(conn, next, answer);
    }
  }

  #accept(conn, send, reply) {
    const conversation = send.conversation ?? `d:${[conn.user, send.toUser].sort().join(':')}`;
    const log = this.log(conversation);
    const push = { conversation, seq: log.length + 1, sender: conn.user, msgId: send.msgId, time: this.now(), content: send.content };
    log.push(push);
    const ack = { conversation, msgId: send.msgId, seq: push.seq, time: push.time };
    this.done.get(conn.key).set(send.msgId, { content: JSON.stringify(send.content), ack });
    reply(this.chance(0.05) ? refusal('UNKNOWN', true, 50) : { sendAck: ack });
    const members = conversation.split(':').slice(1);
    for (const other of this.conns.values()) {
      if (!other.live || other === conn || !members.includes(other.user)) continue;
      if (this.chance(0.1)) {
        if (this.chance(0.5)) this.deliver(other.id, { behind: { conversation, maxSeq: push.seq } }, 300);
        continue;
      }
      this.deliver(other.id, { push });
      if (this.chance(0.1)) this.deliver(other.id, { push }, 200);
    }
  }

  #ack(conn, { conversation, seq }) {
    if (seq > this.log(conversation).length) this.violations.push(`ack of ${seq} in ${conversation}, which does not exist`);
  }

  #mine(user) {
    return [...this.logs].filter(([key, log]) => log.length > 0 && key.split(':').slice(1).includes(user));
  }

  #sync(conn, reply) {
    for (const [conversation, log] of this.#mine(conn.user)) {
      reply({ conversationState: { conversation, maxSeq: log.length, minSeq: 1, last: log.at(-1) } });
    }
    reply({ syncEnd: {} });
  }

  #ping(conn, { positions = [] }, reply) {
    const known = new Map(positions.map((it) => [it.conversation, it.seq ?? 0]));
    const ahead = this.#mine(conn.user).filter(([key, log]) => log.length > (known.get(key) ?? 0));
    reply({ pong: positions.length ? { positions: ahead.map(([conversation, log]) => ({ conversation, seq: log.length })) } : {} });
  }

  #pull(conn, { conversation, cursor = 0, direction }, reply) {
    const log = this.log(conversation);
    if (this.chance(0.1)) return reply(refusal('BUSY', true, 50));
    if (direction !== 'DIRECTION_FORWARD') return this.violations.push('unexpected pull');
    if (cursor >= log.length) return reply(refusal('NOT_YET', true, 100));
    reply({ page: { conversation, messages: log.slice(cursor, cursor + PAGE), completeTo: log.length } });
  }
}
