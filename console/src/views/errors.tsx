import table, { type CodeEntry } from "code-table";
import { query, setQuery } from "../app/router.ts";
import { Header } from "../app/shell.tsx";
import { CopyButton } from "../parts/copy.tsx";
import { Icon } from "../parts/icon.tsx";

const RECONNECT: Readonly<Record<string, string>> = { now: "reconnects at once", after: "reconnects after the given time", never: "does not reconnect by itself" };

function Entry({ it }: { readonly it: CodeEntry }) {
  return (
    <li class="code" id={`code-${it.code}`}>
      <span class="mono num">{it.code}</span>
      <div>
        <h3 class="mono">{it.name}</h3>
        <p>{it.cause}</p>
        <p class="soft">{it.cure}</p>
      </div>
      <div class="code-facts small">
        <span class={`chip ${it.temporary ? "amber" : ""}`}>{it.temporary ? "temporary" : "lasting"}</span>
        <span class="quiet">{RECONNECT[it.reconnect]}</span>
        <CopyButton plain label="Copy" text={() => `${it.code} ${it.name}: ${it.cause} ${it.cure}`} />
      </div>
    </li>
  );
}

/** Every code of the protocol with its cause and its cure. */
export default function Errors() {
  const text = query.value.get("q") ?? query.value.get("code") ?? "";
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = table.filter((it) => words.every((word) => `${it.code} ${it.name} ${it.cause} ${it.cure}`.toLowerCase().includes(word)));
  const groups = [...new Set(hits.map((it) => it.group))];
  return (
    <>
      <Header title="Errors"><span class="quiet lead-note">{table.length} codes, each with its cure</span></Header>
      <div class="view">
        <div class="filter">
          <label class="field">
            <Icon name="search" />
            <input data-filter aria-label="A number, a name or a word" placeholder="A number, a name or a word" value={text} onInput={(event) => { setQuery("code", ""); setQuery("q", event.currentTarget.value); }} />
          </label>
          <span class="quiet" role="status">{hits.length === table.length ? "" : `${hits.length} of ${table.length}`}</span>
        </div>
        {groups.map((group) => (
          <section>
            <h2 class="group">{group}</h2>
            <ol>{hits.filter((it) => it.group === group).map((it) => <Entry key={it.code} it={it} />)}</ol>
          </section>
        ))}
        {hits.length === 0 && <p class="note">No code matches. Codes are numbers such as 2002, or names such as TOKEN_EXPIRED.</p>}
      </div>
    </>
  );
}
