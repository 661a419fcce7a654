import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { Header } from "../app/shell.tsx";
import { isSilent } from "../app/silence.ts";
import { ApiError } from "../live/api.ts";
import { isFull } from "../live/boot.ts";
import { hasRoute, readRoutes, routesFailure } from "../live/routes.ts";
import { asidePath, resend, setPaused, testWebhook, webhookPath, type AsidePage, type Webhook, type WebhookList } from "../live/webhooks.ts";
import { CopyButton } from "../parts/copy.tsx";
import { Empty } from "../parts/empty.tsx";
import { Failed } from "../parts/failed.tsx";
import { Menu } from "../parts/menu.tsx";
import { Outcome } from "../parts/outcome.tsx";
import { useReading } from "../parts/reading.ts";
import { curl } from "../words/nodes.ts";
import { grouped } from "../words/numbers.ts";
import { answerWords, lagWords, stateTone, troubleWords, webhooksVerdict } from "../words/webhooks.ts";

/** Time between two reads. */
const AGAIN_MS = 3000;

/** What was done last. */
const said = signal("");

/** Runs an action of an endpoint, and says what came of it. */
function useAction(after: () => void): readonly [ApiError | undefined, (run: () => Promise<string>) => void] {
  const [error, setError] = useState<ApiError | undefined>(undefined);
  const act = async (run: () => Promise<string>) => {
    try {
      said.value = await run();
      setError(undefined);
    } catch (failure) {
      if (failure instanceof ApiError) setError(failure);
    }
    after();
  };
  return [error, (run) => void act(run)];
}

/** Events of an endpoint that were set aside. */
function Aside({ id, mayAct, after }: { readonly id: string; readonly mayAct: boolean; readonly after: () => void }) {
  const { value, error, again } = useReading<AsidePage>(webhookPath(id, "/aside?limit=20"), AGAIN_MS);
  const [failure, act] = useAction(() => { again(); after(); });
  return (
    <div class="aside-events">
      <h3>Set aside, and no longer sent</h3>
      {(error ?? failure) && <Failed error={(error ?? failure) as ApiError} again={again} />}
      <ul>
        {value?.events.map((it) => (
          <li class="row" key={`${it.conversation}/${it.seq}`}>
            <span class="grow mono cut"><bdi>{it.conversation}</bdi>/{it.seq}</span>
            <span class="small quiet num">{grouped(it.tries)} tries</span>
            {mayAct && <button type="button" class="link" disabled={isSilent.value} aria-label={`Send ${it.conversation}/${it.seq} again`} onClick={() => act(async () => answerWords(id, `${it.conversation}/${it.seq}`, await resend(id, it)))}>Send again</button>}
            <CopyButton plain label="Copy as curl" text={() => curl("POST", location.origin, `${asidePath(id, it)}/resend`, {})} />
          </li>
        ))}
      </ul>
      {value && value.count > value.events.length && <p class="small quiet">{grouped(value.count - value.events.length)} more</p>}
    </div>
  );
}

function Row({ listed }: { readonly listed: Webhook }) {
  const { value, error, again } = useReading<Webhook>(webhookPath(listed.id), AGAIN_MS);
  const [failure, act] = useAction(again);
  const it = value ?? listed;
  const mayAct = isFull();
  const only = [...(it.conversations ?? []), ...(it.users ?? [])].join(", ");
  const trouble = troubleWords(it);
  const isStopped = it.state === "paused" || it.state === "disabled";
  const copies = [["Copy a test as curl", "/test"], ["Copy pausing as curl", "/pause"], ["Copy resuming as curl", "/resume"]] as const;
  return (
    <li class="webhook">
      <div class="row webhook-name">
        <b class="cut"><bdi>{it.id}</bdi></b>
        <span class={stateTone(it.state)}>{it.state}</span>
        {it.content && <span class="chip" title="Events have what people wrote">content</span>}
        <span class="grow" />
        {mayAct && hasRoute("POST /v1/webhooks/{webhook}/test") && <button type="button" class="button" disabled={isSilent.value} onClick={() => act(async () => answerWords(it.id, "a test", await testWebhook(it.id)))}>Test</button>}
        {mayAct && <button type="button" class="button" disabled={isSilent.value} onClick={() => act(async () => `${it.id} is ${(await setPaused(it.id, !isStopped)).state}.`)}>{isStopped ? "Resume" : "Pause"}</button>}
        <Menu label={`More for ${it.id}`}>{copies.map(([label, part]) => <CopyButton plain label={label} text={() => curl("POST", location.origin, webhookPath(it.id, part), {})} />)}</Menu>
      </div>
      {(error ?? failure) && <Failed error={(error ?? failure) as ApiError} again={again} />}
      <p class="small mono webhook-url"><bdi>{it.url}</bdi></p>
      <p class="small soft webhook-facts"><span class={it.behind ? "amber num" : "num"}>{lagWords(it)}</span><span>{it.types.join(", ")}</span>{only && <span>only {only}</span>}</p>
      {it.error && <p class="small amber">{it.error} <span class="quiet">seen by {it.node}</span></p>}
      {trouble && <p class="small amber">{trouble}</p>}
      {(it.asideCount ?? 0) > 0 && <Aside id={it.id} mayAct={mayAct} after={again} />}
    </li>
  );
}

/** Endpoints that get the events of conversations: how far behind each is, and what was set aside. */
export default function Webhooks() {
  useEffect(readRoutes, []);
  const { value, error, again } = useReading<WebhookList>(hasRoute("GET /v1/webhooks") ? "/v1/webhooks" : "", AGAIN_MS);
  const verdict = webhooksVerdict(value?.webhooks ?? []);
  return (
    <>
      <Header title="Webhooks" />
      <div class="view webhooks">
        {routesFailure.value && <Failed error={routesFailure.value} />}
        {error && <Failed error={error} again={again} />}
        <Outcome said={said} />
        {value && value.webhooks.length > 0 && (
          <section class="verdict" aria-label="Whether events arrive">
            <i class={`dot ${verdict.tone}`} />
            <div>
              <p class="first">{verdict.sentence}</p>
              <p class="soft">State and failures are those of {value.node}; what waits is counted over all nodes.</p>
            </div>
          </section>
        )}
        {value?.webhooks.length === 0 && <Empty command="tidegate webhook set crm https://crm.internal/tg --type 'tidegate.message.*'">No endpoint gets the events of conversations. One is created on the command line or by <code>PUT /v1/webhooks/…</code>; its secret is shown once.</Empty>}
        <ul class="webhook-list">{value?.webhooks.map((it) => <Row key={it.id} listed={it} />)}</ul>
      </div>
    </>
  );
}
