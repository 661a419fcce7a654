import { signal } from "@preact/signals";
import { Audience } from "./audience.ts";
import { ApiError, get, post } from "../live/api.ts";
import { boot } from "../live/boot.ts";
import { direct, number, contentText, text, type Frame } from "./frames.ts";
import type { StoredEntry, Stamped } from "./history.ts";
import { Wire, type Band, type Tone } from "./items.ts";
import { isRoom, judge, type Judgement } from "./judge.ts";
import { Person } from "./person.ts";
import { firstEntry, lastSeq, pullOn } from "./pulls.ts";
import { Recorder } from "./recorder.ts";
import { nextLine } from "../words/lines.ts";

/** Kinds of a stage. */
export type Mode = "pair" | "group" | "room";

/** A message as the page knows it. */
export interface Shown {
  readonly cid: string;
  readonly sender: string;
  readonly text: string;
  seq: number;
  state: "waits" | "sent" | "acked" | "refused" | "held";
  note: string;
  /** Whether the page wrote it for a break. */
  readonly isOfPage: boolean;
  readonly ackedBy: Set<string>;
  readonly readBy: Set<string>;
}

interface Trace {
  readonly steps: readonly { readonly step: string; readonly timeUs: number; readonly msg?: string; readonly trace?: string }[];
}

/** Time without news after which the histories are pulled and compared. */
const QUIET_MS = 700;
/** Time without news after which a message that has not arrived counts as missing, with everybody connected. */
const LATE_MS = 4000;
/** Time without news after which a live room is judged: longer than a node takes to announce what it dropped. */
const ROOM_QUIET_MS = 2200;
const WATCH_AGAIN_MS = 9 * 60_000;

/** The people of the page, what they said, and what is known about it. */
export class Stage {
  readonly mode: Mode;
  private readonly isFresh: boolean;
  readonly people: Person[];
  /** Those who only listen, in a live room. */
  readonly audience: Audience | undefined;
  readonly recorder = new Recorder();
  readonly wire = new Wire();
  readonly messages = new Map<string, Shown>();
  /** Rises when something changed, at most once a frame. */
  readonly version = signal(0);
  readonly judgement = signal<Judgement>({ counts: { sent: 0, acked: 0, refused: 0, inFlight: 0, delivered: 0, waiting: new Map() }, findings: [] });
  /** Whether the newest judgement covers everything, with pulled histories. */
  readonly isChecked = signal(false);
  readonly problem = signal("");
  conv = "";
  /** Hides the message with this number to the second person, to show that the counter can fail. */
  plant = 0;
  /** The number as the page was asked for it; `plant` counts down. */
  planted = 0;
  /** The last seq before this page; undefined until it is known. */
  private base: number | undefined;
  /** The lowest seq that a message of this page got. */
  private first = Infinity;
  private pulled = new Map<string, StoredEntry[]>();
  private readonly pulling = new Map<string, Promise<void>>();
  private readonly syncs = new Map<string, number>();
  private readonly sessions = new Map<number, Person>();
  private readonly waiters = new Set<() => void>();
  private drawn = 0;
  private quiet = 0;
  /** Breaks under way: nothing is missing before they end. */
  breaks = 0;
  private newsAt = 0;
  private watch = 0;
  private judged = 0;
  private isOver = false;
  private readonly gone = new Map<number, Band>();
  private toTrace: string[] = [];
  private isTracing = false;
  /** Lines of the story that were said. */
  private told = 0;
  /**
   * Resolves once everybody shows what is sent from now on, the conversation exists, and people of a room have joined: an earlier
   * send would be refused, or not be shown.
   */
  opened = Promise.resolve();

  /** With `isFresh` the people of a group talk in a new one. */
  constructor(mode: Mode, isFresh = false) {
    this.mode = mode;
    this.isFresh = isFresh;
    const names = mode === "group" ? ["alice", "bob", "carol"] : ["alice", "bob"];
    this.people = names.map((name, index) => this.person(name, index));
    this.audience = mode === "room" ? new Audience(this.recorder, () => this.changed()) : undefined;
  }

