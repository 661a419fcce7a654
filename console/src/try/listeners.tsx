import { grouped } from "../words/numbers.ts";
import type { Audience, Hearing } from "./audience.ts";
import type { Stage } from "./stage.ts";

const STATES: Readonly<Record<Hearing, string>> = { away: "not in the room", waits: "does not have the newest message", has: "has the newest message" };

/** The listeners of a live room, a dot each: it is full while its owner has the newest message. */
export function Listeners({ stage, audience }: { readonly stage: Stage; readonly audience: Audience }) {
  void stage.version.value;
  const newest = stage.newest;
  const all = audience.people.map((person) => ({ person, hearing: audience.hearing(person, newest) }));
  const counted = (hearing: Hearing) => all.filter((it) => it.hearing === hearing).length;
  const away = counted("away");
  return (
    <section class="listeners" aria-label="Listeners">
      <div class="row listeners-head">
        <b class="grow">Listeners</b>
        <span class="small soft num" data-heard={counted("has")}>
          {away > 0 ? `${all.length - away} of ${all.length} in the room` : newest === "" ? `${all.length} in the room` : `newest: ${counted("has")} of ${all.length}`}
        </span>
      </div>
      <ul class="seats">
        {all.map(({ person, hearing }) => (
          <li key={person.name} class={`seat ${hearing}${newest === "" ? " calm" : ""}`} title={`${person.name}${person.node ? ` on ${person.node}` : ""}: ${hearing === "has" && newest === "" ? "in the room" : STATES[hearing]}`}>
            <i aria-hidden="true" />
            {person.name}
            <span class="sr">{hearing === "has" && newest === "" ? "in the room" : STATES[hearing]}</span>
          </li>
        ))}
      </ul>
      <p class="small quiet">Lossy: dropped frames are counted and announced. {audience.dropped.value === 0 ? "None so far." : `${grouped(audience.dropped.value)} so far.`}</p>
    </section>
  );
}
