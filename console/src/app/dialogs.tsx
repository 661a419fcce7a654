import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import table from "code-table";
import { isId } from "../live/ids.ts";
import { Icon } from "../parts/icon.tsx";
import { Commands } from "./commands.tsx";
import { KEYS, dialog, letters } from "./keys.ts";
import type { Entry } from "./nav.ts";
import { go } from "./router.ts";
import { toggleTheme } from "./theme.ts";

interface Hit {
  readonly label: string;
  readonly note: string;
  readonly act: () => void;
}

/** What the palette finds for a text: views, actions, codes, and the message or user of that name. */
function find(text: string, list: readonly Entry[]): Hit[] {
  const word = text.trim().toLowerCase();
  const views = list.map((entry) => ({ label: entry.label, note: `g ${entry.key}`, act: () => go(entry.path) }));
  const actions = [{ label: "Light or dark", note: "d", act: toggleTheme }, { label: "Keys", note: "?", act: () => (dialog.value = "keys") }, { label: "Copy as curl", note: "what this view has read", act: () => (dialog.value = "commands") }];
  const all: Hit[] = [...views, ...actions];
  if (!word) return all;
  const codes = table
    .filter((it) => `${it.code} ${it.name}`.toLowerCase().includes(word))
    .slice(0, 6)
    .map((it) => ({ label: `${it.code} ${it.name}`, note: "code", act: () => go(`/errors?code=${it.code}`) }));
  const hits = [...all.filter((it) => it.label.toLowerCase().includes(word)), ...codes];
  if (isId(text.trim())) {
    const id = encodeURIComponent(text.trim());
    hits.push({ label: text.trim(), note: "messages of this user", act: () => go(`/messages?user=${id}`) });
    hits.push({ label: text.trim(), note: "this user", act: () => go(`/people?user=${id}`) });
    hits.push({ label: text.trim(), note: "this group", act: () => go(`/groups?group=${id}`) });
    hits.push({ label: text.trim(), note: "this live room", act: () => go(`/rooms?room=${id}`) });
    hits.push({ label: text.trim(), note: "message with this id", act: () => go(`/messages?msg=${id}`) });
  }
  return hits;
}

const text = signal("");
const chosen = signal(0);

function Find({ list }: { readonly list: readonly Entry[] }) {
  const hits = find(text.value, list);
  const pick = (hit: Hit | undefined) => {
    dialog.value = "";
    hit?.act();
  };
  return (
    <>
      <label class="field">
        <Icon name="search" />
        <input
          autofocus
          role="combobox"
          aria-label="Find or jump to"
          aria-expanded="true"
          aria-controls="hits"
          aria-activedescendant={`hit-${chosen.value}`}
          placeholder="A view, a code, a user, a group, the id of a message"
          value={text.value}
          onInput={(event) => {
            text.value = event.currentTarget.value;
            chosen.value = 0;
          }}
          onKeyDown={(event) => {
            const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
            if (step) {
              event.preventDefault();
              chosen.value = (chosen.value + step + hits.length) % Math.max(1, hits.length);
            } else if (event.key === "Enter") pick(hits[chosen.value]);
          }}
        />
      </label>
      <ul id="hits" role="listbox" aria-label="Found">
        {hits.map((hit, index) => (
          <li id={`hit-${index}`} role="option" aria-selected={index === chosen.value} onClick={() => pick(hit)}>
            <span>{hit.label}</span>
            <span class="quiet small">{hit.note}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

function Keys() {
  return (
    <>
      <h2>Keys</h2>
      <dl class="keys">
        {KEYS.map(([key, what]) => (
          <>
            <dt><kbd>{key}</kbd></dt>
            <dd>{what}</dd>
          </>
        ))}
      </dl>
      <p class="soft">What the views show is explained in <code>docs/console.md</code> of the repository; what the broker promises, in <code>docs/promises.md</code>.</p>
      <div class="actions">
        <button class="button" type="button" aria-pressed={!letters.value} onClick={() => (letters.value = !letters.value)}>
          {letters.value ? "Turn single letters off" : "Turn single letters on"}
        </button>
        <button class="button" type="button" onClick={() => (dialog.value = "")}>Close</button>
      </div>
    </>
  );
}

const LABELS = { "": "Keys", find: "Find or jump to", keys: "Keys", commands: "Commands" };

/** The dialogs of all views. */
export function Dialogs({ list }: { readonly list: readonly Entry[] }) {
  const element = useRef<HTMLDialogElement>(null);
  const which = dialog.value;
  useEffect(() => {
    const it = element.current;
    if (!it) return;
    if (which && !it.open) {
      text.value = "";
      chosen.value = 0;
      it.showModal();
    } else if (!which && it.open) it.close();
  }, [which]);
  return (
    <dialog
      ref={element}
      class={which === "find" ? "palette" : ""}
      aria-label={LABELS[which]}
      onClose={() => (dialog.value = "")}
      onClick={(event) => event.target === element.current && element.current?.close()}
    >
      {which === "find" && <Find list={list} />}
      {which === "keys" && <Keys />}
      {which === "commands" && <Commands />}
    </dialog>
  );
}
