import { fields, rows } from "../live/stats.ts";
import { loadWords, openBreakers } from "../words/breakers.ts";
import { joined } from "../words/numbers.ts";

/** Services that nodes don't call for a moment, and nodes with too much load. */
export function Breakers() {
  const open = openBreakers(fields.value, rows.value);
  const load = loadWords(fields.value, rows.value);
  return (
    <section class="pad lists" aria-label="Breakers">
      <h2>Breakers <span class="quiet small">services whose calls fail at once, because recent ones failed</span></h2>
      {open === undefined && <p class="quiet">–</p>}
      {open?.length === 0 && <p class="quiet">No breaker is open.</p>}
      {load && <p class="small amber">{load}</p>}
      <ul>
        {open?.map((it) => (
          <li key={it.name} class="entry">
            <p class="entry-line"><span class="cut"><b>{it.name}</b></span> <span class="chip amber">open</span></p>
            <p class="small soft">On {joined(it.nodes)}: {it.effect}.</p>
          </li>
        ))}
      </ul>
    </section>
  );
}