  /** Connects everybody, and begins the record. */
  async start(): Promise<void> {
    this.watchAll();
    this.watch = window.setInterval(() => this.watchAll(), WATCH_AGAIN_MS);
    let open = () => {};
    this.opened = new Promise((resolve) => (open = resolve));
    try {
      const [fresh, today] = [`try-${Date.now().toString(36)}`, `try-${new Date().toISOString().slice(0, 10)}`];
      const group = this.isFresh ? fresh : today;
      this.conv = { pair: direct("alice", "bob"), group: `g:${group}`, room: `r:${fresh}` }[this.mode];
      for (const person of this.people) this.begin(person);
      await Promise.all(this.people.map((person) => person.client.live()));
      performance.mark("connected");
      await this.until(() => this.people.every((person) => person.isSynced));
      // Everybody is connected by now, so that the wire shows how they get to know of the group.
      const isNew = this.mode === "room" || (this.mode === "group" && (await this.isCreated(group)));
      if (this.mode !== "room") open();
      const bases = await Promise.all(this.people.map((person) => (isNew ? 0 : this.lastSeqFor(person))));
      this.setBase(Math.min(...bases));
      if (this.audience) await Promise.all([...this.people.map((person) => person.client.join(this.conv)), this.audience.enter(this.conv)]);
      this.problem.value = "";
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      this.problem.value = error instanceof ApiError ? `${error.title}: ${text} ${error.cure}`.trim() : text;
    }
    open();
    this.changed();
  }

  /** Creates a group, and returns whether it is new: the group of a day has one request id, so that all loads of that day share it. */
  private async isCreated(id: string): Promise<boolean> {
    const { duplicate } = await post<{ readonly duplicate: boolean }>("/v1/groups", { id, members: this.people.map((it) => it.name), requestId: id });
    return !duplicate;
  }

  /** Compares histories from behind this seq on. What the page itself sent is not before it, however late its answer came. */
  private setBase(base: number): void {
    this.base = Math.min(base, this.first - 1);
    for (const person of this.people) this.pulled.set(person.name, []);
    clearTimeout(this.quiet);
    this.quiet = window.setTimeout(() => void this.check(), QUIET_MS);
  }

  /** Asks for the last seq of the conversation, again if the link ends meanwhile: a break may begin at once. */
  private async lastSeqFor(person: Person): Promise<number> {
    for (let tries = 1; ; tries += 1) {
      try {
        return await lastSeq(person.tap, this.conv);
      } catch (error) {
        if (this.isOver || tries > 5) throw error;
        await this.until(() => person.isLive, 30_000);
      }
    }
  }

  /** Ends all clients. */
  stop(): void {
    this.isOver = true;
    clearInterval(this.watch);
    clearTimeout(this.quiet);
    for (const person of this.people) person.stop();
    this.audience?.stop();
  }

  /** Sends the next line of the story as a person. */
  tell(person: Person): Promise<string> {
    const texts = [...this.messages.values()].map((it) => it.text);
    return this.say(person, nextLine(this.told++, person === this.people[0] ? 0 : 1, texts), true);
  }

  /** Sends a text as a person; its bubble appears at once. */
  say(person: Person, text: string, isOfPage = false): Promise<string> {
    const line = { text, cid: `unnamed-${performance.now()}-${Math.random()}` };
    person.unnamed.push(line);
    this.messages.set(line.cid, { cid: line.cid, sender: person.name, text, seq: 0, state: "waits", note: "", isOfPage, ackedBy: new Set(), readBy: new Set() });
    person.lines.push({ cid: line.cid });
    this.changed();
    const to = this.mode === "pair" ? (person.name === "alice" ? "bob" : "alice") : this.conv;
    return this.opened.then(() => person.client.send(to, text)).then(
      (it) => it.msgId,
      (error: unknown) => {
        const shown = this.messages.get(line.cid);
        if (shown && shown.state !== "acked") {
          shown.state = "refused";
          shown.note ||= error instanceof Error ? error.name : "";
        }
        this.changed();
        return line.cid;
      },
    );
  }

  /** Milliseconds from receipt to sync of a message. */
  syncMs(cid: string): number | undefined {
    return this.syncs.get(cid);
  }

  /** Seqs of messages of others that a person's screen lacks so far. */
  missing(person: Person): number[] {
    const has = new Set(person.lines.map((line) => ("cid" in line ? line.cid : "")));
    return [...this.messages.values()].filter((it) => it.sender !== person.name && it.seq > 0 && !has.has(it.cid)).map((it) => it.seq);
  }

  /** The other person of a pair, or the first other one. */
  other(person: Person): Person {
    return this.people.find((it) => it !== person) ?? person;
  }

  /** Resolves once a condition holds, which is looked at after each change. */
  until(condition: () => boolean, limitMs = 30_000): Promise<boolean> {
    if (condition()) return Promise.resolve(true);
    return new Promise((resolve) => {
      const end = (result: boolean) => {
        clearTimeout(timer);
        this.waiters.delete(look);
        resolve(result);
      };
      const look = () => condition() && end(true);
      const timer = window.setTimeout(() => end(false), limitMs);
      this.waiters.add(look);
    });
  }

