import { signal } from "@preact/signals";
import { withLoss, type Losses } from "../words/rooms.ts";
import { number, type Frame } from "./frames.ts";
import { Person } from "./person.ts";
import type { Recorder } from "./recorder.ts";

/** People who only listen in a live room. */
export const LISTENERS = ["carol", "dora", "emil", "fay", "gus", "hana", "ivo", "june", "kai", "lena", "milo", "nora"] as const;

/** What is seen of one listener: whether it is in the room, and whether it has the newest message. */
export type Receipt = "away" | "waits" | "has";

/** The listeners of a live room: each a client and a connection of its own, whose frames are recorded but not drawn. */
export class Audience {
  readonly people: readonly Person[];
  /** Losses that nodes announced, to the listeners and to those who talk. */
  readonly losses = signal<Losses>({ frames: 0, unknown: 0 });
  private readonly got = new Map<string, Set<string>>();
  /** Those who are in the room: the client enters it again by itself after each login. */
  private readonly entered = new Set<Person>();
  private readonly recorder: Recorder;
  private readonly changed: () => void;
  private conv = "";

  constructor(recorder: Recorder, changed: () => void) {
    this.recorder = recorder;
    this.changed = changed;
    // The first two addresses are those of the people who talk.
    this.people = LISTENERS.map((name, index) => this.listener(name, index + 2));
  }

  /** Connects all and lets them enter the room. */
  async enter(conv: string): Promise<void> {
    this.conv = conv;
    await Promise.all(this.people.map((person) => this.begin(person)));
  }

  /** Whether everybody is connected and in the room. */
  get isLive(): boolean {
    return this.people.every((person) => person.isLive && this.entered.has(person));
  }

  /** Returns how a listener stands to the newest message; without one, nobody waits. */
  receipt(person: Person, newest: string): Receipt {
    if (!person.isLive || !this.entered.has(person)) return "away";
    return newest === "" || this.got.get(person.name)?.has(newest) ? "has" : "waits";
  }

  /** Ends all clients. */
  stop(): void {
    for (const person of this.people) person.stop();
  }

  private listener(name: string, index: number): Person {
    this.got.set(name, new Set());
    const person: Person = new Person(name, index, {
      opened: (connection) => {
        person.session = connection;
        this.recorder.opened(connection, name, person.device);
      },
      frame: (connection, direction, frame, at) => this.frame(connection, direction, frame, at),
      closed: (connection, _code, at) => {
        this.recorder.closed(connection, at);
        this.changed();
      },
    });
    return person;
  }

  private frame(connection: number, direction: "in" | "out", frame: Frame, at: number): void {
    this.recorder.frame(connection, direction, frame, at);
    this.announced(direction, frame);
  }

  /** Takes a frame of anybody in the room, which may announce a loss. */
  announced(direction: "in" | "out", frame: Frame): void {
    if (frame.kind === "shed" && direction === "in") this.losses.value = withLoss(this.losses.value, number(frame.body, "count"));
  }

  private async begin(person: Person): Promise<void> {
    const client = person.start(this.changed);
    client.on("message", (it) => {
      if (it.conversation !== this.conv) return;
      this.recorder.shown(person.session, person.name, person.device, { conversation: it.conversation, seq: it.seq, msgId: it.msgId, text: it.content.text ?? "" }, performance.now());
      this.got.get(person.name)?.add(it.msgId);
      this.changed();
    });
    await client.live();
    await client.join(this.conv);
    this.entered.add(person);
    this.changed();
  }
}
