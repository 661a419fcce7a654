import { useEffect, useState } from "preact/hooks";
import { query, setQuery } from "../app/router.ts";
import { isSilent } from "../app/silence.ts";
import { isFull } from "../live/boot.ts";
import { LEVELS, banSubject, limitKey, stormPath, type LimitState, type LimitsOf, type Storm, type SubjectView } from "../live/guard.ts";
import { hasRoute } from "../live/routes.ts";
import { Failed } from "../parts/failed.tsx";
import { LimitBar } from "../parts/limitbar.tsx";
import { useReading } from "../parts/reading.ts";
import { groupWords, refusedWords, stateWords, subjectState, totalWords, windowWords } from "../words/guard.ts";
import { grouped } from "../words/numbers.ts";
import { acting } from "./acting.tsx";
import { moment } from "./entries.tsx";

/** Time between two reads. */
const AGAIN_MS = 1000;

function State({ it }: { readonly it: LimitState }) {
  return (
    <li class="state">
      <p class="row"><b class="cut mono"><bdi>{it.id}</bdi></b> <span class="soft num">{grouped(it.limit)} in {windowWords(it.windowMs)}</span> {it.dryRun && <span class="chip">dry run</span>}</p>
      {!it.excepted && <LimitBar used={it.used} limit={it.limit} isFull={it.retryAfterMs > 0} label={`${it.id}: ${grouped(it.used)} of ${grouped(it.limit)} used`} />}
      <p>{stateWords(it)} {refusedWords(it)}</p>
      {it.why && <p class="soft num">The limit now: {it.why}</p>}
      <p class="small quiet">{totalWords(it.total, it.dryRun)}</p>
    </li>
  );
}

/** Whether a subject of rules is banned, with the way to ban it. */
function BanState({ subject, changes }: { readonly subject: string; readonly changes: number }) {
  const { value, error, again } = useReading<SubjectView>(`/v1/subjects/${encodeURIComponent(subject)}`, AGAIN_MS * 5);
  useEffect(() => {
    if (changes > 0) again();
  }, [changes]);
  const mayBan = isFull() && hasRoute("POST /v1/bans") && value?.exempt === null && !value.banned;
  return (
    <>
      {error && <Failed error={error} again={again} />}
      {value && <p class="state-ban soft">{subjectState(value, moment)} {mayBan && <button type="button" class="link" disabled={isSilent.value} onClick={() => (acting.value = { list: "bans", subject, isLift: false })}>Ban it</button>}</p>}
    </>
  );
}

/** How many messages a group has. */
function GroupState({ conversation }: { readonly conversation: string }) {
  const { value, error, again } = useReading<Storm>(stormPath(conversation), AGAIN_MS * 2);
  return (
    <>
      {error && <Failed error={error} again={again} />}
      {value && <p class="state-ban soft">{groupWords(value)}</p>}
    </>
  );
}

/** One subject of the rules: what counts for it now, why, and when its next request is admitted. */
export function Lookup({ node, changes }: { readonly node: string; readonly changes: number }) {
  const key = query.value.get("key") ?? "";
  const [level, setLevel] = useState("user");
  const [subject, setSubject] = useState("");
  // The address decides: links to subjects change it, too.
  useEffect(() => {
    const [name = "", rest] = [key.split(":")[0], key.slice(key.indexOf(":") + 1)];
    if (LEVELS.some(([known]) => known === name)) {
      setLevel(name);
      setSubject(key.includes(":") ? rest : "");
    }
  }, [key]);
  const { value, error, again } = useReading<LimitsOf>(key ? `/v1/limits/${encodeURIComponent(key)}` : "", AGAIN_MS);
  const example = LEVELS.find(([name]) => name === level)?.[1] ?? "";
  const asked = limitKey(level, subject.trim());
  return (
    <section class="pad lookup" aria-label="One subject">
      <h2>One subject <span class="quiet small">what its rules count on {node} now</span></h2>
      <form class="row" onSubmit={(event) => { event.preventDefault(); setQuery("key", asked, true); }}>
        <label class="field pick">
          <span class="sr">Level</span>
          <select value={level} onChange={(event) => setLevel(event.currentTarget.value)}>{LEVELS.map(([name]) => <option value={name}>{name}</option>)}</select>
        </label>
        {level !== "node" && <label class="field grow"><span class="sr">Subject</span><input autocomplete="off" placeholder={`such as ${example}`} value={subject} onInput={(event) => setSubject(event.currentTarget.value)} /></label>}
        <button type="submit" class="button" disabled={!asked}>Look up</button>
      </form>
      {error && <Failed error={error} again={again} />}
      {value && hasRoute("GET /v1/subjects/{subject}") && banSubject(key) && <BanState key={key} subject={banSubject(key)} changes={changes} />}
      {value && hasRoute("GET /v1/storms/{group}") && key.startsWith("conversation:g:") && <GroupState key={key} conversation={key.slice("conversation:".length)} />}
      {value && value.rules.length > 0 && <ul aria-label={value.key}>{value.rules.map((it) => <State key={it.id} it={it} />)}</ul>}
      {value && value.rules.length === 0 && <p class="quiet">No rule of {value.node} has the level {value.key.split(":")[0]}.</p>}
    </section>
  );
}
