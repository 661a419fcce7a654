import { plural } from "../words/numbers.ts";

/** A recorded step of a message, as `GET /v1/trace` answers. */
export interface Step {
  readonly step: string;
  readonly node: string;
  readonly timeUs: number;
  readonly trace: string;
  readonly msg?: string;
  readonly conversation?: string;
  readonly user?: string;
  readonly device?: string;
  readonly note?: string;
  readonly seq?: number;
}

/** One send of a message with its steps, in order of time. */
export interface Sent {
  readonly trace: string;
  readonly msg: string;
  readonly conversation: string;
  readonly seq: number | undefined;
  readonly user: string;
  readonly device: string;
  readonly node: string;
  readonly atUs: number;
  readonly attempt: number;
  /** The reason of a refusal; empty if it was accepted or is not decided. */
  readonly refused: string;
  readonly isAgain: boolean;
  readonly steps: readonly Step[];
  /** Time from receipt until the ack left, in ms. */
  readonly ackMs: number | undefined;
}

/** Joins steps to sends, the newest first. */
export function sends(steps: readonly Step[]): Sent[] {
  const by = new Map<string, Step[]>();
  for (const step of steps) by.set(step.trace, [...(by.get(step.trace) ?? []), step]);
  const found: Sent[] = [];
  for (const [trace, list] of by) {
    list.sort((a, b) => a.timeUs - b.timeUs);
    const first = list.find((it) => it.step === "received") ?? list[0];
    if (!first) continue;
    const decided = list.find((it) => it.step === "decided");
    const answers = list.filter((it) => it.step === "answered");
    const answered = answers.find((it, index) => it.node === first.node && index === answers.length - 1) ?? answers.at(-1);
    const verdict = decided?.note?.split(": ")[1] ?? "";
    found.push({
      trace, msg: first.msg ?? decided?.msg ?? "", conversation: first.conversation ?? decided?.conversation ?? "", seq: decided?.seq,
      user: first.user ?? "", device: first.device ?? "", node: first.node, atUs: first.timeUs,
      attempt: Number(/attempt (\d+)/.exec(first.note ?? "")?.[1] ?? 0),
      refused: verdict && !verdict.startsWith("accepted") ? verdict : "",
      isAgain: verdict === "accepted before", steps: list,
      ackMs: answered ? (answered.timeUs - first.timeUs) / 1000 : undefined,
    });
  }
  return found.sort((a, b) => b.atUs - a.atUs);
}

/** A bar of the waterfall, in ms from the receipt. */
export interface Bar {
  readonly step: Step;
  readonly from: number;
  readonly to: number;
  /** Work or waiting inside the broker, or waiting for a device. */
  readonly kind: "point" | "work" | "device";
  /** Whether the step's clock puts it before its cause. */
  readonly isEarly: boolean;
}

/** A node with its bars; a message that returns to a node has another lane of it. */
export interface Lane {
  readonly node: string;
  /** What the node has to do with the message; empty if it is the only one. */
  readonly part: string;
  readonly bars: readonly Bar[];
}

/** A part of the way to the ack. */
export interface Part {
  readonly name: string;
  readonly ms: number;
}

/** What is drawn of a send. */
export interface Waterfall {
  readonly lanes: readonly Lane[];
  readonly way: readonly Part[];
  readonly ackMs: number | undefined;
  readonly firstMs: number | undefined;
  readonly allMs: number | undefined;
  readonly devices: number;
  /** Where the scale becomes coarser, and where it ends, in ms. */
  readonly bend: number;
  readonly end: number;
}

const CORE = new Set(["received", "appended", "notappended", "decided", "archived"]);
const PARTS: Readonly<Record<string, string>> = { appended: "log", notappended: "log refused", decided: "order", archived: "store", answered: "ack" };

/** Steps by lane in the order of their causes: the way to the store, on whose nodes it was, then the ack and what reaches devices, by node. */
function inOrder(steps: readonly Step[]): (readonly Step[])[] {
  const lanes: Step[][] = [];
  const nodeOf = (lane: readonly Step[] | undefined) => lane?.[0]?.node;
  const put = (step: Step, lane: Step[] | undefined) => void (lane ? lane.push(step) : lanes.push([step]));
  const core = steps.filter((it) => CORE.has(it.step));
  // Each step of the way is the cause of the next one, so a lane ends where the node changes.
  for (const step of core) put(step, nodeOf(lanes.at(-1)) === step.node ? lanes.at(-1) : undefined);
  const owner = Math.max(0, lanes.length - 1);
  // The node to which the ack returns comes first.
  const rest = steps.filter((it) => !core.includes(it)).sort((a, b) => Number(b.step === "answered") - Number(a.step === "answered"));
  for (const step of rest) put(step, lanes.slice(owner).find((lane) => nodeOf(lane) === step.node));
  return lanes;
}

