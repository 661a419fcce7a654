import { capital, count, duration, fine, joined, plural, seqs, short } from "./numbers.ts";

/** A person who lost its node, and the node that it is connected to now; empty if it is not back. */
export interface Moved {
  readonly name: string;
  readonly to: string;
}

/** What was measured of a break. An absent fact leaves its clause out. */
export interface Facts {
  /** The person whose link or client was broken. */
  who: string;
  /** The person who went on talking. */
  other: string;
  /** How long the break lasted, in ms. */
  forMs?: number;
  /** Messages that the other one sent meanwhile and that were acked. */
  sent?: number;
  /** The longest wait of those for their ack, in ms. */
  ackMs?: number;
  /** The last seq that the person had before. */
  had?: number;
  /** Seqs that the person got after coming back. */
  got?: readonly number[];
  /** Pushes that were sent again. */
  again?: number;
  /** Messages that were sent again, acked, and kept their numbers. */
  repeated?: number;
  /** Code with which the node closed the link. */
  closed?: string;
  /** The message that was repeated or kept back. */
  id?: string;
  seq?: number;
  duplicate?: boolean;
  /** How often the message reached the receiver's screen. */
  shown?: number;
  /** Messages held by the node behind the missing one. */
  held?: number;
  warnedMs?: number;
  gaveUpMs?: number;
  /** Code of a refusal. */
  refused?: string;
  /** Messages of a flood: all, and those that were accepted at once. */
  total?: number;
  atOnce?: number;
  retryMs?: number;
  /** Slot that the node gave a client in a drain, in ms. */
  slotMs?: number;
  node?: string;
  to?: string;
  movedMs?: number;
  /** Whether the drain ended at the notice, and the person is connected again. */
  goesOn?: boolean;
  /** The others who were on a node that died, and where each is connected now. */
  moved?: readonly Moved[];
  /** The nodes that own what the dead node owned, and after what time all of it was theirs. */
  takers?: readonly string[];
  takenMs?: number;
  /** Whether the person has no link while the break goes on. */
  isAway?: boolean;
  durable?: boolean;
  /** Whether the conversation is a live room, which keeps nothing, and how many messages the person missed in it. */
  isRoom?: boolean;
  missed?: number;
}

function all(clauses: readonly (string | false | undefined | 0)[]): string {
  return clauses.filter(Boolean).join(" ");
}

function resent(messages: number, again: number): string {
  if (messages !== 1) return `${count(again)} pushes again`;
  return again === 1 ? "it once more" : `it ${count(again)} more times`;
}

function meanwhile({ who, other, sent, ackMs, durable, isRoom, missed }: Facts): string | false {
  if (isRoom && missed) return `A live room keeps nothing: ${who} missed ${plural(missed, "message")}, and gets what is said from now on.`;
  if (!sent) return false;
  const where = durable === false ? "accepted" : "on disk";
  const was = sent === 1 ? "message was" : "messages were";
  return `${capital(other)} noticed nothing: ${count(sent)} ${was} ${where}${ackMs === undefined ? "." : ` and acked within ${fine(ackMs)}.`}`;
}

/** Names those who lost the same node as the person, by the nodes that they are on now. */
function movedToo({ node, moved }: Facts): string | false {
  if (!moved || moved.length === 0) return false;
  const on = [...new Set(moved.map((it) => it.to))];
  const where = on.map((to) => {
    const names = moved.filter((it) => it.to === to).map((it) => it.name);
    const verb = to ? `moved to ${to}` : `${names.length === 1 ? "is" : "are"} not back yet`;
    return on.length === 1 ? verb : `${joined(names)} ${verb}`;
  });
  return `${capital(joined(moved.map((it) => it.name)))} ${moved.length === 1 ? "was" : "were"} on ${node} too${on.length === 1 ? ", and " : ": "}${joined(where)}.`;
}

