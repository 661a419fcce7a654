import type { EvidenceList } from "../live/guard.ts";
import { hasRoute } from "../live/routes.ts";
import { Failed } from "../parts/failed.tsx";
import { useReading } from "../parts/reading.ts";
import { isFull } from "../live/boot.ts";
import { isSilent } from "../app/silence.ts";
import { evidenceWords, scoresNote, subjectParts } from "../words/guard.ts";
import { acting } from "./acting.tsx";

/** Subjects that have a row. */
const SHOWN = 8;
/** Time between two reads. */
const AGAIN_MS = 5000;

/** The networks and users with the highest scores on this node, and what they did. */
export function Scores() {
  const { value, error, again } = useReading<EvidenceList>("/v1/evidence", AGAIN_MS);
  const note = value ? scoresNote(value) : "";
  const rows = value?.scores.slice(0, SHOWN) ?? [];
  const mayBan = isFull() && hasRoute("POST /v1/bans");
  return (
    <section class="pad lists" aria-label="Evidence">
      <h2>Evidence <span class="quiet small">scores on {value?.node ?? "this node"}; at 100 the node bans by itself</span></h2>
      {error && <Failed error={error} again={again} />}
      {note && <p class="small quiet">{note}</p>}
      <ul>
        {rows.map((it) => {
          const [kind, name] = subjectParts(it.subject);
          return (
            <li key={it.subject} class="entry">
              <p class="entry-line">
                <span class="cut"><b><bdi>{name}</bdi></b> <span class="small quiet">{kind}</span></span>
                <span class={it.score >= 50 ? "num amber" : "num soft"}>{it.score}</span>
              </p>
              <p class="entry-line">
                <span class="small soft entry-reason">{evidenceWords(it.evidence)}</span>
                {mayBan && <button type="button" class="link" disabled={isSilent.value} aria-label={`Ban ${it.subject}`} onClick={() => (acting.value = { list: "bans", subject: it.subject, isLift: false })}>Ban</button>}
              </p>
            </li>
          );
        })}
      </ul>
    </section>
  );
}
