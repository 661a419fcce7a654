import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { viewKeys } from "../app/keys.ts";
import { query, setQuery } from "../app/router.ts";
import { Header } from "../app/shell.tsx";
import { boot } from "../live/boot.ts";
import { concerns, failure, followEvents, isRead, missed, ofNode, retryEvents, type CloudEvent, type EventList } from "../live/cloudevents.ts";
import { FEED_TYPES, feedFailure, followFeed, hasGap, isAbout, isFollowed, ofAll } from "../live/feed.ts";
import { isId } from "../live/ids.ts";
import { CopyButton } from "../parts/copy.tsx";
import { Empty } from "../parts/empty.tsx";
import { EventLine } from "../parts/eventline.tsx";
import { Failed } from "../parts/failed.tsx";
import { Icon } from "../parts/icon.tsx";
import { ofNodeWords } from "../words/feed.ts";

const TYPES = ["", "online", "offline", "read", "order-blocked", "audit"];
/** Events that are drawn at most. */
const DRAWN = 400;
const open = signal("");

function Rows({ shown }: { readonly shown: readonly CloudEvent[] }) {
  return (
    <ol class="events">
      {shown.map((it) => (
        <li key={it.id}>
          <button type="button" class="event-row" aria-expanded={open.value === it.id} onClick={() => (open.value = open.value === it.id ? "" : it.id)}>
            <EventLine it={it} />
          </button>
          {open.value === it.id && (
            <div class="step">
              <code>{JSON.stringify(it)}</code>
              <div><CopyButton plain label="Copy as CloudEvent" text={() => JSON.stringify(it, null, 2)} /></div>
            </div>
          )}
        </li>
      ))}
    </ol>
  );
}

/** Chooses the source and the types, filters by a name, and lets the list stand still. */
function Filter({ of, types, label }: { readonly of: EventList; readonly types: readonly string[]; readonly label: string }) {
  const [type, text] = [query.value.get("type") ?? "", query.value.get("user") ?? ""];
  const isFeed = query.value.get("of") === "all";
  useEffect(() => {
    viewKeys.set("p", of.toggle);
    return () => viewKeys.delete("p");
  }, [of]);
  const choose = (source: string) => {
    setQuery("type", "");
    setQuery("of", source);
  };
  const waiting = of.heldBack.value;
  return (
    <div class="filter">
      <span class="segmented sources" role="group" aria-label="Of which nodes">
        <button type="button" aria-pressed={!isFeed} onClick={() => choose("")}>{boot.value?.node ?? "this node"}</button>
        <button type="button" aria-pressed={isFeed} onClick={() => choose("all")}>feed of all nodes</button>
      </span>
      <label class="field">
        <Icon name="search" />
        <input data-filter aria-label={label} placeholder={label} value={text} onInput={(event) => setQuery("user", event.currentTarget.value.trim())} />
      </label>
      <span class="segmented" role="group" aria-label="Types">
        {types.map((it) => <button type="button" aria-pressed={type === it} onClick={() => setQuery("type", it)}>{it || "all"}</button>)}
      </span>
      <button type="button" class="button" aria-pressed={of.isPaused.value} onClick={of.toggle}>
        <Icon name={of.isPaused.value ? "play" : "pause"} />
        {of.isPaused.value ? (waiting > 0 ? `Go on, ${waiting} ${waiting === 1 ? "waits" : "wait"}` : "Go on") : "Pause"}
      </button>
    </div>
  );
}

/** Nodes other than that of the page, with the way to their consoles. */
function Others() {
  const peers = boot.value?.peers ?? [];
  const linked = peers.filter((peer) => peer.admin);
  const words = ofNodeWords(boot.value?.node ?? "this node", peers.map((peer) => peer.node).sort());
  if (!words) return null;
  return (
    <p class="note quiet others">
      {words} {linked.map((peer) => <><a href={`${peer.admin}/events`} target="_blank" rel="noreferrer">Events of {peer.node}</a> </>)}
    </p>
  );
}

function OfNode() {
  useEffect(followEvents, []);
  const [type, user] = [query.value.get("type") ?? "", query.value.get("user") ?? ""];
  const shown = ofNode.list.value.filter((it) => (!type || it.type === `tidegate.${type}`) && (!user || concerns(it, user))).slice(0, DRAWN);
  const node = boot.value?.node ?? "this node";
  return (
    <>
      {failure.value && <Failed error={failure.value} again={retryEvents} />}
      {missed.value && <p class="note part">{node} kept fewer events than this page missed: some are not in this list.</p>}
      <Filter of={ofNode} types={TYPES} label="A user" />
      <Others />
      <Rows shown={shown} />
      {isRead.value && shown.length === 0 && <Empty command={`tidegate tail --user ${isId(user) ? user : "bob"}`}>No event {type || user ? "matches" : "yet"}. A person who connects makes one:</Empty>}
    </>
  );
}

function OfAll() {
  const [type, text] = [query.value.get("type") ?? "", query.value.get("user") ?? ""];
  useEffect(() => followFeed(type), [type]);
  const shown = ofAll.list.value.filter((it) => !text || isAbout(it, text)).slice(0, DRAWN);
  return (
    <>
      {feedFailure.value && <Failed error={feedFailure.value} />}
      {hasGap.value && <p class="note part">The feed no longer has some of these events: they are not in this list.</p>}
      <Filter of={ofAll} types={Object.keys(FEED_TYPES)} label="A user or a conversation" />
      <Rows shown={shown} />
      {!feedFailure.value && shown.length === 0 && (isFollowed.value
        ? <Empty command="tidegate send --user alice --to bob hello">What is accepted from now on, on any node, appears here{text || type ? " if it matches" : ""}. This sends a message:</Empty>
        : <p class="note quiet">Connecting to the feed.</p>)}
    </>
  );
}

/** The events of this node as far back as it keeps them, or the feed of all nodes from now on; the newest first. */
export default function Events() {
  const isFeed = query.value.get("of") === "all";
  const node = boot.value?.node ?? "this node";
  return (
    <>
      <Header title="Events"><span class="quiet lead-note">{isFeed ? "messages and changes of all nodes, from now on" : `of ${node}, as far back as it keeps them`}</span></Header>
      <div class="view">{isFeed ? <OfAll /> : <OfNode />}</div>
    </>
  );
}
