import { ApiError, get } from "../live/api.ts";
import { allows, boot, isFull, loadBoot } from "../live/boot.ts";
import { postOn } from "../live/forward.ts";
import type { NodeRow, Nodes } from "../live/nodes.ts";
import { codeName } from "../words/codes.ts";
import { duration } from "../words/numbers.ts";
import { SENTENCES, type Facts } from "../words/sentences.ts";
import type { IconName } from "../parts/icon.tsx";
import { awayMs, measure, type Measured } from "./facts.ts";
import { contentText, number, text, type Frame } from "./frames.ts";
import { seqs, short } from "../words/numbers.ts";
import type { Band, Tone } from "./items.ts";
import type { Person } from "./person.ts";
import type { Mode, Stage } from "./stage.ts";

/** A break on the deck. */
export interface Break {
  readonly name: string;
  readonly icon: IconName;
  readonly label: string;
  readonly note: string;
  readonly tone: Tone;
  /** Why it can't be used now; empty if it can. */
  blocked(mode: Mode): string;
  run(it: Running): Promise<void>;
}

/** Time for which a link stays cut unless it is mended earlier. */
const CUT_MS = 3200;
const OFFLINE_MS = 10_000;
const FLOOD = 300;

/** A break that was begun. */
export class Running {
  readonly stage: Stage;
  readonly what: Break;
  readonly who: Person;
  readonly other: Person;
  readonly from = performance.now();
  readonly facts: Facts;
  to: number | undefined;
  /** What was measured last. */
  measurement: Measured | undefined;
  /** What is still measured after the break, and adds to its sentence. */
  later: Promise<void> | undefined;
  private stopped = false;
  private wake = () => {};

  constructor(stage: Stage, what: Break, who: Person) {
    this.stage = stage;
    this.what = what;
    this.who = who;
    this.other = stage.other(who);
    this.facts = { who: who.name, other: this.other.name, durable: stage.isDurable, isRoom: stage.mode === "room" };
  }

  /** Ends the break as early as it can end. */
  stop(): void {
    this.stopped = true;
    this.wake();
  }

  get isStopped(): boolean {
    return this.stopped;
  }

