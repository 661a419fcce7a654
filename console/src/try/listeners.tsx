import { lossWords } from "../words/rooms.ts";
import type { Audience, Receipt } from "./audience.ts";
import type { Stage } from "./stage.ts";

const STATES: Readonly<Record<Receipt, string>> = { away: "not in the room", waits: "does not have the newest message", has: "has the newest message" };

/** The listeners of a live room, a dot each: it is full while its owner has the newest message. */
export function Listeners({ stage, audience }: { readonly stage: Stage; readonly audience: Audience }) {
  void stage.version.value;
  const newest = stage.newest;
  const all = audience.people.map((person) => ({ person, receipt: audience.receipt(person, newest) }));
  const counted = (receipt: Receipt) => all.filter((it) => it.receipt === receipt).length;
  const away = counted("away");
  return (
    <section class="listeners" aria-label="Listeners">
      <div class="row listeners-head">
        <b class="grow">Listeners</b>
        <span class="small soft num" data-received={counted("has")}>
          {away > 0 ? `${all.length - away} of ${all.length} in the room` : newest === "" ? `${all.length} in the room` : `newest: ${counted("has")} of ${all.length}`}
        </span>
      </div>
      <ul class="seats">
        {all.map(({ person, receipt }) => (
          <li key={person.name} class={`seat ${receipt}${newest === "" ? " calm" : ""}`} title={`${person.name}${person.node ? ` on ${person.node}` : ""}: ${receipt === "has" && newest === "" ? "in the room" : STATES[receipt]}`}>
            <i aria-hidden="true" />
            {person.name}
            <span class="sr">{receipt === "has" && newest === "" ? "in the room" : STATES[receipt]}</span>
          </li>
        ))}
      </ul>
      <p class="small quiet">Lossy: dropped frames are counted and announced. {lossWords(audience.losses.value)}</p>
    </section>
  );
}
