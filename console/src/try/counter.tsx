import { boot } from "../live/boot.ts";
import { Icon } from "../parts/icon.tsx";
import { grouped } from "../words/numbers.ts";
import { judgedBy } from "../words/sentences.ts";
import { toLines } from "./history.ts";
import { inCell, type Cell } from "./judge.ts";
import type { Stage } from "./stage.ts";

function Count({ label, value, note, tone }: { readonly label: string; readonly value: number; readonly note?: string; readonly tone?: string }) {
  return (
    <div class="count">
      <span class="label">{label}</span>
      <span class="row">
        <span class="figure">{grouped(value)}</span>
        {note && <span class={`small ${tone ?? ""}`}>{note}</span>}
      </span>
    </div>
  );
}

function Judged({ stage, cell, label }: { readonly stage: Stage; readonly cell: Cell; readonly label: string }) {
  const { findings, counts } = stage.judgement.value;
  const value = inCell(findings, cell);
  const isChecked = stage.isChecked.value && counts.sent > 0;
  const rules = [...new Set(findings.filter(() => value > 0).map((it) => it.rule))].filter((rule) => inCell([{ rule, cid: "", what: "" }], cell) > 0);
  return (
    <div title={`${COUNTED[cell]}. ${isChecked ? "Judged: everybody was connected, and had caught up." : "Judged once everybody is connected and has caught up."}`} class={`count judged ${value > 0 ? "broken" : isChecked ? "good" : ""}`} data-cell={cell} data-checked={isChecked}>
      <span class="label">{label}</span>
      <span class="row">
        <span class="figure">{value}</span>
        {value > 0 ? <code>{rules.join(", ")}</code> : isChecked ? <><Icon name="tick" /><span class="sr">checked</span></> : <span class="quiet">so far</span>}
      </span>
    </div>
  );
}

/** What the judged figures count. */
const COUNTED: Readonly<Record<Cell, string>> = {
  lost: "Acked, but not with everybody who is due it, or not stored",
  doubled: "On a screen twice, or stored twice",
  order: "In another order than that of the conversation, or of its sender",
};

/** Offers the recording as a file. */
async function save(stage: Stage): Promise<void> {
  const lines = toLines(await stage.recording());
  const url = URL.createObjectURL(new Blob([lines], { type: "application/x-ndjson" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `tidegate-${boot.value?.node ?? "node"}.jsonl`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The strip of figures: what was sent, and what was lost, doubled or out of order. */
export function Counter({ stage, again }: { readonly stage: Stage; readonly again: () => void }) {
  void stage.version.value;
  const { counts } = stage.judgement.value;
  const waits = [...counts.waiting.entries()].filter(([, value]) => value > 0);
  const isAway = waits.some(([name]) => !stage.people.find((it) => it.name === name)?.isLive);
  const note = isAway ? waits.map(([name, value]) => `${value} ${value === 1 ? "waits" : "wait"} for ${name}`).join(", ") : "";
  const showRefused = counts.inFlight === 0 && counts.refused > 0;
  return (
    <section class="counter" aria-label="Counter">
      <Count label="Sent" value={counts.sent} />
      <Count label="Acked" value={counts.acked} />
      <Count label="Delivered" value={counts.delivered} {...(note ? { note, tone: "waits" } : {})} />
      {showRefused ? <Count label="Refused" value={counts.refused} /> : <Count label="In flight" value={counts.inFlight} />}
      <i class="rule" />
      <Judged stage={stage} cell="lost" label="Lost" />
      <Judged stage={stage} cell="doubled" label="Doubled" />
      <Judged stage={stage} cell="order" label="Out of order" />
      <p class="record small soft">
        <span class="about">{judgedBy(stage.mode, boot.value)} </span>
        <button type="button" class="link" onClick={() => void save(stage)} title="JSON lines for tidegate-lab check, with hashes in place of what was said">Save<span class="about"> the recording</span></button> <span class="about">to judge it yourself, or </span>
        <button type="button" class="link" onClick={again}>start over</button><span class="about">.</span>
      </p>
      <p class="phone-counts small">
        <span><b class="num">{grouped(counts.sent)}</b> sent</span>
        <span><b class="num">{grouped(counts.acked)}</b> acked</span>
        <span><b class="num">{grouped(counts.delivered)}</b> delivered</span>
      </p>
    </section>
  );
}
