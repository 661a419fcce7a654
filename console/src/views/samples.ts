import { signal } from "@preact/signals";
import { Course } from "../charts/course.ts";
import { cells, hold, type Owner } from "../charts/partitions.ts";
import { phases } from "../charts/phases.ts";
import type { Reading } from "../charts/readings.ts";
import type { Move } from "../charts/strands.ts";
import { parseFrame } from "../try/frames.ts";
import { Wire } from "../try/items.ts";
import type { Group } from "./partitions.tsx";
import type { Shown } from "./riverpicture.tsx";
import type { WireSource } from "../try/wire.tsx";

/** Nodes of the samples. */
export const NODES = ["n1", "n2", "n3"] as const;

/** Second at which the sample of the river begins; its end is fixed too, so that two pictures of it are the same. */
const BEGIN = Date.UTC(2026, 0, 2, 14, 18) / 1000;
const LENGTH = 300;

/** Clients that leave a node in a second of the sample, to each of the other two. */
const PACE = 4;

/** A rolling restart: n3 leaves, is away for half a minute and gets new clients; then n1 begins to leave. */
export function sampleRiver(): Shown {
  const readings = new Map<string, Reading[]>(NODES.map((name) => [name, []]));
  const flows = new Map<number, Move[]>();
  const have = new Map<string, number>(NODES.map((name) => [name, 240]));
  const change = (name: string, by: number) => have.set(name, (have.get(name) ?? 0) + by);
  for (let second = 0; second < LENGTH; second += 1) {
    const leaving = second >= 60 && second < 90 ? "n3" : second >= LENGTH - 28 ? "n1" : "";
    const moves: Move[] = [];
    for (const to of leaving ? NODES.filter((name) => name !== leaving) : []) {
      change(leaving, -PACE);
      change(to, PACE);
      moves.push({ from: leaving, to, count: PACE });
    }
    // The node that has come back gets what connects, and the others lose what ends.
    if (second > 135 && second <= 235) change("n3", 2), change(second % 2 ? "n1" : "n2", -2);
    flows.set(BEGIN + second, moves);
    for (const name of NODES) {
      if (name === "n3" && second > 93 && second < 125) continue;
      const phase = name === leaving || (name === "n3" && second >= 60 && second <= 93) ? 3 : 0;
      readings.get(name)?.push({ at: BEGIN + second, clients: have.get(name) ?? 0, phase });
    }
  }
  const course = new Course();
  course.update({ names: NODES, readings, flows, own: "n1", revision: 0 });
  const { steps, crossings } = course.strands;
  const [first, to] = [steps[0]?.at ?? BEGIN, steps.at(-1)?.at ?? BEGIN];
  return {
    names: NODES, from: first, to, span: to - first + 1, first, readings, steps, crossings, versions: new Map([["n3", "0.2.0"]]),
    phases: NODES.flatMap((name) => phases(name, readings.get(name) ?? [], to)).sort((a, b) => a.from - b.from),
    moves: (since, until) => [...flows].flatMap(([at, list]) => (at >= since && at <= until ? list : [])),
  };
}

/** Partitions in each state that a cell has: calm, waiting, old, on its way, with refused sends, and without an owner. */
export function samplePartitions(): Group[] {
  const waits = (partition: number, behindRecords: number, behindMs = 0) => ({ partition, behindRecords, behindMs });
  const owners: Owner[] = [
    { node: "n1", owns: [0, 3, 6, 9, 12], stands: [waits(3, 8), waits(9, 120)] },
    { node: "n2", owns: [1, 3, 4, 7, 10], stands: [waits(4, 640, 1200)] },
    { node: "n3", owns: [2, 5, 8, 11], stands: [waits(8, 9000, 65_000)] },
  ];
  const list = cells(hold(new Map(), owners, 14, 0), owners, [8]);
  return [...NODES, ""].map((name) => {
    const own = list.filter((cell) => cell.owner === name);
    return { name, count: own.length, cells: own };
  });
}

/** Frames of a conversation in which the link of bob was cut: by the time in ms, the person, and whether it is the node's. */
const FRAMES: readonly (readonly [number, number, "in" | "out", Record<string, unknown>])[] = [
  [100, 0, "out", { send: { toUser: "bob", msgId: "m1", content: { text: "Ferry is on time, pier 4." } } }],
  [104, 0, "in", { sendAck: { conversation: "d:alice:bob", msgId: "m1", seq: 410 } }],
  [105, 1, "in", { push: { conversation: "d:alice:bob", msgId: "m1", seq: 410 } }],
  [112, 1, "out", { ack: { conversation: "d:alice:bob", seq: 410 } }],
];
const CUT: typeof FRAMES = [
  [1300, 0, "out", { send: { toUser: "bob", msgId: "m2", content: { text: "And the charger." } } }],
  [1304, 0, "in", { sendAck: { conversation: "d:alice:bob", msgId: "m2", seq: 411 } }],
];
const BACK: typeof FRAMES = [
  [4300, 1, "out", { hello: {} }],
  [4306, 1, "in", { welcome: { node: "n2" } }],
  [4309, 1, "in", { push: { conversation: "d:alice:bob", msgId: "m2", seq: 411 } }],
  [4318, 1, "out", { ack: { conversation: "d:alice:bob", seq: 411 } }],
  [5200, 0, "out", { send: { toUser: "bob", msgId: "m3", content: { text: "Once more." } } }],
  [5203, 0, "in", { error: { code: 4001, name: "RATE_LIMITED", temporary: true } }],
];

/** The wire of that conversation. */
export function sampleWire(): WireSource {
  const wire = new Wire();
  // The clock of a row counts from the load of the page; these rows are always at the same time of day.
  const start = BEGIN * 1000 - performance.timeOrigin;
  const add = (list: typeof FRAMES) => {
    for (const [at, person, direction, body] of list) {
      const frame = parseFrame(JSON.stringify({ id: 1, ...body }));
      if (frame) wire.frame(start + at, person, direction, frame, "");
    }
  };
  add(FRAMES);
  const band = wire.begin(1, "red", true);
  wire.mark(start + 900, 1, "You cut bob’s link", "red", "cut");
  add(CUT);
  wire.mark(start + 4200, 1, "411 waits on disk", "red");
  wire.end(band);
  add(BACK);
  const syncs: Readonly<Record<string, number>> = { m1: 0.8, m2: 1.1 };
  return {
    version: signal(0), wire, conv: "d:alice:bob", isDurable: true, nodes: ["n1", "n2"],
    people: [{ name: "alice", node: "n1" }, { name: "bob", node: "n2" }], syncMs: (id) => syncs[id],
  };
}
