import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { viewKeys } from "../app/keys.ts";
import { query, setQuery } from "../app/router.ts";
import { Header } from "../app/shell.tsx";
import { boot } from "../live/boot.ts";
import { concerns, failure, followEvents, heldBack, isRead, list, missed, pausedEvents, retryEvents, toggleEvents } from "../live/cloudevents.ts";
import { CopyButton } from "../parts/copy.tsx";
import { Empty } from "../parts/empty.tsx";
import { EventLine } from "../parts/eventline.tsx";
import { Failed } from "../parts/failed.tsx";
import { Icon } from "../parts/icon.tsx";

const TYPES = ["online", "offline", "read", "order-blocked", "audit"];
const ID = /^[A-Za-z0-9_.-]{1,64}$/;
const open = signal("");

/** The events of this node, newest first. */
export default function Events() {
  useEffect(followEvents, []);
  useEffect(() => {
    viewKeys.set("p", toggleEvents);
    return () => viewKeys.delete("p");
  }, []);
  const type = query.value.get("type") ?? "";
  const user = query.value.get("user") ?? "";
  const shown = list.value.filter((it) => (!type || it.type === `tidegate.${type}`) && (!user || concerns(it, user))).slice(0, 400);
  const node = boot.value?.node ?? "this node";
  return (
    <>
      <Header title="Events"><span class="quiet lead-note">of {node}, as far back as it keeps them</span></Header>
      <div class="view">
        {failure.value && <Failed error={failure.value} again={retryEvents} />}
        {missed.value && <p class="note part">{node} kept fewer events than this page missed: some are not in this list.</p>}
        <div class="filter">
          <label class="field">
            <Icon name="search" />
            <input data-filter aria-label="A user" placeholder="A user" value={user} onInput={(event) => setQuery("user", event.currentTarget.value.trim())} />
          </label>
          <span class="segmented">
            {["", ...TYPES].map((it) => <button type="button" aria-pressed={type === it} onClick={() => setQuery("type", it)}>{it || "all"}</button>)}
          </span>
          <button type="button" class="button" aria-pressed={pausedEvents.value} onClick={toggleEvents}>
            <Icon name={pausedEvents.value ? "play" : "pause"} />
            {pausedEvents.value ? (heldBack.value > 0 ? `Go on, ${heldBack.value} wait` : "Go on") : "Pause"}
          </button>
        </div>
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
        {isRead.value && shown.length === 0 && <Empty command={`tidegate tail --user ${ID.test(user) ? user : "bob"}`}>No event {type || user ? "matches" : "yet"}. A person who connects makes one:</Empty>}
      </div>
    </>
  );
}
