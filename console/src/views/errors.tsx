import table, { type CodeEntry } from "code-table";
import { query, setQuery } from "../app/router.ts";
import { Header } from "../app/shell.tsx";
import { allows, boot } from "../live/boot.ts";
import { hasReported } from "../live/clocks.ts";
import { codeCounts, counted, rising, type CodeCount } from "../live/codes.ts";
import { arrivals } from "../live/stats.ts";
import { CopyButton } from "../parts/copy.tsx";
import { Icon } from "../parts/icon.tsx";
import { Marked } from "../parts/marked.tsx";
import { Sparkline } from "../parts/sparkline.tsx";
import { codeName } from "../words/codes.ts";
import { grouped, joined, plural } from "../words/numbers.ts";

const RECONNECT: Readonly<Record<string, string>> = { now: "reconnects at once", after: "reconnects after the given time", never: "does not reconnect by itself" };

/** How often a code was given in 15 minutes, and when. */
function Trend({ it }: { readonly it: CodeCount }) {
  return (
    <div class="trend">
      <Sparkline values={it.line} label={codeName(it.code)} over="by half a minute, 15 min" />
      <span class="small num"><b>{grouped(it.total)}</b> in 15 min{it.rises ? <span class="amber">, rises</span> : ""}</span>
    </div>
  );
}

/** Codes that were given more often in the last 5 minutes than before, and which nodes' counts are known. */
function Rising({ list }: { readonly list: readonly CodeCount[] }) {
  const own = boot.value?.node ?? "";
  const nodes = [own, ...(boot.value?.peers ?? []).map((peer) => peer.node)];
  const silent = nodes.filter((node) => node && (!counted.value.has(node) || !hasReported(arrivals.value, node, own)));
  return (
    <>
      {silent.length > 0 && silent.length < nodes.length && <p class="note part">{joined(silent)} did not report. These are the counts of {nodes.length - silent.length} of {nodes.length} nodes.</p>}
      {list.length > 0 && (
        <section class="rising" aria-label="What rises">
          <h2 class="group">What rises <span class="quiet small">{plural(list.length, "code")} given more often in the last 5 minutes than before</span></h2>
          <ol>
            {list.map((it) => (
              <li key={it.code} class="rise">
                <span class="mono num">{it.code}</span>
                <a class="mono cut" href={`/errors?code=${it.code}`}>{codeName(it.code)}</a>
                <span class="num soft">{grouped(it.recent)} in 5 min</span>
                <Trend it={it} />
              </li>
            ))}
          </ol>
        </section>
      )}
    </>
  );
}

function Entry({ it }: { readonly it: CodeEntry }) {
  const count = allows("codes") ? codeCounts.value.get(it.code) : undefined;
  return (
    <li class="code" id={`code-${it.code}`}>
      <span class="mono num">{it.code}</span>
      <div>
        <h3 class="mono">{it.name}</h3>
        <p><Marked text={it.cause} /></p>
        <p class="soft"><Marked text={it.cure} /></p>
      </div>
      <div class="code-facts small">
        {count && <Trend it={count} />}
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
        {allows("codes") && text === "" && <Rising list={rising(codeCounts.value)} />}
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
