import { useEffect } from "preact/hooks";
import { viewKeys } from "../app/keys.ts";
import { go, path, query } from "../app/router.ts";
import { Header } from "../app/shell.tsx";
import { boot } from "../live/boot.ts";
import { Empty } from "../parts/empty.tsx";
import { BREAKS } from "./breaks.ts";
import { ChatPane } from "./chat.tsx";
import { Counter } from "./counter.tsx";
import { Deck } from "./deck.tsx";
import { Listeners } from "./listeners.tsx";
import { open, press, shut, stage } from "./play.ts";
import { Sentence } from "./sentence.tsx";
import type { Mode } from "./stage.ts";
import { purpose } from "../words/sentences.ts";
import { WireView } from "./wire.tsx";

const MODES: readonly (readonly [Mode, string, string])[] = [
  ["pair", "/try", "Two people"],
  ["group", "/try/group", "Group of three"],
  ["room", "/try/room", "Live room"],
];

/** The try-out page: people, the wire between them, and the breaks. */
export function TryIt() {
  const mode = MODES.find(([, at]) => at === path.value)?.[0] ?? "pair";
  const isReadOnly = boot.value?.console === "read";
  const isReady = boot.value !== undefined && !isReadOnly;
  const plant = Number(query.value.get("plant") ?? 0);
  useEffect(() => {
    if (!isReady) return;
    open(mode, plant);
    return shut;
  }, [mode, isReady, plant]);
  useEffect(() => {
    BREAKS.forEach((_, index) => viewKeys.set(String(index + 1), () => press(index)));
    return () => BREAKS.forEach((_, index) => viewKeys.delete(String(index + 1)));
  }, []);
  const it = stage.value;
  const [alice, ...others] = it?.people ?? [];
  return (
    <>
      <Header title="Try it">
        <select class="mode-select" aria-label="Who talks" value={mode} onChange={(event) => go(MODES.find(([name]) => name === event.currentTarget.value)?.[1] ?? "/try")}>
          {MODES.map(([name, , label]) => <option value={name}>{label}</option>)}
        </select>
        <nav class="segmented modes" aria-label="Who talks">
          {MODES.map(([name, at, label]) => <a href={at} aria-current={name === mode ? "page" : undefined}>{label}</a>)}
        </nav>
        <span class="quiet lead-note wider">{purpose(mode)}</span>
      </Header>
      {it && it.version.value >= 0 && it.messages.size === 0 && <p class="purpose small soft">{purpose(mode)}</p>}
      {isReadOnly && (
        <Empty>This console is read-only: it creates no tokens for people, and breaks nothing. The setting is <code>admin.console</code>.</Empty>
      )}
      {it?.problem.value && (
        <div class="failed" role="status">
          <span class="grow">{it.problem.value}</span>
          <button type="button" class="link" onClick={() => open(mode, plant)}>Try again</button>
        </div>
      )}
      {it && alice && (
        <div class={`try try-${it.people.length}${it.audience ? " try-room" : ""}`} key={`${it.mode} ${it.recorder === undefined}`}>
          <Counter stage={it} again={() => open(mode, plant, true)} />
          <ChatPane key={`alice ${it.conv === "" ? "" : ""}`} stage={it} person={alice} isFirst />
          <div class="middle">
            <WireView stage={it} />
            <Sentence stage={it} again={() => open(mode, plant)} />
          </div>
          <div class="others">
            {others.map((person) => <ChatPane key={person.name} stage={it} person={person} isFirst={false} />)}
            {it.audience && <Listeners stage={it} audience={it.audience} />}
          </div>
          <Deck stage={it} />
        </div>
      )}
    </>
  );
}
