import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { query, setQuery } from "../app/router.ts";
import { Header } from "../app/shell.tsx";
import { isSilent } from "../app/silence.ts";
import { isNarrow } from "../app/width.ts";
import { ApiError, get, post } from "../live/api.ts";
import { curl } from "../live/asked.ts";
import { boot } from "../live/boot.ts";
import { groupAddress } from "../live/groups.ts";
import { seconds } from "../live/stats.ts";
import { Empty } from "../parts/empty.tsx";
import { Failed } from "../parts/failed.tsx";
import { CopyButton } from "../parts/copy.tsx";
import { Icon } from "../parts/icon.tsx";
import { Split } from "../parts/split.tsx";
import { fine, joined, short } from "../words/numbers.ts";
import { WaterfallView } from "./waterfall.tsx";
import { arrange, sends, timeSentence, type Sent, type Step } from "./trace.ts";

interface Answer {
  readonly node: string;
  readonly steps: readonly Step[];
  readonly silent: readonly string[];
  readonly watchedMs: number;
}

const found = signal<{ readonly key: string; readonly list: readonly Sent[]; readonly silent: readonly string[] } | undefined>(undefined);
const failure = signal<ApiError | undefined>(undefined);
/** Until when a user or message is followed, by whomever, by the clock of the page. */
const followed = signal(new Map<string, number>());

/** Clock time of a step with microseconds. */
export function clockOf(us: number): string {
  const date = new Date(us / 1000);
  return `${date.toLocaleTimeString("en-GB")}.${String(Math.floor(us / 1000) % 1000).padStart(3, "0")}`;
}

async function look(kind: "user" | "msg", id: string, follow: boolean): Promise<void> {
  try {
    const it = follow
      ? await post<Answer>("/v1/trace", { [kind]: id })
      : await get<Answer>(`/v1/trace?${kind}=${encodeURIComponent(id)}`);
    if (it.watchedMs > 0) followed.value = new Map(followed.value).set(`${kind} ${id}`, performance.now() + it.watchedMs);
    found.value = { key: `${kind} ${id}`, list: sends(it.steps).slice(0, 100), silent: it.silent };
    failure.value = undefined;
  } catch (error) {
    if (error instanceof ApiError) failure.value = error;
  }
}

function Row({ it, isOpen }: { readonly it: Sent; readonly isOpen: boolean }) {
  const result = it.refused ? <span class="refused">refused: {it.refused}</span> : it.isAgain ? <span class="again">sent again, one seq</span> : it.ackMs !== undefined ? fine(it.ackMs) : "no ack yet";
  return (
    <li>
      <button type="button" class={`message-row${isOpen ? " open" : ""}`} aria-current={isOpen} onClick={() => setQuery("trace", it.trace, isNarrow.value)}>
        <span class="row"><b class="cut grow">{it.conversation || "not received"}</b><span class="num">{result}</span></span>
        <span class="row quiet"><code class="grow">{short(it.msg)}</code><span class="num small">{clockOf(it.atUs)}</span></span>
      </button>
    </li>
  );
}

function Followed({ name }: { readonly name: string }) {
  void seconds.value;
  const [kind = "", id = ""] = name.split(" ");
  const left = Math.round(((followed.value.get(name) ?? 0) - performance.now()) / 1000);
  return (
    <p class="followed small soft">
      <Icon name="clock" />
      {left > 0 ? (
        <span>{kind === "user" ? `Everything ${id} sends or gets` : "This message"} is followed for {Math.floor(left / 60)}:{String(left % 60).padStart(2, "0")} more</span>
      ) : (
        <span>Only a part of the messages is recorded. <button type="button" class="link" disabled={isSilent.value} onClick={() => void look(kind === "user" ? "user" : "msg", id, true)}>Follow {kind === "user" ? id : "it"} for 10 minutes</button></span>
      )}
    </p>
  );
}