  /** Nodes that the people are connected to, each once. */
  get nodes(): string[] {
    return [...new Set(this.people.map((person) => person.node).filter(Boolean))].sort();
  }

  /** People that another tab logged in as: their clients here have ended. */
  get replaced(): string[] {
    return this.people.filter(({ state }) => state.value.name === "closed" && state.value.error?.name === "REPLACED").map((it) => it.name);
  }

  /** Whether the message of a finding is the one that this page hides. */
  isPlanted(cid: string): boolean {
    return [...this.recorder.hidden].some((it) => it.endsWith(` ${cid}`));
  }

  /** Whether everybody is connected, listeners included. */
  get isLive(): boolean {
    return this.people.every((person) => person.isLive) && (this.audience?.isLive ?? true);
  }

  /** Whether everybody is connected and has everything that was acked. */
  get isSettled(): boolean {
    const { counts } = this.judgement.value;
    return this.isLive && counts.inFlight === 0 && [...counts.waiting.values()].every((it) => it === 0);
  }

  /** Whether everybody has been connected for long enough without news, and nobody waits for an ack. */
  private get isLate(): boolean {
    const isQuiet = performance.now() - this.newsAt >= LATE_MS - 100 && this.breaks === 0;
    return isQuiet && this.isLive && this.judgement.value.counts.inFlight === 0;
  }

  /** Events of the recording, complete with what is stored. */
  async recording(): Promise<Stamped[]> {
    const base = this.base ?? 0;
    if (!isRoom(this.conv)) await Promise.all(this.people.filter((it) => it.isLive).map((it) => this.pull(it, base).catch(() => {})));
    const at = Math.round(performance.now() * 1e6);
    const events = [...this.recorder.events];
    const add = (event: Parameters<Recorder["push"]>[1]) => events.push({ at, ...event });
    if (isRoom(this.conv)) return events;
    for (const person of this.people) if (person.isLive) add({ complete: { user: person.name, device: person.device, hints: true } });
    const firsts = base > 0 && this.mode === "group" ? await this.firstEntries() : [];
    const known = firsts.length > 0 ? 1 : 0;
    if (base > known) add({ log_gap: { conv: this.conv, first: known + 1, last: base } });
    for (const [person, first] of firsts) add({ recv: { user: person.name, device: person.device, session: person.session, conv: this.conv, seq: first.seq, cid: null, body: 0, via: "pull" } });
    for (const user of firsts[0]?.[1].joined ?? []) add({ log_member: { conv: this.conv, seq: 1, user, change: "join" } });
    const stored = [...this.pulled.values()].sort((a, b) => b.length - a.length)[0] ?? [];
    for (const entry of stored) {
      for (const user of entry.joined ?? []) add({ log_member: { conv: this.conv, seq: entry.seq, user, change: "join" } });
      if (entry.joined) continue;
      const sent = entry.cid === null ? undefined : this.recorder.sends.get(entry.cid);
      if (!sent || entry.cid === null) add({ log_gap: { conv: this.conv, first: entry.seq, last: entry.seq } });
      else add({ log_message: { conv: this.conv, seq: entry.seq, sender: entry.sender, device: sent.device, cid: entry.cid, body: entry.body } });
    }
    return events;
  }

  /** Pulls the first entry of a group that existed before the page, as each connected person: it names the members. */
  private async firstEntries(): Promise<(readonly [Person, StoredEntry])[]> {
    const all = this.people.filter((it) => it.isLive).map(async (person) => [person, await firstEntry(person.tap, this.conv).catch(() => undefined)] as const);
    return (await Promise.all(all)).flatMap(([person, first]) => (first?.seq === 1 ? [[person, first] as const] : []));
  }

  /** Says that something changed: the page is drawn, and judged, once a frame. */
  changed(): void {
    if (this.drawn) return;
    const draw = () => {
      if (!this.drawn) return;
      clearTimeout(this.drawn);
      this.drawn = 0;
      this.rejudge();
      this.version.value += 1;
      for (const look of [...this.waiters]) look();
    };
    // A hidden page gets no frames; the timer goes on.
    this.drawn = window.setTimeout(draw, 60);
    requestAnimationFrame(draw);
  }

