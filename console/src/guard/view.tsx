import { useEffect, useState } from "preact/hooks";
import { Header } from "../app/shell.tsx";
import { allows, boot } from "../live/boot.ts";
import type { StormList } from "../live/guard.ts";
import { hasRoute, readRoutes, routesFailure } from "../live/routes.ts";
import { series } from "../live/stats.ts";
import { Failed } from "../parts/failed.tsx";
import { Outcome } from "../parts/outcome.tsx";
import { useReading } from "../parts/reading.ts";
import { WhatToDo } from "../parts/whattodo.tsx";
import { guardVerdict } from "../words/guard.ts";
import { grouped } from "../words/numbers.ts";
import { time } from "../words/river.ts";
import { ActingDialog, outcome } from "./acting.tsx";
import { Breakers } from "./breakers.tsx";
import { Chains } from "./chains.tsx";
import { Entries, useEntries } from "./entries.tsx";
import { Lookup } from "./lookup.tsx";
import { Rules } from "./rules.tsx";
import { Scores } from "./scores.tsx";
import { Storms } from "./storms.tsx";

/** Time between two reads. */
const AGAIN_MS = 2000;

/** Sum of a counter over the last seconds, on all nodes; undefined while no figure is known. */
function counted(field: string, span: number): number | undefined {
  const known = series(field, span).filter((it) => it !== undefined);
  return allows("stats") && known.length > 0 ? known.reduce((sum, it) => sum + it, 0) : undefined;
}

function Figure({ label, value, isAtLeast = false }: { readonly label: string; readonly value: number | undefined; readonly isAtLeast?: boolean }) {
  return (
    <div>
      <dt class="small quiet">{label}</dt>
      <dd class="num">{value === undefined ? "–" : grouped(value)}{isAtLeast && " or more"}</dd>
    </div>
  );
}

/** What the guard does now: storms, limits, bans and blocked chains. A part whose route the node does not have is absent. */
export default function Guard() {
  useEffect(readRoutes, []);
  const node = boot.value?.node ?? "";
  const storms = useReading<StormList>(hasRoute("GET /v1/storms") ? "/v1/storms" : "", AGAIN_MS);
  const [changes, setChanges] = useState(0);
  const [bans, suspensions, allow] = [useEntries("bans", changes), useEntries("suspensions", changes), useEntries("allow", changes)];
  const refused = counted("rateLimited", 60);
  const said = guardVerdict({ storms: storms.value, refused, time: (ms) => time(Math.floor(ms / 1000)) });
  return (
    <>
      <Header title="Guard" />
      <div class="view guard">
        {routesFailure.value && <Failed error={routesFailure.value} />}
        {storms.error && <Failed error={storms.error} again={storms.again} />}
        <p class="sr" role="status">{said.steady}</p>
        <Outcome said={outcome} />
        <div class="guard-top">
          <section class="verdict" aria-label="What the guard does">
            <i class={`dot ${said.tone}`} />
            <div>
              <p class="first">{said.sentence}</p>
              <p class="soft">{said.more}</p>
              {said.runbook && <WhatToDo it={said.runbook} />}
            </div>
          </section>
          <dl class="guard-figures">
            {hasRoute("GET /v1/storms") && <Figure label="Storms" value={storms.value?.total} />}
            {allows("stats") && <Figure label="Refused, 1 min" value={refused} />}
            {allows("stats") && <Figure label="Chains blocked, 15 min" value={counted("orderBlocked", 900)} />}
            {hasRoute("GET /v1/bans") && <Figure label="Bans" value={bans.page?.entries.length} isAtLeast={bans.page?.hasMore ?? false} />}
          </dl>
        </div>
        <div class="guard-parts">
          <div>
            {hasRoute("GET /v1/storms") && <Storms it={storms.value} />}
            {hasRoute("GET /v1/limits") && <Rules node={node} />}
          </div>
          <div>
            {hasRoute("GET /v1/limits/{key}") && <Lookup node={node} changes={changes} />}
            {hasRoute("GET /v1/bans") && <Entries name="bans" list={bans} />}
            {hasRoute("GET /v1/suspensions") && <Entries name="suspensions" list={suspensions} />}
            {hasRoute("GET /v1/evidence") && <Scores />}
            {hasRoute("GET /v1/allow") && <Entries name="allow" list={allow} />}
            <Chains node={node} />
            {allows("stats") && <Breakers />}
          </div>
        </div>
        {boot.value?.console === "read" && hasRoute("GET /v1/bans") && <p class="note quiet">This console is read-only, so that it bans nobody and lifts no ban. The setting is <code>admin.console</code>.</p>}
      </div>
      <ActingDialog after={() => setChanges((count) => count + 1)} />
    </>
  );
}