/** Says what was sent while a node was dead. An ack may have waited for a new owner even where the link stayed. */
function sentMeanwhile(it: Facts): string | false {
  const { other, sent, ackMs, durable, isRoom, moved } = it;
  if (isRoom) return meanwhile(it);
  if (!sent) return false;
  const link = moved?.some((one) => one.name === other) ? "" : `${capital(other)}’s link stayed: `;
  const messages = plural(sent, "message");
  const acked = `${sent === 1 ? "was" : "were"} ${durable === false ? "accepted" : "on disk"} and acked`;
  return `${link}${link ? messages : capital(messages)} sent meanwhile ${acked}${ackMs === undefined ? "." : ` within ${fine(ackMs)}.`}`;
}

function cameBack({ who, had, got, isRoom }: Facts): string | false {
  if (!got || isRoom) return false;
  if (got.length === 0) return `${capital(who)}’s client came back, and had missed nothing.`;
  const said = had ? `, said it had all up to ${had},` : "";
  return `${capital(who)}’s client came back${said} and fetched ${seqs(got)}.`;
}

/** The sentences about the breaks, by the break's name. */
export const SENTENCES: Readonly<Record<string, (facts: Facts) => string>> = {
  cut: (it) => all([it.forMs !== undefined && `${capital(it.who)}’s link was cut for ${duration(it.forMs)}.`, meanwhile(it), cameBack(it)]),

  freeze: (it) =>
    all([
      it.sent ? `${capital(it.who)} took ${it.sent === 1 ? "the push" : "the pushes"} but never acked.` : `${capital(it.who)}’s client acked nothing${it.forMs ? ` for ${duration(it.forMs)}` : ""}.`,
      it.again ? `The broker sent ${resent(it.sent ?? 0, it.again)}${it.closed ? "," : "."}` : false,
      it.closed && `${it.again ? "then" : "The broker"} closed the link as ${it.closed}${it.forMs ? ` after ${duration(it.forMs)}` : ""}.`,
      it.shown && it.sent && `When the link was back, ${it.sent === 1 ? "the" : "each"} message was on screen ${it.shown === 1 ? "once" : `${count(it.shown)} times`}.`,
    ]),

  offline: (it) =>
    all([
      it.forMs !== undefined && `${capital(it.who)} was away for ${duration(it.forMs)}.`,
      it.isRoom && it.missed && `A live room keeps nothing: ${it.who} missed ${plural(it.missed, "message")}.`,
      !it.isRoom && it.sent && `${capital(plural(it.sent, "message"))} ${it.sent === 1 ? "was kept with its number" : "were kept with their numbers"}.`,
      it.got && it.got.length > 0 && `${capital(it.who)} fetched ${seqs(it.got)} in order.`,
    ]),

  twice: (it) =>
    all([
      it.id && `${capital(it.who)}’s client sent ${short(it.id)} again.`,
      it.seq && it.duplicate && `It is the same message: same number ${it.seq}, marked as a duplicate${it.shown === 1 ? `, shown to ${it.other} once` : ""}.`,
      it.seq && it.duplicate === false && `The node did not mark it as a duplicate, and gave it number ${it.seq}.`,
    ]),

  skip: (it) =>
    all([
      it.id && `${capital(it.who)}’s client kept ${short(it.id)} back.`,
      it.held && `The broker held the ${count(it.held)} behind it${it.warnedMs ? `, warned ${it.who} after ${duration(it.warnedMs)}` : ""}${it.gaveUpMs ? `, gave it up after ${duration(it.gaveUpMs)} and let them through in order` : ""}.`,
      it.refused && `When it came, it was refused: ${it.refused}. It was never acked, so it does not count as lost.`,
    ]),

  flood: (it) =>
    all([
      it.total && it.atOnce !== undefined && it.atOnce < it.total && `${capital(count(it.atOnce))} of ${it.total} were taken at once.`,
      it.total && it.atOnce === it.total && `${capital(it.who)} sent ${it.total} messages${it.forMs ? ` in ${duration(it.forMs)}` : ""}. All were taken${it.ackMs ? `, and the slowest ack came after ${duration(it.ackMs)}` : ""}.`,
      it.retryMs && `The rest was refused for now: RATE_LIMITED, to be sent again after ${duration(it.retryMs)}. It was, and was taken as well.`,
      it.shown && it.shown === it.total && `${capital(it.other)} saw all of them.`,
    ]),

  drain: (it) =>
    all([
      it.node && it.slotMs !== undefined && `${it.node} asked ${it.who} to leave within ${duration(it.slotMs)}${it.to ? ", and said where to go" : ""}.`,
      it.to && it.movedMs !== undefined && `${capital(it.who)} was on ${it.to} ${duration(it.movedMs)} later.`,
      it.goesOn && !it.to && (it.forMs === undefined ? `${capital(it.who)} has a new link to it, and was never without one.` : `${capital(it.who)} left, and came back after ${duration(it.forMs)}.`),
      it.goesOn && it.node && `The drain stopped after this request: ${it.node} goes on.`,
      it.got && it.movedMs === undefined && !it.goesOn && cameBack(it),
      it.sent && it.ackMs !== undefined && `Nobody waited for an ack longer than ${fine(it.ackMs)}.`,
    ]),

  kill: (it) =>
    all([
      it.node && `${it.node} died.`,
      it.to && it.movedMs !== undefined && `${capital(it.who)} was on ${it.to} after ${duration(it.movedMs)}.`,
      it.to && movedToo(it),
      it.to && sentMeanwhile(it),
      it.takers && it.takers.length > 0 && it.takenMs !== undefined && `${joined(it.takers)} had taken its partitions over after ${duration(it.takenMs)}.`,
      it.to && !it.isRoom && it.got && it.got.length > 0 && `${capital(it.who)} got ${seqs(it.got)} on the new link.`,
      it.repeated && `${capital(plural(it.repeated, "message"))} ${it.repeated === 1 ? "was sent again and kept its number" : "were sent again and kept their numbers"}.`,
    ]),
};