  /** Waits for a time, or until the break is ended. */
  pause(ms: number): Promise<void> {
    if (this.stopped) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = window.setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Waits for a condition, a limit, or the end of the break. */
  until(condition: () => boolean, limitMs: number): Promise<boolean> {
    return this.stage.until(() => this.stopped || condition(), limitMs);
  }

  /** Lets a person say the next line of the story. */
  say(person: Person): Promise<string> {
    return this.stage.tell(person);
  }

  /** Adds a remark to the person's half of the wire. */
  mark(words: string, icon?: IconName): void {
    this.stage.wire.mark(performance.now(), this.stage.people.indexOf(this.who), words, this.what.tone, icon);
    this.stage.changed();
  }

  /** Tints the person's half of the wire from now on. */
  band(isGone: boolean): Band {
    return this.stage.wire.begin(this.stage.people.indexOf(this.who), this.what.tone, isGone);
  }

  /** Measures the stretch of the break, after everybody has caught up. */
  async measured(): Promise<void> {
    await this.stage.until(() => this.stage.isSettled, 15_000);
    const it = measure(this.stage.recorder.events, this.who.name, this.from, this.to ?? performance.now());
    this.measurement = it;
    Object.assign(this.facts, { sent: it.sent, had: it.had, got: it.got, again: it.again, repeated: it.repeated, missed: this.stage.mode === "room" ? this.stage.missing(this.who).length : 0 });
    if (it.ackMs !== undefined) this.facts.ackMs = it.ackMs;
    const code = it.closed.find((code) => code > 0);
    if (code !== undefined) this.facts.closed = codeName(code);
  }

  /** The sentence about the break so far. */
  sentence(): string {
    return SENTENCES[this.what.name]?.(this.facts) ?? "";
  }
}

function owner(name: string): string {
  return `${name}’s`;
}

/** Marks in the wire which messages wait, once there are any. */
function waits(it: Running): void {
  if (it.stage.mode === "room") return;
  const list = it.stage.missing(it.who);
  if (list.length > 0) it.mark(`${seqs(list)} ${list.length === 1 ? "waits" : "wait"} ${it.stage.isDurable ? "on disk" : "in memory"}`);
}

const cut: Break = {
  name: "cut", icon: "cut", label: "Cut the link", note: "the socket just dies", tone: "red",
  blocked: () => (allows("cut") ? "" : "only on a development node"),
  async run(it) {
    const band = it.band(true);
    it.mark(`You cut ${owner(it.who.name)} link`, "cut");
    it.who.tap.setCut(true);
    try {
      await postOn(it.who.node, "/v1/dev/cut", { user: it.who.name, device: it.who.device });
      await it.pause(600);
      if (!it.isStopped) void it.say(it.other);
      await it.pause(900);
      if (!it.isStopped) void it.say(it.other);
      await it.pause(CUT_MS - 1500);
      waits(it);
    } finally {
      it.stage.wire.end(band);
      it.who.tap.setCut(false);
    }
    await it.stage.until(() => it.who.isLive, 30_000);
    it.to = performance.now();
    it.facts.forMs = awayMs(it.who.away, it.from, it.to);
    await it.measured();
    remark(it, it.facts.got && it.facts.got.length > 0 ? `Link cut. ${seqs(it.facts.got)} fetched.` : "Link cut, and mended.");
  },
};

/** Adds a remark to the person's chat, before what was fetched. */
function remark(it: Running, words: string): void {
  const first = it.who.lines.findIndex((line) => "cid" in line && (it.facts.got ?? []).includes(it.stage.messages.get(line.cid)?.seq ?? 0));
  const at = first < 0 ? it.who.lines.length : first;
  it.who.lines = [...it.who.lines.slice(0, at), { remark: words, tone: it.what.tone }, ...it.who.lines.slice(at)];
  it.stage.changed();
}

const freeze: Break = {
  name: "freeze", icon: "freeze", label: "Freeze", note: "reads, acks nothing", tone: "amber",
  blocked: (mode) => (mode === "room" ? "no acks here" : ""),
  async run(it) {
    const band = it.band(false);
    it.mark(`You froze ${owner(it.who.name)} client`, "freeze");
    let kept: Frame | undefined;
    const session = it.who.session;
    it.who.tap.hold = (frame) => {
      if (frame.kind !== "ack") return false;
      kept = frame;
      return true;
    };
    try {
      await it.pause(300);
      if (!it.isStopped) void it.say(it.other);
      await it.until(() => !it.who.tap.isOpen || it.who.session !== session, 40_000);
      it.facts.forMs = performance.now() - it.from;
    } finally {
      it.stage.wire.end(band);
      it.who.tap.hold = undefined;
    }
    if (it.who.session === session && kept) it.who.tap.release(kept);
    it.to = performance.now();
    await it.stage.until(() => it.who.isLive, 30_000);
    await it.measured();
    if (!it.facts.closed || it.isStopped) delete it.facts.closed;
    if (it.measurement?.shown !== undefined) it.facts.shown = it.measurement.shown;
  },
};

const offline: Break = {
  name: "offline", icon: "offline", label: "Go offline", note: "for ten seconds", tone: "red",
  blocked: () => "",
  async run(it) {
    const band = it.band(true);
    it.mark(`${it.who.name} is offline`, "offline");
    it.who.client.offline();
    try {
      for (const wait of [1200, 1800, 1800]) {
        await it.pause(wait);
        if (!it.isStopped) void it.say(it.other);
      }
      await it.pause(OFFLINE_MS - (performance.now() - it.from));
      waits(it);
    } finally {
      it.stage.wire.end(band);
      it.who.client.online();
    }
    await it.stage.until(() => it.who.isLive, 30_000);
    it.to = performance.now();
    it.facts.forMs = awayMs(it.who.away, it.from, it.to);
    await it.measured();
    if (it.facts.got && it.facts.got.length > 0) remark(it, `Away for ${duration(it.facts.forMs)}. ${seqs(it.facts.got)} fetched.`);
  },
};

const twice: Break = {
  name: "twice", icon: "twice", label: "Send it twice", note: "same id, same text", tone: "amber",
  blocked: (mode) => (mode === "room" ? "no ids here" : ""),
  async run(it) {
    const mine = () => [...it.stage.messages.values()].filter((shown) => shown.sender === it.who.name && shown.state === "acked");
    if (mine().length === 0) await it.say(it.who);
    await it.until(() => mine().length > 0, 10_000);
    const message = mine().at(-1);
    if (!message) return;
    const band = it.band(false);
    it.mark(`You sent ${message.seq} again`, "twice");
    it.facts.id = message.cid;
    const target = it.stage.mode === "pair" ? { toUser: it.other.name } : { conversation: it.stage.conv };
    const body = { ...target, msgId: message.cid, attempt: 1, content: { text: message.text } };
    const take = (frame: Frame) => {
      if (frame.kind === "sendAck") Object.assign(it.facts, { seq: number(frame.body, "seq"), duplicate: frame.body["duplicate"] === true });
      if (frame.kind === "error") it.facts.refused = text(frame.body, "name");
      return true;
    };
    await it.who.tap.request("send", body, take, true);
    await it.pause(600);
    it.stage.wire.end(band);
    it.to = performance.now();
    const shown = it.other.lines.filter((line) => "cid" in line && line.cid === message.cid);
    it.facts.shown = shown.length;
  },
};

const skip: Break = {
  name: "skip", icon: "skip", label: "Skip an id", note: "keep one back", tone: "amber",
  blocked: (mode) => (mode === "room" ? "no chain here" : ""),
  async run(it) {
    const band = it.band(false);
    let [kept, noticed, gaveUp]: [Frame | undefined, number, number] = [undefined, 0, 0];
    let after = 0;
    it.who.tap.hold = (frame) => {
      if (frame.kind !== "send") return false;
      const id = text(frame.body, "msgId");
      if (!kept || text(kept.body, "msgId") === id) {
        const isFirst = !kept;
        kept = frame;
        if (isFirst) keep(it, frame);
        return true;
      }
      after += 1;
      return false;
    };
    const from = performance.now();
    void it.say(it.who);
    void it.say(it.who);
    void it.say(it.who);
    const started = it.stage.wire.items.length;
    const seen = (kind: string) => it.stage.wire.items.slice(started).find((item) => item.kind === "frame" && item.frame.kind === "notice" && text(item.frame.body, "kind") === kind)?.at;
    await it.stage.until(() => (noticed = seen("NOTICE_KIND_ORDER_BLOCKED") ?? 0) > 0 || it.isStopped, 20_000);
    await it.stage.until(() => (gaveUp = seen("NOTICE_KIND_ORDER_SKIPPED") ?? 0) > 0 || it.isStopped, 20_000);
    it.stage.wire.end(band);
    if (noticed) it.facts.warnedMs = noticed - from;
    if (gaveUp) Object.assign(it.facts, { gaveUpMs: gaveUp - from, held: after });
    await it.pause(3000);
    it.who.tap.hold = undefined;
    it.to = performance.now();
    const late = kept as Frame | undefined;
    if (!late) return;
    it.facts.id = text(late.body, "msgId");
    it.who.tap.release(late);
    const cid = it.facts.id;
    const isOver = () => ["refused", "acked"].includes(it.stage.messages.get(cid)?.state ?? "");
    const refusal = () => it.stage.recorder.events.find((event) => "send_fail" in event && event.send_fail.cid === cid);
    await it.stage.until(() => refusal() !== undefined || isOver(), 15_000);
    const event = refusal();
    if (event && "send_fail" in event) {
      it.facts.refused = codeName(event.send_fail.code);
      const shown = it.stage.messages.get(cid);
      if (shown) Object.assign(shown, { state: "refused", note: "refused, came too late" });
    }
  },
};

/** Shows that a send is kept back. */
function keep(it: Running, frame: Frame): void {
  const cid = text(frame.body, "msgId");
  it.stage.named(it.who, cid, contentText(frame.body));
  // The client sent it before the others, and its order counts if it arrives before it is given up.
  it.stage.recorder.frame(it.who.session, "out", frame, performance.now());
  const shown = it.stage.messages.get(cid);
  if (shown) shown.state = "held";
  it.mark(`You kept ${short(cid)} back`, "skip");
}

const flood: Break = {
  name: "flood", icon: "flood", label: "Flood", note: `${FLOOD} at once`, tone: "amber",
  blocked: () => "",
  async run(it) {
    const band = it.band(false);
    it.mark(`${it.who.name} sends ${FLOOD} at once`, "flood");
    const first = it.stage.recorder.events.length;
    const all = Array.from({ length: FLOOD }, (_, index) => it.stage.say(it.who, `flood ${index + 1} of ${FLOOD}`, true));
    await Promise.allSettled(all);
    it.facts.forMs = performance.now() - it.from;
    it.stage.wire.end(band);
    it.to = performance.now();
    const events = it.stage.recorder.events.slice(first);
    const refused = new Set(events.flatMap((event) => ("send_info" in event ? [event.send_info.cid] : [])));
    it.facts.total = FLOOD;
    it.facts.atOnce = FLOOD - refused.size;
    const wait = it.stage.wire.items.find((item) => item.at >= it.from && item.kind === "frame" && item.frame.kind === "error" && text(item.frame.body, "name") === "RATE_LIMITED");
    if (wait && wait.kind === "frame") it.facts.retryMs = number(wait.frame.body, "retryAfterMs");
    await it.stage.until(() => it.stage.isSettled, 30_000);
    const shown = new Set(it.stage.recorder.events.slice(first).flatMap((event) => ("recv" in event && event.recv.via === "app" && event.recv.user === it.other.name ? [event.recv.cid] : [])));
    it.facts.shown = shown.size;
  },
};

const drain: Break = {
  name: "drain", icon: "drain", label: "Drain", note: "a planned restart", tone: "amber",
  blocked: () => (isFull() ? "" : "this console is read-only"),
  async run(it) {
    const isAlone = (boot.value?.nodes ?? 1) < 2;
    const node = it.who.node;
    it.facts.node = node || (boot.value?.node ?? "the node");
    const band = it.band(false);
    it.mark(`You drain ${it.facts.node}`, "drain");
    const started = it.stage.wire.items.length;
    const person = it.stage.people.indexOf(it.who);
    const notice = () => it.stage.wire.items.slice(started).find((item) => item.kind === "frame" && item.person === person && item.frame.kind === "goAway");
    const [before, session] = [it.who.node, it.who.session];
    // The node goes on once all have their notice: with few clients a full drain would end its process at once.
    await postOn(node, "/v1/drain", { until: "noticed" });
    try {
      await it.until(() => notice() !== undefined, 15_000);
      const item = notice();
      if (item?.kind === "frame") {
        const slotMs = number(item.frame.body, "afterMs") + number(item.frame.body, "windowMs");
        it.facts.slotMs = slotMs;
        if (isAlone) await it.until(() => it.who.isLive && it.who.session !== session, slotMs + 10_000);
        else {
          await it.until(() => it.who.isLive && it.who.node !== before, 40_000);
          if (it.who.node !== before) Object.assign(it.facts, { to: it.who.node, movedMs: performance.now() - item.at });
        }
      }
    } finally {
      it.stage.wire.end(band);
    }
    void it.say(it.other);
    await it.pause(500);
    await it.stage.until(() => it.stage.people.every((one) => one.isLive), 30_000);
    // A new link is what shows that the node had asked, and that somebody serves the person again.
    if (it.facts.slotMs !== undefined && it.who.isLive && it.who.session !== session) it.facts.goesOn = true;
    it.to = performance.now();
    if (it.who.away && it.who.away.at >= it.from) it.facts.forMs = it.who.away.ms;
    await it.measured();
  },
};

/** Time between two looks at who owns the partitions of a node that died. */
const OWNERS_MS = 250;

/** Returns the nodes that answer for partitions now; none if the page's node does not say it. */
async function owners(): Promise<readonly NodeRow[]> {
  const it = await get<Nodes>("/v1/nodes").catch(() => undefined);
  return it?.nodes.filter((node) => node.lease === "live") ?? [];
}

/** Time within which a node that died is expected to have been replaced as an owner. */
const TAKEN_MS = 30_000;

/** Records who owns all partitions of a node that died, and since when. */
async function followOwners(it: Running, died: string, lost: readonly number[], from: number): Promise<void> {
  while (lost.length > 0 && performance.now() - from < TAKEN_MS) {
    const others = (await owners()).filter((node) => node.node !== died);
    if (lost.every((partition) => others.some((node) => node.owns.includes(partition)))) {
      const takers = others.filter((node) => lost.some((partition) => node.owns.includes(partition))).map((node) => node.node);
      return void Object.assign(it.facts, { takers, takenMs: performance.now() - from });
    }
    await new Promise((resolve) => setTimeout(resolve, OWNERS_MS));
  }
}

const kill: Break = {
  name: "kill", icon: "kill", label: "Kill", note: "the process aborts", tone: "red",
  blocked: () => (allows("abort") ? ((boot.value?.nodes ?? 1) > 1 ? "" : "no other node is left") : "only in a cluster"),
  async run(it) {
    it.facts.node = it.who.node || (boot.value?.node ?? "the node");
    const before = it.who.session;
    const alike = it.stage.people.filter((one) => one !== it.who && one.node === it.who.node).map((one) => ({ one, session: one.session }));
    const gone = [it.who, ...alike.map(({ one }) => one)];
    for (const one of gone) it.stage.untilHello(one, "red");
    it.mark(`You killed ${it.facts.node}`, "kill");
    // Everybody has to know all nodes before one ends that could name the others.
    await loadBoot().catch(() => {});
    const lost = (await owners()).find((node) => node.node === it.facts.node)?.owns ?? [];
    const died = performance.now();
    // The node ends before it answers.
    await postOn(it.who.node, "/v1/dev/abort", {}).catch((error: unknown) => {
      if (!(error instanceof ApiError) || error.code === 0) return;
      for (const one of gone) it.stage.endGone(one);
      throw error;
    });
    it.stage.recorder.push(performance.now(), { down: { node: it.facts.node } });
    it.later = followOwners(it, it.facts.node, lost, died);
    void it.say(it.other);
    const isBack = await it.stage.until(() => it.who.isLive && it.who.session !== before, 60_000);
    it.to = performance.now();
    if (isBack) Object.assign(it.facts, { to: it.who.node, movedMs: awayMs(it.who.away, it.from, it.to) });
    await it.measured();
    it.facts.moved = alike.map(({ one, session }) => ({ name: one.name, to: one.isLive && one.session !== session ? one.node : "" }));
  },
};

/** The deck. */
export const BREAKS: readonly Break[] = [cut, freeze, offline, twice, skip, flood, drain, kill];