  /** Pulls every history to its end and compares it with what was acked and shown. */
  async check(): Promise<boolean> {
    const { base } = this;
    if (this.isOver || base === undefined) return false;
    const size = this.recorder.events.length;
    if (!this.isSettled && !this.isLate) {
      clearTimeout(this.quiet);
      this.quiet = window.setTimeout(() => void this.check(), LATE_MS);
      return false;
    }
    try {
      if (!this.audience) await Promise.all(this.people.map((person) => this.pull(person, base)));
    } catch {
      return false;
    }
    if (base !== this.base) return false;
    const until = this.audience ? performance.now() * 1e6 : undefined;
    const pulled = this.audience ? undefined : { conv: this.conv, base, by: this.pulled };
    this.judgement.value = judge(this.recorder.events, this.members, pulled, until);
    this.judged = this.recorder.events.length;
    this.isChecked.value = size === this.judged;
    this.changed();
    return this.isChecked.value;
  }

  private pull(person: Person, base: number): Promise<void> {
    const entries = this.pulled.get(person.name) ?? [];
    this.pulled.set(person.name, entries);
    // One pull at a time, or the same entries would be added twice.
    const before = this.pulling.get(person.name) ?? Promise.resolve();
    const next = before.catch(() => {}).then(() => pullOn(person.tap, this.conv, base, entries));
    this.pulling.set(person.name, next);
    return next;
  }

  private readonly members = (): readonly string[] => [...this.people, ...(this.audience?.people ?? [])].map((person) => person.name);

  /** Id of the newest message of the room that was passed on. */
  get newest(): string {
    return [...this.messages.values()].findLast((it) => it.state === "acked")?.cid ?? "";
  }

  private rejudge(): void {
    if (this.recorder.events.length === this.judged) return;
    this.judged = this.recorder.events.length;
    this.newsAt = performance.now();
    this.judgement.value = judge(this.recorder.events, this.members);
    this.isChecked.value = false;
    clearTimeout(this.quiet);
    this.quiet = window.setTimeout(() => void this.check(), this.audience ? ROOM_QUIET_MS : QUIET_MS);
  }

  private person(name: string, index: number): Person {
    const person: Person = new Person(name, index, {
      opened: (connection) => {
        this.sessions.set(connection, person);
        person.session = connection;
        this.recorder.opened(connection, name, person.device);
      },
      frame: (connection, direction, frame, at) => this.frame(person, index, connection, direction, frame, at),
      closed: (connection, _code, at) => {
        this.recorder.closed(connection, at);
        if (connection === person.session) this.linkEnded(person, index, at);
        this.changed();
      },
    });
    return person;
  }

  /** Tints the half of a person whose link ended although nobody broke it, until the next `hello`. */
  private linkEnded(person: Person, index: number, at: number): void {
    if (this.isOver || this.breaks > 0 || person.node === "" || this.gone.has(index)) return;
    const isClosed = ["closed", "offline"].includes(person.state.value.name);
    if (isClosed) return;
    this.gone.set(index, this.wire.begin(index, "red", true));
    this.wire.mark(at, index, `${person.name}’s link ended`, "red", "offline");
  }

  /** Tints the half of a person until its next `hello`. */
  untilHello(person: Person, tone: Tone): void {
    const index = this.people.indexOf(person);
    if (!this.gone.has(index)) this.gone.set(index, this.wire.begin(index, tone, true));
  }

  /** Ends that tint: at the `hello`, or for a person whose link did not end. */
  endGone(person: Person): void {
    const index = this.people.indexOf(person);
    const band = this.gone.get(index);
    if (band) this.wire.end(band);
    this.gone.delete(index);
  }

  private begin(person: Person): void {
    const client = person.start(() => this.changed());
    client.on("message", (it) => {
      if (it.conversation !== this.conv) return;
      const said = it.content.text ?? "";
      if (this.recorder.hidden.has(`${person.name} ${it.msgId}`)) return;
      this.recorder.shown(person.session, person.name, person.device, { conversation: it.conversation, seq: it.seq, msgId: it.msgId, text: said }, performance.now());
      if (!this.messages.has(it.msgId)) {
        this.messages.set(it.msgId, { cid: it.msgId, sender: it.sender, text: said, seq: it.seq, state: "acked", note: "", isOfPage: false, ackedBy: new Set(), readBy: new Set() });
      }
      person.lines.push({ cid: it.msgId });
      person.typingUntil = 0;
      this.changed();
      if (!it.room) window.setTimeout(() => this.readAll(person, it.seq), 900);
    });
    client.on("signal", (it) => {
      if (it.kind !== "typing") return;
      person.typingUntil = performance.now() + 3000;
      this.changed();
      window.setTimeout(() => this.changed(), 3100);
    });
  }

