import { userPath } from "../live/connections.ts";
import { groupAddress } from "../live/groups.ts";
import { clock, seconds } from "../live/stats.ts";
import { Failed } from "../parts/failed.tsx";
import { useReading } from "../parts/reading.ts";
import { ago } from "../words/connections.ts";
import { grouped } from "../words/numbers.ts";

interface State {
  readonly conversation: string;
  readonly peer?: string;
  readonly maxSeq: number;
  readonly readSeq: number;
  /** Last entry that the user can read, if the application has bounded it. */
  readonly boundSeq?: number;
  readonly unread: number;
  readonly member: boolean;
  readonly time: number;
}

interface States {
  readonly conversations: readonly State[];
  readonly next?: string;
  readonly incomplete?: boolean;
}

/** Conversations that are shown; a node reads few such lists at a time. */
const SHOWN = 20;

function Row({ it }: { readonly it: State }) {
  const since = ago(clock() - it.time);
  const to = it.peer ? `/people?user=${encodeURIComponent(it.peer)}` : groupAddress(it.conversation);
  return (
    <tr>
      <td class="who">
        {to ? <a href={to}><bdi>{it.conversation}</bdi></a> : <bdi>{it.conversation}</bdi>}
        {!it.member && <span class="quiet small"> left</span>}
        {it.boundSeq !== undefined && <span class="quiet small"> bounded at {grouped(it.boundSeq)}</span>}
        <span class="narrow small quiet">{since} ago, read {grouped(it.readSeq)} of {grouped(it.maxSeq)}</span>
      </td>
      <td class="end">{it.unread > 0 ? <b>{grouped(it.unread)}</b> : "0"}</td>
      <td class="wide end">{grouped(it.readSeq)}</td>
      <td class="wide end">{grouped(it.maxSeq)}</td>
      <td class="wide num" title={new Date(it.time).toLocaleString("en-GB")}>{since} ago</td>
    </tr>
  );
}

/** Conversations of a user by their newest entry, with what is unread; nothing of what was written. */
export function Conversations({ user }: { readonly user: string }) {
  void seconds.value;
  // Once: the answer has last entries where the key may read them, so each read is a line of the audit log.
  const list = useReading<States>(`${userPath(user, "conversations")}?order=recent&limit=${SHOWN}`, 0);
  const total = useReading<{ readonly unread: number; readonly incomplete?: boolean }>(userPath(user, "unread"), 10_000);
  const all = list.value?.conversations;
  return (
    <section class="pad">
      <h2>Conversations {total.value && <span class="quiet small">{grouped(total.value.unread)}{total.value.incomplete ? " or more" : ""} unread in all</span>} <button type="button" class="link small" onClick={list.again}>Read again</button></h2>
      {list.error && <Failed error={list.error} again={list.again} />}
      {all?.length === 0 && <p class="quiet">None is stored.</p>}
      {all && all.length > 0 && (
        <table class="connections">
          <thead>
            <tr><th>Conversation</th><th class="end">Unread</th><th class="wide end">Read up to</th><th class="wide end">Last seq</th><th class="wide">Last entry</th></tr>
          </thead>
          <tbody>{all.map((it) => <Row key={it.conversation} it={it} />)}</tbody>
        </table>
      )}
      {list.value?.next && <p class="quiet small">{list.value.incomplete ? "Some" : "The newest"} {SHOWN}; there are more.</p>}
    </section>
  );
}
