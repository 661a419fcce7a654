import { boot } from "../live/boot.ts";
import { Icon } from "../parts/icon.tsx";
import { duration } from "../words/numbers.ts";
import { KILL_ELSEWHERE } from "../words/sentences.ts";
import { BREAKS } from "./breaks.ts";
import { press, running, target } from "./play.ts";
import type { Stage } from "./stage.ts";

/** The breaks: whom they are for, and a tile for each. */
export function Deck({ stage }: { readonly stage: Stage }) {
  void stage.version.value;
  const node = stage.people[target.value]?.node || (boot.value?.node ?? "");
  const isAlone = (boot.value?.nodes ?? 1) < 2;
  return (
    <section class="deck" aria-label="Break it">
      <div class="row">
        <h2>Break it</h2>
        <span class="quiet for">for</span>
        <span class="segmented">
          {stage.people.map((person, index) => (
            <button type="button" aria-pressed={target.value === index} onClick={() => (target.value = index)}>{person.name}</button>
          ))}
        </span>
        <span class="quiet hint">or press a number. The conversation goes on.</span>
      </div>
      <div class="tiles">
        {BREAKS.map((it, index) => {
          const blocked = stage.replaced.length > 0 ? "another tab has them" : it.blocked(stage.mode);
          const current = running.value.get(it.name);
          const label = it.name === "drain" || it.name === "kill" ? `${it.label} ${node}` : it.label;
          const note = blocked || (current ? `${current.isStopped ? "ending" : "for"} ${duration(performance.now() - current.from)}` : it.note);
          return (
            <button
              type="button"
              class={`tile${current ? ` on ${it.tone}` : ""}${blocked ? " blocked" : ""}`}
              aria-pressed={current !== undefined}
              aria-disabled={blocked !== ""}
              title={it.name === "kill" && isAlone ? KILL_ELSEWHERE : undefined}
              data-break={it.name}
              onClick={() => press(index)}
            >
              <Icon name={it.icon} />
              <b>{label}</b>
              <span class="key" aria-hidden="true">{index + 1}</span>
              <span class="tile-note num">{note}</span>
            </button>
          );
        })}
      </div>
    </section>
  );
}
