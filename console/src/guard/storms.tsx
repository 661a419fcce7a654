import { useState } from "preact/hooks";
import { HEIGHT, places, strip } from "../charts/strip.ts";
import { stormPath, type Profile, type Storm, type StormList } from "../live/guard.ts";
import { useReading } from "../parts/reading.ts";
import { actionWords, ordinal, stormsNote, windowWords } from "../words/guard.ts";
import { grouped } from "../words/numbers.ts";
import { time } from "../words/river.ts";

/** Storms that have a row at first, and those that *Show more* adds: each is read on its own for its profile. */
const SHOWN = 8;
/** Time between two reads of a profile. */
const AGAIN_MS = 2000;

/** Messages of a storm by second, with a flag where it began. */
export function Strip({ profile, storm }: { readonly profile: Profile; readonly storm: Storm }) {
  const it = strip(profile, storm.sinceMs ?? 0);
  const part = profile.partMs === 1000 ? "second" : windowWords(profile.partMs);
  const words = `Messages in each ${part} from ${time(Math.floor(it.fromMs / 1000))} to ${time(Math.floor(it.toMs / 1000))}, at most ${grouped(it.most)}`;
  return (
    <div class="strip" role="img" aria-label={words} title={words}>
      <svg viewBox={`0 0 ${places(profile.counts.length)} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
        <path d={it.before} />
        <path class="during" d={it.during} />
      </svg>
      {it.start !== undefined && <span class={it.start > 0.7 ? "flag before" : "flag"} style={{ left: `${it.start * 100}%` }}>the {ordinal(storm.threshold + 1)}</span>}
    </div>
  );
}

function Row({ storm }: { readonly storm: Storm }) {
  const { value } = useReading<Storm>(stormPath(storm.conversation), AGAIN_MS);
  const { peak } = storm;
  return (
    <li class="storm">
      <div class="storm-name">
        <b class="cut"><bdi>{storm.conversation}</bdi></b> <span class={storm.state === "storm" ? "chip amber" : "chip"}>{storm.state}</span>
        {storm.sinceMs !== undefined && <span class="small quiet" title={new Date(storm.sinceMs).toLocaleString("en-GB")}>since {time(Math.floor(storm.sinceMs / 1000))}</span>}
      </div>
      <div class="storm-strip">
        {value?.profile ? <Strip profile={value.profile} storm={storm} /> : <div class="strip" />}
        <p class="small soft">{actionWords(storm)}</p>
      </div>
      <p class="storm-count num"><span class={storm.count > storm.threshold ? "" : "soft"}><b>{grouped(storm.count)}</b> of {grouped(storm.threshold)} in {windowWords(storm.windowMs)}</span>{peak !== undefined && <span class="small quiet">at its peak {grouped(peak)}</span>}</p>
    </li>
  );
}

/** Groups that get more messages than their threshold, on all nodes. */
export function Storms({ it }: { readonly it: StormList | undefined }) {
  const [shown, setShown] = useState(SHOWN);
  const rows = it?.storms.slice(0, shown) ?? [];
  const note = it ? stormsNote(it, rows.length) : "";
  return (
    <section class="pad" aria-label="Message storms">
      <h2>Message storms <span class="quiet small">groups with more messages than their threshold, by second</span></h2>
      {note && <p class="small amber">{note}</p>}
      {!it && <p class="quiet">–</p>}
      {it && it.storms.length === 0 && it.silent.length === 0 && <p class="quiet">No group has more messages than its threshold.</p>}
      <ol>{rows.map((storm) => <Row key={storm.id ?? storm.conversation} storm={storm} />)}</ol>
      {it && it.storms.length > rows.length && <button type="button" class="link" onClick={() => setShown(shown + SHOWN)}>Show more</button>}
    </section>
  );
}