/** The sentences about a break that goes on; `got` has the seqs that wait. */
export const UNDER_WAY: Readonly<Record<string, (facts: Facts) => string>> = {
  cut: (it) =>
    all([
      `${capital(it.who)}’s link is cut, for ${duration(it.forMs ?? 0)}.`,
      it.isRoom && "A live room keeps nothing for those who are away.",
      !it.isRoom && it.got?.length && `${seqs(it.got)} ${it.got.length === 1 ? "waits" : "wait"} ${it.durable === false ? "in memory" : "on disk"}. ${capital(it.other)} has the ${it.got.length === 1 ? "ack" : "acks"}, and noticed nothing.`,
    ]),
  freeze: (it) => it.isAway ? `${capital(it.who)}’s client has no link, so it gets nothing that it could leave without an ack.` : `${capital(it.who)}’s client takes what it gets, and has acked nothing for ${duration(it.forMs ?? 0)}. The broker sends again, then closes the link.`,
  offline: (it) => all([`${capital(it.who)} is offline, for ${duration(it.forMs ?? 0)}.`, !it.isRoom && it.got?.length && `${seqs(it.got)} ${it.got.length === 1 ? "is kept with its number" : "are kept with their numbers"}.`]),
  twice: (it) => `${capital(it.who)}’s client sends a message again, with the same id and the same text.`,
  skip: (it) => `${capital(it.who)}’s client keeps one message of its chain back. The broker holds what follows, for ${duration(it.forMs ?? 0)} so far.`,
  flood: (it) => `${capital(it.who)}’s client sends as fast as it can.`,
  drain: () => "The node asks its clients to leave, each in its slot.",
  kill: () => "The process of the node is gone. Its clients look for another one.",
};

/** The bold end of a sentence, once the judgement is complete. */
export const GOOD = "Nothing lost, doubled or out of order.";