function Details({ it, silent }: { readonly it: Sent; readonly silent: readonly string[] }) {
  const falls = arrange(it);
  const figure = (label: string, ms: number | undefined) => (
    <div class="count">
      <span class="label">{label}</span>
      <span class="figure">{ms === undefined ? "–" : ms.toFixed(2)}{ms !== undefined && <small>ms</small>}</span>
    </div>
  );
  return (
    <div class="message">
      <div class="message-head">
        <h2 class="mono grow cut">{it.msg}</h2>
        {groupAddress(it.conversation) && <a class="button" href={groupAddress(it.conversation)}>Open group</a>}
        <CopyButton label="Copy as JSON" text={() => JSON.stringify(it.steps, null, 2)} />
        <CopyButton label="Copy as curl" text={() => curl(`/v1/trace?msg=${it.msg}`, location.origin)} />
      </div>
      <div class="row chips">
        <span class="chip">{it.conversation}</span>
        {it.seq !== undefined && <span class="chip">seq {it.seq}</span>}
        <span class="chip">from {it.user}, {it.device}</span>
        <span class="chip">{it.attempt === 0 ? "first attempt" : `attempt ${it.attempt + 1}`}</span>
        {falls.devices > 0 && <span class="chip">{falls.devices} {falls.devices === 1 ? "device" : "devices"}</span>}
        {it.refused && <span class="chip red">refused: {it.refused}</span>}
        {it.isAgain && <span class="chip amber">accepted before, same seq</span>}
      </div>
      <div class="message-figures">
        {figure("Ack after", falls.ackMs)}
        {figure(falls.devices > 1 ? "First device" : "The device", falls.firstMs)}
        {falls.devices > 1 && figure(`All ${falls.devices} devices`, falls.allMs)}
        <p class="soft">{timeSentence(falls)}</p>
      </div>
      <WaterfallView key={it.trace} falls={falls} silent={silent} />
    </div>
  );
}

/** What stands in place of a message: how to get one. */
function Nothing({ kind, id, it }: { readonly kind: "user" | "msg"; readonly id: string; readonly it: { readonly silent: readonly string[] } | undefined }) {
  if (!id) return <Empty>Enter a user, or the id of a message.</Empty>;
  if (!it) return null;
  return (
    <>
      {it.silent.length > 0 && <p class="note part">{joined(it.silent)} did not answer. What {it.silent.length === 1 ? "it knows" : "they know"} is missing.</p>}
      <Empty command={kind === "user" ? `tidegate send --user ${id} --to ${id === "bob" ? "alice" : "bob"} hello` : curl(`/v1/trace?msg=${id}`, location.origin)}>
        Nothing is recorded of {kind === "user" ? id : "this message"}. Follow {kind === "user" ? `${id} for 10 minutes, and send something` : "it for 10 minutes"}: what happens from then on appears here.
      </Empty>
    </>
  );
}

/** What happened to a message, step by step, on all nodes. */
export default function Messages() {
  const msg = query.value.get("msg") ?? "";
  const user = query.value.get("user") ?? (msg ? "" : boot.value?.development ? "alice" : "");
  const [kind, id] = msg ? (["msg", msg] as const) : (["user", user] as const);
  const key = `${kind} ${id}`;
  useEffect(() => {
    if (!id) return;
    void look(kind, id, false);
    const timer = setInterval(() => {
      if (!document.hidden) void look(kind, id, false);
    }, 2000);
    return () => clearInterval(timer);
  }, [key]);
  const it = found.value?.key === key ? found.value : undefined;
  const chosen = it?.list.find((one) => one.trace === query.value.get("trace"));
  const open = chosen ?? it?.list[0];
  const isOne = msg !== "" && it?.list.length === 1;
  return (
    <>
      <Header title="Messages"><span class="quiet lead-note">what happened to a message, step by step, on all nodes</span></Header>
      {failure.value && <Failed error={failure.value} again={() => void look(kind, id, false)} />}
      <Split
        isOpen={chosen !== undefined || isOne}
        isEmpty={open === undefined}
        back={isOne ? "/messages" : `/messages?${kind}=${encodeURIComponent(id)}`}
        label={isOne ? "Messages" : kind === "user" ? `Messages of ${id}` : "Attempts of this message"}
        side={<>
          <form
            class="side-head"
            onSubmit={(event) => {
              event.preventDefault();
              const value = new FormData(event.currentTarget).get("id")?.toString().trim() ?? "";
              setQuery("trace", "");
              setQuery("msg", /^[0-9a-f]{24,}$/.test(value) ? value : "");
              setQuery("user", /^[0-9a-f]{24,}$/.test(value) ? "" : value);
            }}
          >
            <label class="field">
              <Icon name="search" />
              <input name="id" data-filter aria-label="A user, or the id of a message" placeholder="A user, or the id of a message" key={key} defaultValue={id} autocomplete="off" />
            </label>
          </form>
          {id && <Followed name={key} />}
          <ol class="list">
            {it?.list.map((one) => <Row key={one.trace} it={one} isOpen={one === (isNarrow.value ? chosen : open)} />)}
          </ol>
        </>}
      >
        {open ? <Details it={open} silent={it?.silent ?? []} /> : <Nothing kind={kind} id={id} it={it} />}
      </Split>
    </>
  );
}

