import { useState } from "preact/hooks";
import { boot } from "../live/boot.ts";
import { GOOD, GOOD_ROOM, KILL_ELSEWHERE, UNDER_WAY, broken, connecting, framesButton, kept, next, opening, plantedWords, replaced } from "../words/sentences.ts";
import type { Running } from "./breaks.ts";
import { running, said } from "./play.ts";
import type { Stage } from "./stage.ts";
import { wordsOf } from "./wire.tsx";

/** A break that goes on, in words. */
function underWay(it: Running): string {
  const waits = it.stage.missing(it.who);
  // The time in the person's header, where the link is what the break took.
  const isGone = it.what.name === "cut" || it.what.name === "offline";
  const facts = { who: it.who.name, other: it.other.name, forMs: performance.now() - (isGone ? (it.who.goneAt ?? it.from) : it.from), isAway: !it.who.isLive, got: waits, durable: it.stage.isDurable, isRoom: it.stage.mode === "room" };
  return UNDER_WAY[it.what.name]?.(facts) ?? "";
}

/** What the broker did, in words that are filled from what was measured. */
export function Sentence({ stage, again }: { readonly stage: Stage; readonly again: () => void }) {
  void stage.version.value;
  const [isOpen, setOpen] = useState(false);
  const it = said.value;
  const finding = stage.judgement.value.findings[0];
  const first = it?.from ?? 0;
  const frames = it ? stage.wire.items.filter((item) => item.key > first && item.kind === "frame" && wordsOf(stage, item)) : [];
  const isLive = stage.people.every((person) => person.isLive);
  let words = it?.words ?? (isLive ? opening(stage.people.map((person) => person.name), stage.nodes, stage.mode, boot.value?.durable ?? true) : connecting(boot.value?.node ?? "the node"));
  const current = it && running.value.get(it.name);
  if (current && !words) words = underWay(current);
  const { counts } = stage.judgement.value;
  const isKept = !it && isLive && counts.acked > 0;
  const isChecked = isKept && stage.isChecked.value;
  if (isKept) words = kept(counts.acked, stage.nodes, stage.people.length, stage.mode, boot.value?.durable ?? true, isChecked);
  const end = it?.end || (isChecked ? (stage.audience ? GOOD_ROOM : GOOD) : "");
  const isPlain = !it && !finding;
  if (isPlain && isLive && stage.planted > 0) words = `${words} ${plantedWords(stage.planted)}`;
  if (finding) words = broken(finding.rule, finding.what, stage.isPlanted(finding.cid));
  const taken = stage.replaced;
  const isAlone = (boot.value?.nodes ?? 1) < 2 && stage.mode !== "room";
  if (taken.length > 0) words = replaced(taken);
  return (
    <section class={`sentence${current ? ` on ${current.what.tone}` : ""}`} aria-label="What the broker did">
      <div class="row small">
        <span class="quiet grow">What the broker did</span>
        {stage.isDurable && <span class="row soft"><i class="ink-square" />written and synced</span>}
        {frames.length > 0 && <button type="button" class="link" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>{framesButton(frames.length)}</button>}
      </div>
      {isOpen && frames.length > 0 ? (
        <ol class="frames" tabIndex={0}>
          {frames.map((item) => item.kind === "frame" && <li class="mono">{item.direction === "out" ? "→" : "←"} {item.frame.raw}</li>)}
        </ol>
      ) : (
        <p class={finding ? "broken" : ""} aria-live={current || isKept ? "off" : "polite"} data-over={it?.isOver ?? false}>
          {words} {taken.length > 0 ? <button type="button" class="link" onClick={again}>Take back</button> : (
            <>{end && !finding && <b>{end}</b>}{isKept && !finding && ` ${next(stage.mode)}`}{isKept && !finding && isAlone && <span class="elsewhere"> {KILL_ELSEWHERE}</span>}</>
          )}
        </p>
      )}
    </section>
  );
}
