import { useEffect } from "preact/hooks";
import { followEvents, isRead, list } from "../live/cloudevents.ts";
import { EventLine } from "../parts/eventline.tsx";

/** Events that are shown. */
const SHOWN = 8;

/** The newest chains of the node of this page that waited too long for their next id. */
export function Chains({ node }: { readonly node: string }) {
  useEffect(followEvents, []);
  const blocked = list.value.filter((it) => it.type === "tidegate.order-blocked").slice(0, SHOWN);
  return (
    <section class="pad" aria-label="Blocked chains">
      <h2>Blocked chains <span class="quiet small">the newest on {node}</span></h2>
      <ol class="events">{blocked.map((it) => <li key={it.id} class="event-row"><EventLine it={it} /></li>)}</ol>
      {isRead.value && blocked.length === 0 && <p class="quiet">No chain of messages waited too long for its next id.</p>}
    </section>
  );
}