/** The same for a live room, which may drop messages but has to say so. */
export const GOOD_ROOM = "Nothing was dropped in silence, doubled or out of order.";

/** The sentence while nothing was broken yet: who is connected, and what is promised. */
export function opening(people: readonly string[], nodes: readonly string[], mode: "pair" | "group" | "room", durable: boolean): string {
  const who = capital(joined(people));
  const where = joined(nodes);
  if (mode === "room") return `${who} talk in a live room on ${where}, and twelve others listen. What is said reaches those who are there now, and is stored nowhere. Say something, then cut a link.`;
  const other = mode === "pair" ? "the other one sees" : "the others see";
  const promise = durable ? `once a message is acked it is on disk, and ${other} it once and in order, whatever breaks` : `once a message is acked, ${other} it once and in order, whatever link breaks; this node keeps messages in memory`;
  return `${who} are connected to ${where}. The promise: ${promise}. Send one, then break something.`;
}

/** The sentence about what was sent before anything was broken: what was done with it, and once it was judged, against what. */
export function kept(acked: number, nodes: readonly string[], people: number, mode: "pair" | "group" | "room", durable: boolean, isChecked: boolean): string {
  const [messages, were] = [capital(plural(acked, "message")), acked === 1 ? "was" : "were"];
  if (mode === "room") return `${messages} ${were} passed on to the room, and stored nowhere.`;
  const first = durable ? `${messages} ${were} written and synced, then acked.` : `${messages} ${were} acked. ${joined(nodes)} ${nodes.length === 1 ? "keeps" : "keep"} messages in memory.`;
  return isChecked ? `${first} The stored history was compared with ${people === 2 ? "both screens" : `all ${count(people)} screens`}.` : first;
}

/** By what the three figures are judged. Nodes of a cluster share their history, so that none of them is named. */
export function judgedBy(mode: "pair" | "group" | "room", boot: { readonly node: string; readonly profile: "single" | "cluster" } | undefined): string {
  if (mode === "room") return "Judged by the checker’s rules for live rooms.";
  return `Judged by the checker’s rules, against ${boot?.profile === "single" ? `what ${boot.node} has stored` : "the stored history"}.`;
}

/** The button that shows frames. */
export function framesButton(frames: number): string {
  return `${capital(plural(frames, "frame"))} as JSON`;
}

/** What to do after that. */
export function next(mode: "pair" | "group" | "room"): string {
  return mode === "room" ? "Now cut a link below, and see what its owner misses." : "Now break something below, and see it hold.";
}

/** Where a node can be killed, for a page whose node has no others. */
export const KILL_ELSEWHERE = "To see a node die, run “tidegate demo”, or start a cluster with “tidegate up”.";

/** The sentence once another tab has logged in as these people, which ends their links here. */
export function replaced(people: readonly string[]): string {
  return `Another tab took over ${joined(people)}. A device has one link, and the newest login keeps it.`;
}

/** The sentence that announces a planted fault: the message with this number stays hidden from the second person. */
export function plantedWords(number: number): string {
  return `A fault was planted: this page hides message ${number} from bob, to show that the counter finds a loss.`;
}

/** What the page is, for those who have never seen it. */
export function purpose(mode: "pair" | "group" | "room"): string {
  const here = { pair: "two of them run", group: "three of them run", room: "fourteen of them run" }[mode];
  return `Tidegate delivers messages between clients; ${here} in this page.`;
}

/** The sentence before everybody is connected. */
export function connecting(node: string): string {
  return `Connecting to ${node}.`;
}

/** The sentence of a broken rule; a planted fault is the page's own. */
export function broken(rule: string, what: string, isPlanted: boolean): string {
  const end = isPlanted ? "The fault was planted by the address of this page: the broker lost nothing." : "Save the recording and report it.";
  return `A promise is broken: ${what}. The rule is ${rule}. ${end}`;
}