/** What a node has to do with a message, by the steps of a lane. */
function partOf(steps: readonly Step[], sender: string): string {
  const has = (name: string) => steps.some((it) => it.step === name);
  const partition = /^partition (\d+)/.exec(steps.find((it) => it.step === "decided")?.note ?? "")?.[1];
  const words = [has("received") && sender ? `${sender} is here` : "", partition ? `owns partition ${partition}` : ""].filter(Boolean);
  if (words.length > 0) return words.join(", ");
  if (has("answered") && sender) return `the ack goes back to ${sender}`;
  const devices = new Set(steps.flatMap((it) => (it.device ? [`${it.user} ${it.device}`] : [])));
  return devices.size > 0 ? plural(devices.size, "device") : "";
}

/** Arranges the steps of a send by node, in order of cause, each with its cause. */
export function arrange(sent: Sent): Waterfall {
  const start = sent.atUs;
  const ms = (step: Step) => (step.timeUs - start) / 1000;
  const core = sent.steps.filter((it) => CORE.has(it.step));
  const lastCore = core.at(-1);
  const cause = (step: Step): Step | undefined => {
    if (CORE.has(step.step)) return core[core.indexOf(step) - 1];
    if (step.step === "acked") return sent.steps.find((it) => it.step === "pushed" && it.node === step.node && it.device === step.device && it.user === step.user);
    const arrived = sent.steps.find((it) => it.step === "arrived" && it.node === step.node);
    return step.step === "pushed" && arrived ? arrived : lastCore;
  };
  const lanes = inOrder(sent.steps).map((steps, _, all): Lane => ({
    node: steps[0]?.node ?? "",
    part: all.length > 1 ? partOf(steps, sent.user) : "",
    bars: [...steps].sort((a, b) => a.timeUs - b.timeUs).map((step): Bar => {
      const before = cause(step);
      const from = before ? ms(before) : ms(step);
      const isEarly = ms(step) < from;
      return { step, from, to: Math.max(from, ms(step)), kind: step.step === "received" ? "point" : step.step === "acked" ? "device" : "work", isEarly };
    }),
  }));
  const way: Part[] = [];
  let before = 0;
  for (const step of [...core.slice(1), ...sent.steps.filter((it) => it.step === "answered").slice(-1)]) {
    way.push({ name: PARTS[step.step] ?? step.step, ms: Math.max(0, ms(step) - before) });
    before = Math.max(before, ms(step));
  }
  const acked = sent.steps.filter((it) => it.step === "acked").map(ms).sort((a, b) => a - b);
  const bend = nice((sent.ackMs ?? ms(sent.steps.at(-1) ?? { timeUs: start } as Step)) * 1.08 || 1);
  const last = Math.max(bend, ...sent.steps.map(ms));
  return {
    lanes, way, ackMs: sent.ackMs, firstMs: acked[0], allMs: acked.at(-1), devices: acked.length, bend,
    end: last <= bend * 1.6 ? Math.max(bend, last * 1.02) : nice(last),
  };
}

/** The next round number. */
export function nice(value: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 0.001)));
  const step = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((it) => it * power >= value) ?? 10;
  return step * power;
}

/** Share of the width at which a time is drawn: linear up to the bend, coarser behind it. */
export function place(it: Pick<Waterfall, "bend" | "end">, ms: number): number {
  if (it.end <= it.bend * 1.6) return Math.min(1, Math.max(0, ms / it.end));
  if (ms <= it.bend) return Math.max(0, (ms / it.bend) * 0.72);
  return Math.min(1, 0.72 + ((ms - it.bend) / (it.end - it.bend)) * 0.28);
}

/** Marks of the axis. */
export function ticks(it: Pick<Waterfall, "bend" | "end">): number[] {
  const isBent = it.end > it.bend * 1.6;
  const step = nice((isBent ? it.bend : it.end) / 6);
  const first = [];
  for (let at = 0; at <= (isBent ? it.bend : it.end) + step / 1000; at += step) first.push(Number(at.toFixed(6)));
  return isBent ? [...first.filter((at) => at < it.bend - step / 2), it.bend, it.end] : first;
}

/** One sentence about where the time to the ack went. */
export function timeSentence(it: Waterfall): string {
  if (it.ackMs === undefined || it.way.length === 0) return "";
  const most = it.way.reduce((a, b) => (b.ms > a.ms ? b : a));
  const share = Math.round((most.ms / Math.max(it.ackMs, 0.001)) * 100);
  const names: Readonly<Record<string, string>> = { log: "Writing to the log", "log refused": "The log", order: "Ordering", store: "Writing to the store", ack: "Sending the ack" };
  const rest = it.allMs !== undefined && it.allMs > it.ackMs * 2 ? " What follows it is the wait for the devices’ acks." : "";
  return `${names[most.name] ?? most.name} took ${Math.min(100, share)} % of the time to the ack.${rest}`;
}
