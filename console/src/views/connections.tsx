import { query, setQuery } from "../app/router.ts";
import { Header } from "../app/shell.tsx";
import { boot } from "../live/boot.ts";
import { listPath, type ConnectionList } from "../live/connections.ts";
import { isId } from "../live/ids.ts";
import { Empty } from "../parts/empty.tsx";
import { Failed } from "../parts/failed.tsx";
import { Icon } from "../parts/icon.tsx";
import { Outcome } from "../parts/outcome.tsx";
import { useReading } from "../parts/reading.ts";
import { listWords, matches, silentWords } from "../words/connections.ts";
import { grouped } from "../words/numbers.ts";
import { ConnectionTable } from "./connectiontable.tsx";
import { EndingDialog, outcome } from "./ending.tsx";

/** Connections that are read for the list, and those that are searched. */
const LISTED = 200;
const SEARCHED = 1000;
/** Time between two reads. */
const AGAIN_MS = 2000;

/** The connections of all nodes: who is connected, from where and since when, and how to end one. */
export default function Connections() {
  const field = (name: string) => query.value.get(name) ?? "";
  const [text, user, node, sort] = [field("q"), field("user"), field("node"), field("sort")];
  const path = listPath({ user, node, sort, limit: text ? SEARCHED : LISTED });
  const { value, error, again } = useReading<ConnectionList>(path, AGAIN_MS);
  const all = value?.connections.filter((it) => !node || it.node === node) ?? [];
  const shown = all.filter((it) => matches(it, text));
  const names = [boot.value?.node ?? "", ...(boot.value?.peers ?? []).map((it) => it.node)].filter(Boolean).sort();
  const words = value ? listWords(value, shown.length, text, sort === "outbox") : "";
  const silent = silentWords(value?.silent ?? []);
  const isFiltered = text !== "" || user !== "" || node !== "";
  return (
    <>
      <Header title="Connections"><span class="quiet lead-note num">{value ? `${grouped(value.total)}${user ? ` of ${user}` : node ? ` on ${node}` : ""}` : ""}</span></Header>
      <div class="view">
        {error && <Failed error={error} again={again} />}
        <Outcome said={outcome} />
        <div class="filter">
          <label class="field">
            <Icon name="search" />
            <input data-filter aria-label="User, device, node or address" placeholder="User, device, node or address" autocomplete="off" value={text} onInput={(event) => setQuery("q", event.currentTarget.value.trim())} />
          </label>
          {user && <button type="button" class="button" onClick={() => setQuery("user", "")}>Only {user} <Icon name="cross" /></button>}
          {names.length > 1 && (
            <label class="field pick">
              <span class="sr">Node</span>
              <select value={node} onChange={(event) => setQuery("node", event.currentTarget.value)}>
                <option value="">All nodes</option>
                {names.map((name) => <option value={name}>{name}</option>)}
              </select>
            </label>
          )}
          {!user && (
            <span class="segmented" role="group" aria-label="Order">
              {([["", "newest"], ["outbox", "most waiting"]] as const).map(([name, label]) => <button type="button" aria-pressed={sort === name} onClick={() => setQuery("sort", name)}>{label}</button>)}
            </span>
          )}
        </div>
        {silent && <p class="banner amber part">{silent}</p>}
        {words && <p class="note quiet part">{words} {text && !user && isId(text) && <button type="button" class="link" onClick={() => { setQuery("q", ""); setQuery("user", text); }}>All of the user {text}</button>}</p>}
        {!value && !error && <p class="note quiet">Reading the connections.</p>}
        {shown.length > 0 && <div class="scroll-x pad"><ConnectionTable list={shown} isOfOne={false} /></div>}
        {value && shown.length === 0 && isFiltered && <Empty>No connection matches.</Empty>}
        {value && shown.length === 0 && !isFiltered && !silent && <Empty command="tidegate tail --user bob">No client is connected. This connects one:</Empty>}
        {boot.value?.console === "read" && <p class="note quiet">This console is read-only, so that it ends no connection. The setting is <code>admin.console</code>.</p>}
      </div>
      <EndingDialog after={again} />
    </>
  );
}
