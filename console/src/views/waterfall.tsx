import { useState } from "preact/hooks";
import { nodeClass } from "../live/boot.ts";
import { place, ticks, type Bar, type Waterfall } from "./trace.ts";

const WHAT: Readonly<Record<string, string>> = {
  received: "checked, next in chain", appended: "the log has it", notappended: "the log has not confirmed it", decided: "its place is known", archived: "the store has it",
  answered: "the ack is on its way", arrived: "handed over by a peer", pushed: "in the outbox", acked: "the device has it",
};

function about({ step }: Bar): string {
  const who = step.step === "pushed" || step.step === "acked" ? [step.user, step.device].filter(Boolean).join(", ") : "";
  if (who) return who;
  if (step.step === "decided" && step.seq !== undefined) return `seq ${step.seq}`;
  return WHAT[step.step] ?? step.note ?? "";
}

function label(ms: number): string {
  return ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1).replace(/\.0$/, "") : String(Number(ms.toFixed(3)));
}

/** The steps of a send by node, on one scale that is linear up to the ack. */
export function WaterfallView({ falls, silent }: { readonly falls: Waterfall; readonly silent: readonly string[] }) {
  const [chosen, choose] = useState<Bar | undefined>(undefined);
  const at = (ms: number) => `${(place(falls, ms) * 100).toFixed(2)}%`;
  const isBent = falls.end > falls.bend * 1.6;
  const sum = falls.way.reduce((all, part) => all + part.ms, 0);
  const open = chosen ?? falls.lanes.flatMap((lane) => lane.bars).find((bar) => bar.step.step === "archived");
  return (
    <>
      {sum > 0 && (
        <div class="way" aria-label="The way to the ack">
          {falls.way.map((part, index) => (
            <div style={{ flexGrow: Math.max(part.ms / sum, 0.1) }}>
              <i class={index % 2 === 0 ? "bar" : "bar light"} />
              <span class="cut"><b class="num">{part.ms.toFixed(2)}</b> {index === 0 ? "ms " : ""}{part.name}</span>
            </div>
          ))}
        </div>
      )}
      <div class="falls">
        <div class="falls-axis num" aria-hidden="true">
          {ticks(falls).map((tick, index) => <span style={{ left: at(tick) }}>{label(tick)}{index === 0 ? " ms" : ""}</span>)}
          {isBent && <em style={{ left: at(falls.bend) }}>coarser scale from here</em>}
        </div>
        <div class="falls-grid" aria-hidden="true">
          {ticks(falls).map((tick) => <i class={isBent && tick === falls.bend ? "bend" : ""} style={{ left: at(tick) }} />)}
        </div>
        {falls.lanes.map((lane) => (
          <ol class={`lane ${nodeClass(lane.node)}`}>
            <li class="falls-row"><span class="names"><b class="node">{lane.node}</b><span class="quiet cut">{lane.part}</span></span></li>
            {lane.bars.map((bar) => {
              const right = place(falls, bar.to) > 0.74;
              return (
                <li class={`falls-row${open === bar ? " open" : ""}`}>
                  <button type="button" onClick={() => choose(bar)}>
                    <span class="names"><code>{bar.step.step}</code><span class="quiet cut">{about(bar)}</span></span>
                    <span class="track">
                      <i class={`bar ${bar.kind}`} style={{ left: at(bar.from), width: bar.kind === "point" ? "8px" : `max(3px, ${((place(falls, bar.to) - place(falls, bar.from)) * 100).toFixed(2)}%)` }} />
                      <span class="num small" style={right ? { right: `calc(${(100 - place(falls, bar.from) * 100).toFixed(2)}% + 8px)` } : { left: `calc(${at(bar.to)} + 10px)` }}>
                        {bar.kind === "point" ? "0" : `+${bar.to.toFixed(3)}`}{bar.isEarly ? ` clock of ${lane.node}` : ""}
                      </span>
                    </span>
                  </button>
                </li>
              );
            })}
          </ol>
        ))}
      </div>
      {silent.map((node) => <p class="quiet missing">{node} did not answer; its steps are missing.</p>)}
      {open && (
        <div class="step">
          <span class="row small quiet"><span class="grow">{open.step.step} on {open.step.node}</span><span>times are by each node’s own clock</span></span>
          <code>{JSON.stringify(open.step)}</code>
        </div>
      )}
    </>
  );
}
