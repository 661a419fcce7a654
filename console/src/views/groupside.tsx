import type { ComponentChildren } from "preact";
import { go, path, query, setQuery } from "../app/router.ts";
import { isNarrow } from "../app/width.ts";
import { isId } from "../live/ids.ts";
import { Failed } from "../parts/failed.tsx";
import { Icon } from "../parts/icon.tsx";
import type { Pages } from "../parts/pages.ts";
import { Split } from "../parts/split.tsx";

/** Leads from groups to live rooms and back; the address decides. */
function Kinds() {
  return (
    <nav class="segmented kinds" aria-label="Groups or rooms">
      {([["/groups", "Groups"], ["/rooms", "Live rooms"]] as const).map(([to, label]) => <a href={to} aria-current={path.value === to ? "page" : undefined}>{label}</a>)}
    </nav>
  );
}

/** A field that filters a list by what is typed, and opens the entry of that id at Enter. */
function IdField({ label, value, open }: { readonly label: string; readonly value: string; readonly open: (id: string) => void }) {
  return (
    <form onSubmit={(event) => { event.preventDefault(); if (isId(value)) open(value); }}>
      <label class="field">
        <Icon name="search" />
        <input data-filter aria-label={label} placeholder={label} autocomplete="off" value={value} onInput={(event) => setQuery("q", event.currentTarget.value.trim())} />
      </label>
    </form>
  );
}

/** A list by ids and the entry that is open: that of the address, else the first one where there is room for both. */
export function Chooser<T>({ of, label, field, pages, shown, id, row, note, children, details }: {
  /** Name of an entry in the address, such as `group`; the page is at its plural. */
  readonly of: "group" | "room";
  readonly label: string;
  readonly field: string;
  readonly pages: Pages<T>;
  /** Entries of the pages that are listed. */
  readonly shown: readonly T[];
  readonly id: (it: T) => string;
  /** What an entry says below its id. */
  readonly row: (it: T) => ComponentChildren;
  /** What stands above the list. */
  readonly note?: ComponentChildren;
  /** What stands below it. */
  readonly children: ComponentChildren;
  readonly details: (id: string) => ComponentChildren;
}) {
  const [text, chosen] = [query.value.get("q") ?? "", query.value.get(of) ?? ""];
  const [first] = shown;
  const open = chosen || (isNarrow.value || first === undefined ? "" : id(first));
  const choose = (to: string) => {
    go(`/${of}s?${new URLSearchParams({ ...(text && text !== to ? { q: text } : {}), [of]: to }).toString()}`);
  };
  return (
    <Split
      isOpen={open !== ""}
      isEmpty={shown.length === 0}
      back={text ? `/${of}s?q=${encodeURIComponent(text)}` : `/${of}s`}
      label={label}
      side={<>
        <div class="side-head">
          <Kinds />
          <IdField label={field} value={text} open={choose} />
        </div>
        {pages.error && <Failed error={pages.error} again={pages.again} />}
        {note}
        <ol class="list">
          {shown.map((it) => (
            <li key={id(it)}>
              <button type="button" class={`message-row${id(it) === open ? " open" : ""}`} aria-current={id(it) === open} onClick={() => choose(id(it))}>
                <b class="cut">{id(it)}</b>
                {row(it)}
              </button>
            </li>
          ))}
        </ol>
        {pages.hasMore && <p class="side-more"><button type="button" class="link" onClick={pages.more}>{shown.length === 0 ? "None so far. Read on" : "Show more"}</button></p>}
        {children}
      </>}
    >
      {open && (isId(open) ? details(open) : <p class="note">No {of} has this id.</p>)}
    </Split>
  );
}