  private readAll(person: Person, seq: number): void {
    if (document.hidden || this.isOver || !person.isLive || person.tap.hold) return;
    const ofOthers = person.lines.flatMap((line) => ("cid" in line ? [this.messages.get(line.cid)] : [])).filter((it) => it !== undefined && it.sender !== person.name);
    if (ofOthers.at(-1)?.seq === seq) void person.client.read(this.conv, seq).catch(() => {});
  }

  private frame(person: Person, index: number, connection: number, direction: "in" | "out", frame: Frame, at: number): void {
    const { kind, body } = frame;
    const cid = text(body, "msgId");
    if (kind === "hello") this.endGone(person);
    if (kind === "send" && direction === "out") this.named(person, cid, contentText(body));
    if (kind === "push" && index === 1 && this.plant > 0 && cid && this.recorder.sends.has(cid)) {
      this.plant -= 1;
      if (this.plant === 0) this.recorder.hidden.add(`${person.name} ${cid}`);
    }
    this.recorder.frame(connection, direction, frame, at);
    this.audience?.announced(direction, frame);
    this.note(person, kind, direction, body, cid);
    this.wire.frame(at, index, direction, frame, cid);
    this.changed();
    // A drain may be over within the slot, which may be shorter than a frame of the screen.
    if (kind === "goAway") for (const look of [...this.waiters]) look();
  }

  /** Gives a bubble the id that the client chose for its message. */
  named(person: Person, cid: string, said: string): void {
    const at = person.unnamed.findIndex((it) => it.text === said);
    const line = this.messages.has(cid) ? undefined : person.unnamed[at];
    if (!line) {
      const again = this.messages.get(cid);
      if (again?.state === "held") again.state = "sent";
      return;
    }
    person.unnamed.splice(at, 1);
    const shown = this.messages.get(line.cid);
    if (!shown) return;
    this.messages.delete(line.cid);
    this.messages.set(cid, Object.assign(shown, { cid, state: "sent" as const }));
    person.lines = person.lines.map((it) => ("cid" in it && it.cid === line.cid ? { cid } : it));
    line.cid = cid;
  }

  private note(person: Person, kind: string, direction: "in" | "out", body: Record<string, unknown>, cid: string): void {
    // The positions of a sync say what the device has, as an ack does.
    const positions = kind === "sync" && Array.isArray(body["positions"]) ? (body["positions"] as Record<string, unknown>[]) : [];
    for (const it of positions) this.note(person, "ack", direction, it, "");
    const seq = number(body, "seq");
    if (kind === "sendAck" && direction === "in") {
      const shown = this.messages.get(cid);
      if (!shown) return;
      shown.seq = seq;
      shown.state = "acked";
      this.first = Math.min(this.first, seq);
      if (this.base !== undefined && this.base >= seq) this.setBase(this.base);
      this.toTrace.push(cid);
      void this.trace();
    } else if ((kind === "ack" || kind === "read") && direction === "out" && text(body, "conversation") === this.conv) {
      for (const shown of this.messages.values()) {
        if (shown.seq === 0 || shown.seq > seq || shown.sender === person.name) continue;
        shown.ackedBy.add(person.name);
        if (kind === "read") shown.readBy.add(person.name);
      }
    }
  }

  /** Reads when a message was received and synced, from the node's trace. The newest are enough in a flood. */
  private async trace(): Promise<void> {
    if (this.isTracing) return;
    this.isTracing = true;
    while (this.toTrace.length > 0 && !this.isOver) {
      const cid = this.toTrace.splice(0, Math.max(1, this.toTrace.length - 8)).at(-1) ?? "";
      try {
        const { steps } = await get<Trace>(`/v1/trace?msg=${encodeURIComponent(cid)}`);
        const received = steps.find((it) => it.step === "received");
        const synced = steps.find((it) => it.step === "archived" && it.timeUs >= (received?.timeUs ?? 0));
        if (received && synced) this.syncs.set(cid, (synced.timeUs - received.timeUs) / 1000);
        this.changed();
      } catch {
        // Without a trace the wire shows the ack alone.
      }
    }
    this.isTracing = false;
  }

  private watchAll(): void {
    for (const person of this.people) void post("/v1/trace", { user: person.name }).catch(() => {});
  }

  /** Whether messages survive the process of the node. */
  get isDurable(): boolean {
    return this.mode !== "room" && (boot.value?.durable ?? true);
  }
}
