import { signal } from "@preact/signals";
import { ApiError } from "../live/api.ts";
import { GOOD, GOOD_ROOM, SENTENCES } from "../words/sentences.ts";
import { BREAKS, Running, type Break } from "./breaks.ts";
import { Stage, type Mode } from "./stage.ts";

/** What the page says about the last break. */
export interface Said {
  readonly name: string;
  readonly words: string;
  /** The bold end; empty until it was judged. */
  readonly end: string;
  readonly isOver: boolean;
  /** Rows of the wire that belong to it. */
  readonly from: number;
}

/** The stage that is played on. */
export const stage = signal<Stage | undefined>(undefined);

/** Breaks under way, by name. */
export const running = signal<ReadonlyMap<string, Running>>(new Map());

/** The last sentence. */
export const said = signal<Said | undefined>(undefined);

/** Index of the person that the next break is for. */
export const target = signal(1);

/** Begins with new people and an empty record, and with `isFresh` in a new group. */
export function open(mode: Mode, plant: number, isFresh = false): Stage {
  stage.value?.stop();
  running.value = new Map();
  said.value = undefined;
  const next = new Stage(mode, isFresh);
  next.plant = plant;
  next.planted = plant;
  stage.value = next;
  void next.start();
  return next;
}

/** Ends the stage, when its view is left. */
export function shut(): void {
  for (const it of running.value.values()) it.stop();
  stage.value?.stop();
  stage.value = undefined;
}

/** Begins a break, or ends it if it is under way. */
export function press(index: number): void {
  const what = BREAKS[index];
  const it = stage.value;
  if (!what || !it || what.blocked(it.mode) || it.replaced.length > 0) return;
  const current = running.value.get(what.name);
  if (current) return current.stop();
  void play(it, what);
}

async function play(on: Stage, what: Break): Promise<void> {
  const who = on.people[Math.min(target.value, on.people.length - 1)];
  if (!who) return;
  const it = new Running(on, what, who);
  const from = on.wire.items.at(-1)?.key ?? 0;
  running.value = new Map(running.value).set(what.name, it);
  on.breaks += 1;
  const say = (words: string, isOver: boolean, end = "") => {
    if (stage.value === on) said.value = { name: what.name, words, end, isOver, from };
  };
  say("", false);
  const clock = window.setInterval(() => on.changed(), 100);
  let failure = "";
  try {
    await on.opened;
    await what.run(it);
  } catch (error) {
    failure = error instanceof ApiError ? `${error.title}: ${error.message} ${error.cure}` : String(error);
    who.tap.setCut(false);
    who.tap.hold = undefined;
  }
  clearInterval(clock);
  on.breaks -= 1;
  const next = new Map(running.value);
  next.delete(what.name);
  running.value = next;
  if (failure) return say(failure, true);
  say(it.sentence(), true);
  on.changed();
  await on.until(() => on.isChecked.value, 20_000);
  const words = it.sentence();
  const isGood = on.isChecked.value && on.judgement.value.findings.length === 0 && SENTENCES[what.name] !== undefined;
  const end = isGood ? (on.audience ? GOOD_ROOM : GOOD) : "";
  const isShown = () => said.value?.name === what.name && said.value.from === from;
  if (isShown()) say(words, true, end);
  if (!it.later) return;
  await it.later;
  if (isShown() && it.sentence() !== words) say(it.sentence(), true, end);
}
