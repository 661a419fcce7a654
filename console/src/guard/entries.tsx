import { useEffect, useState } from "preact/hooks";
import { isSilent } from "../app/silence.ts";
import { isFull } from "../live/boot.ts";
import { entryPage, type EntryPage, type GuardEntry, type ListName } from "../live/guard.ts";
import { hasRoute } from "../live/routes.ts";
import { Failed } from "../parts/failed.tsx";
import { useReading, type Reading } from "../parts/reading.ts";
import { LISTS, endWords, subjectParts } from "../words/guard.ts";
import { acting } from "./acting.tsx";

/** Entries that are read at first, and at most. */
const READ = 20;
const READ_MAX = 1000;
/** Time between two reads. */
const AGAIN_MS = 5000;

/** A time as briefly as it is clear: without its day if that is today. */
export function moment(ms: number): string {
  const at = new Date(ms);
  const clock = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (at.toDateString() === new Date().toDateString()) return clock;
  const isNear = Math.abs(ms - Date.now()) < 300 * 86_400_000;
  return `${at.toLocaleDateString("en-GB", isNear ? { day: "numeric", month: "short" } : { day: "numeric", month: "short", year: "numeric" })}, ${clock}`;
}

/** Reads a list if the node has it; `changes` rises with each change of a list. */
export function useEntries(name: ListName, changes: number): { readonly page: EntryPage | undefined; readonly more: () => void; readonly reading: Reading<Record<string, unknown>> } {
  const [limit, setLimit] = useState(READ);
  const reading = useReading<Record<string, unknown>>(hasRoute(`GET /v1/${name}`) ? `/v1/${name}?limit=${limit}` : "", AGAIN_MS);
  const [last, setLast] = useState<EntryPage | undefined>(undefined);
  const page = entryPage(name, reading.value);
  useEffect(() => {
    if (page) setLast(page);
  }, [reading.value]);
  useEffect(() => {
    if (changes > 0) reading.again();
  }, [changes]);
  // The rows stay while more of them are read.
  return { page: page ?? last, more: () => setLimit(Math.min(READ_MAX, limit * 5)), reading };
}

function Row({ name, it, lift }: { readonly name: ListName; readonly it: GuardEntry; readonly lift: string }) {
  const [kind, subject] = subjectParts(it.subject);
  const words = LISTS[name].lift;
  const mayAct = isFull() && hasRoute(lift);
  const user = kind === "network" ? "" : (subject.split("/")[0] ?? "");
  return (
    <li class="entry">
      <p class="entry-line">
        <span class="cut">{user ? <a href={`/people?user=${encodeURIComponent(user)}`}><bdi>{subject}</bdi></a> : <b><bdi>{subject}</bdi></b>} {name !== "allow" && <span class="small quiet">{kind}</span>}</span>
        <span class="small soft num">{endWords(it, moment)}</span>
      </p>
      <p class="entry-line">
        <span class="small soft entry-reason"><bdi>{it.reason}</bdi><span class="quiet entry-by" title={new Date(it.sinceMs).toLocaleString("en-GB")}>since {moment(it.sinceMs)}, by <bdi>{it.by}</bdi></span></span>
        {mayAct && <button type="button" class="link" disabled={isSilent.value} aria-label={`${words} ${it.subject}`} onClick={() => (acting.value = { list: name, subject: it.subject, isLift: true })}>{words}</button>}
      </p>
    </li>
  );
}

/** One of the lists of subjects, with its actions. */
export function Entries({ name, list }: { readonly name: ListName; readonly list: ReturnType<typeof useEntries> }) {
  const { page, more, reading } = list;
  const words = LISTS[name];
  const [add, lift] = name === "allow" ? ["PUT /v1/allow/{network}", "DELETE /v1/allow/{network}"] : [`POST /v1/${name}`, `DELETE /v1/${name}/{subject}`];
  const mayAdd = isFull() && hasRoute(add);
  return (
    <section class="pad lists" aria-label={words.title}>
      <div class="row">
        <h2 class="grow">{words.title} <span class="quiet small">{words.note}</span></h2>
        {mayAdd && <button type="button" class="button" disabled={isSilent.value} onClick={() => (acting.value = { list: name, subject: "", isLift: false })}>{words.add}</button>}
      </div>
      {reading.error && <Failed error={reading.error} again={reading.again} />}
      {!page && !reading.error && <p class="quiet">–</p>}
      {page?.entries.length === 0 && <p class="quiet">{words.empty}</p>}
      <ul>{page?.entries.map((it) => <Row key={it.subject} name={name} it={it} lift={lift} />)}</ul>
      {page?.hasMore && page.entries.length < READ_MAX && <button type="button" class="link" onClick={more}>Show more</button>}
      {page?.hasMore && page.entries.length >= READ_MAX && <p class="small quiet">These are the first {READ_MAX} in the order of their names.</p>}
    </section>
  );
}
