import { useState } from "preact/hooks";
import { boot } from "../live/boot.ts";
import { broken, opening } from "../words/sentences.ts";
import { running, said } from "./play.ts";
import type { Stage } from "./stage.ts";
import { wordsOf } from "./wire.tsx";

const UNDER_WAY: Readonly<Record<string, string>> = {
  cut: "The link is cut. The other one goes on writing, and has acks.",
  freeze: "The client takes pushes, and acks nothing. The broker sends again, then closes the link.",
  offline: "The client said good bye. What is written meanwhile is kept with its numbers.",
  twice: "The client sends a message again, with the same id and the same text.",
  skip: "The client keeps one message of its chain back. The broker holds what follows.",
  flood: "The client sends as fast as it can.",
  drain: "The node asks its clients to leave, each in its slot.",
  kill: "The process of the node is gone. Its clients look for another one.",
};

/** What the broker did, in words that are filled from what was measured. */
export function Sentence({ stage }: { readonly stage: Stage }) {
  void stage.version.value;
  const [isOpen, setOpen] = useState(false);
  const it = said.value;
  const finding = stage.judgement.value.findings[0];
  const first = it?.from ?? 0;
  const frames = it ? stage.wire.items.filter((item) => item.key > first && item.kind === "frame" && wordsOf(stage, item)) : [];
  const isRunning = it !== undefined && running.value.has(it.name);
  let words = it?.words ?? opening(boot.value?.node ?? "the node", stage.isDurable);
  if (isRunning && !words) words = UNDER_WAY[it.name] ?? "";
  if (finding) words = broken(finding.rule, finding.what);
  if (stage.problem.value) words = `${stage.problem.value}.`;
  return (
    <section class="sentence" aria-label="What the broker did">
      <div class="row small">
        <span class="quiet grow">What the broker did</span>
        {stage.isDurable && <span class="row soft"><i class="ink-square" />written and synced</span>}
        {frames.length > 0 && <button type="button" class="link" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>{frames.length} frames as JSON</button>}
      </div>
      {isOpen && frames.length > 0 ? (
        <ol class="frames" tabIndex={0}>
          {frames.map((item) => item.kind === "frame" && <li class="mono">{item.direction === "out" ? "→" : "←"} {item.frame.raw}</li>)}
        </ol>
      ) : (
        <p class={finding ? "broken" : ""} aria-live="polite" data-over={it?.isOver ?? false}>
          {words} {it?.end && !finding && <b>{it.end}</b>}
        </p>
      )}
    </section>
  );
}
