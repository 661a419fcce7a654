import { hasRoute } from "../live/routes.ts";
import type { KnownRule, LimitList, LimitRule, RuleList } from "../live/guard.ts";
import { Empty } from "../parts/empty.tsx";
import { Failed } from "../parts/failed.tsx";
import { useReading } from "../parts/reading.ts";
import { aboveWords, idleRuleWords, refusalRate, windowWords } from "../words/guard.ts";
import { grouped } from "../words/numbers.ts";

/** Time between two reads of what rules count, and of the rules themselves. */
const AGAIN_MS = 2000;
const RULES_AGAIN_MS = 10_000;

function Row({ it, known }: { readonly it: LimitRule; readonly known: KnownRule | undefined }) {
  const { total } = it;
  const calls = known?.rule?.calls.join(", ") ?? "";
  const above = aboveWords(it, known);
  const isRefusing = total.refusedLastMinute > 0;
  const limit = `${grouped(it.limit)} in ${windowWords(it.windowMs)}`;
  const refused = it.dryRun ? total.dryRefused : total.refused;
  return (
    <tr>
      <td class="who"><span class="mono"><bdi>{it.id}</bdi></span><span class="narrow small quiet">{[it.level, calls, limit, above, `${grouped(total.admitted)} admitted`].filter(Boolean).join(", ")}</span></td>
      <td class="wide">{it.level}</td>
      <td class="wide widest"><span class="calls cut" title={calls}>{calls}</span></td>
      <td class="wide num">{limit}</td>
      <td class="wide end">{grouped(total.admitted)}</td>
      <td class="end">{it.dryRun ? <span class="quiet" title="It would have refused them.">({grouped(refused)})</span> : <>{grouped(refused)}{refused > 0 && <span class="quiet rate"> {refusalRate(total)}</span>}</>}</td>
      <td class={isRefusing ? "end amber" : "end"}>{grouped(total.refusedLastMinute)}</td>
      <td class="wide end">{grouped(total.delayed)}</td>
      <td class="wide wider">{above}</td>
    </tr>
  );
}

/** The rules of the node of this page: what they admitted and refused, and whom they refused most. */
export function Rules({ node }: { readonly node: string }) {
  const { value, error, again } = useReading<LimitList>("/v1/limits", AGAIN_MS);
  const known = useReading<RuleList>(hasRoute("GET /v1/rules") ? "/v1/rules" : "", RULES_AGAIN_MS).value;
  const inForce = new Map(known?.rules.filter((it) => it.state === "in force").map((it) => [it.id, it]));
  const idle = known?.rules.filter((it) => it.state !== "in force") ?? [];
  const rows = [...(value?.rules ?? [])].sort((a, b) => b.total.refusedLastMinute - a.total.refusedLastMinute);
  const busiest = value?.busiest.filter((it) => it.refusedLastMinute > 0) ?? [];
  return (
    <section class="pad rules" aria-label="Limits in use">
      <h2>Limits in use <span class="quiet small">what the rules of {node} have admitted and refused, those that refuse most first</span></h2>
      {error && <Failed error={error} again={again} />}
      {!value && !error && <p class="quiet">–</p>}
      {value && rows.length === 0 && <Empty>No rule is in force on {value.node}. The settings <code>limits.*</code> hold in any case; rules are written to the file <code>limits.rules_file</code>{hasRoute("PUT /v1/rules/{rule}") && <>, or sent to <code>PUT /v1/rules/…</code></>}.</Empty>}
      {rows.length > 0 && (
        <div class="scroll-x">
          <table>
            <thead><tr><th>Rule</th><th class="wide">Level</th><th class="wide widest">Calls</th><th class="wide">Limit</th><th class="wide end">Admitted</th><th class="end">Refused</th><th class="end">In 1 min</th><th class="wide end">Waited</th><th class="wide wider">Above it</th></tr></thead>
            <tbody>{rows.map((it) => <Row key={it.id} it={it} known={inForce.get(it.id)} />)}</tbody>
          </table>
        </div>
      )}
      {busiest.length > 0 && (
        <>
          <h3>Refused most in the last minute</h3>
          <ol class="busiest">
            {busiest.map((it) => (
              <li key={`${it.rule} ${it.key}`}>
                {it.key.startsWith("content:") ? <span class="cut"><bdi>{it.key}</bdi></span> : <a class="cut" href={`/guard?key=${encodeURIComponent(it.key)}`}><bdi>{it.key}</bdi></a>}
                <span class="quiet small">by {it.rule}</span>
                <span class="num amber">{grouped(it.refusedLastMinute)}</span>
              </li>
            ))}
          </ol>
        </>
      )}
      {known?.overlaps.map((it) => <p class="small soft">{it}</p>)}
      {idle.map((it) => <p class="small amber">{idleRuleWords(it)}</p>)}
    </section>
  );
}
