import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { query, setQuery } from "../app/router.ts";
import { Header } from "../app/shell.tsx";
import { isSilent } from "../app/silence.ts";
import { isNarrow } from "../app/width.ts";
import { ApiError, get, post } from "../live/api.ts";
import { allows, isFull } from "../live/boot.ts";
import { failure as eventsFailure, followEvents, isRead, list, retryEvents } from "../live/cloudevents.ts";
import { userPath, type ConnectionList, type Revocation } from "../live/connections.ts";
import { isId } from "../live/ids.ts";
import { CopyButton } from "../parts/copy.tsx";
import { Empty } from "../parts/empty.tsx";
import { EventLine } from "../parts/eventline.tsx";
import { Failed } from "../parts/failed.tsx";
import { Icon } from "../parts/icon.tsx";
import { Outcome } from "../parts/outcome.tsx";
import { useReading } from "../parts/reading.ts";
import { Split } from "../parts/split.tsx";
import { revocationWords, silentWords } from "../words/connections.ts";
import { capital } from "../words/numbers.ts";
import { known } from "../words/people.ts";
import { Blocks } from "./blocks.tsx";
import { Chains } from "./chains.tsx";
import { ConnectionTable } from "./connectiontable.tsx";
import { Conversations } from "./conversations.tsx";
import { EndingDialog, ending, outcome } from "./ending.tsx";

interface Presence {
  readonly user: string;
  readonly online: boolean;
  readonly devices: readonly { readonly device: string; readonly node: string }[];
}

interface Token {
  readonly user: string;
  readonly token: string;
  readonly expiresMs: number;
}

const presence = signal<Presence | undefined>(undefined);
const failure = signal<ApiError | undefined>(undefined);
/** Why no token was created; it stays until the next attempt, apart from reads that succeed meanwhile. */
const mintFailure = signal<ApiError | undefined>(undefined);
/** The token that was created last; it is kept nowhere else. */
const minted = signal<Token | undefined>(undefined);

async function look(user: string): Promise<void> {
  try {
    const it = await get<Presence>(userPath(user, "presence"));
    if (query.value.get("user") === user) presence.value = it;
    failure.value = undefined;
  } catch (error) {
    if (error instanceof ApiError) failure.value = error;
  }
}

async function mint(user: string): Promise<void> {
  try {
    minted.value = await post<Token>("/v1/dev/token", { user });
    mintFailure.value = undefined;
  } catch (error) {
    if (error instanceof ApiError) mintFailure.value = error;
  }
}

function Minted({ it }: { readonly it: Token }) {
  return (
    <div class="minted">
      <p class="soft">A token for {it.user}, valid until {new Date(it.expiresMs).toLocaleTimeString("en-GB")}. It logs in as {it.user}, on any device.</p>
      <code>{it.token}</code>
      <div class="row">
        <CopyButton label="Copy the token" text={() => it.token} />
        <button type="button" class="button" onClick={() => (minted.value = undefined)}>Hide it</button>
      </div>
    </div>
  );
}

function Person({ user }: { readonly user: string }) {
  useEffect(() => {
    presence.value = undefined;
    minted.value = undefined;
    mintFailure.value = undefined;
    outcome.value = "";
    void look(user);
    const timer = setInterval(() => !document.hidden && void look(user), 2000);
    return () => clearInterval(timer);
  }, [user]);
  const it = presence.value?.user === user ? presence.value : undefined;
  const events = list.value.filter((event) => event.subject === user);
  const connections = useReading<ConnectionList>(userPath(user, "connections"), 2000);
  const revocations = useReading<{ readonly revocations: readonly Revocation[] }>(userPath(user, "revocations"), 10_000);
  const connected = connections.value?.connections;
  const silent = silentWords(connections.value?.silent ?? []);
  const mayAct = isFull();
  const after = () => {
    connections.again();
    revocations.again();
  };
  return (
    <div class="person">
      <div class="person-head">
        <span class="avatar" aria-hidden="true">{capital(user).charAt(0)}</span>
        <div class="grow">
          <h2><bdi>{user}</bdi> {it && <span class={`chip ${it.online ? "tide" : ""}`}>{it.online ? "online" : "offline"}</span>}</h2>
          <span class="quiet">{it ? `${it.devices.length} ${it.devices.length === 1 ? "device" : "devices"} connected` : "–"}</span>
        </div>
        {allows("token") && <button type="button" class="button" disabled={isSilent.value} onClick={() => void mint(user)}>Create a token</button>}
        <a class="button" href={`/messages?user=${encodeURIComponent(user)}`}>Messages</a>
        <a class="button" href={`/guard?key=${encodeURIComponent(`user:${user}`)}`}>Limits</a>
        {mayAct && <button type="button" class="button danger" disabled={isSilent.value || !connected?.length} onClick={() => (ending.value = { kick: { user } })}>Kick all</button>}
        {mayAct && <button type="button" class="button danger" disabled={isSilent.value} onClick={() => (ending.value = { revoke: user, devices: (connected ?? []).map((one) => one.device) })}>Revoke tokens</button>}
      </div>
      <Outcome said={outcome} />
      {mintFailure.value && <Failed error={mintFailure.value} />}
      {minted.value?.user === user && <Minted it={minted.value} />}
      <section class="pad">
        <h2>Devices</h2>
        {connections.error && <Failed error={connections.error} again={connections.again} />}
        {silent && <p class="small lagging">{silent}</p>}
        {connected?.length === 0 && !silent && <Empty command={`tidegate tail --user ${user}`}>None is connected. This connects one:</Empty>}
        {connected && connected.length > 0 && <ConnectionTable list={connected} isOfOne />}
      </section>
      <Chains key={`chains ${user}`} user={user} />
      <Conversations key={`of ${user}`} user={user} />
      <Revocations list={revocations.value?.revocations ?? []} />
      <Blocks key={user} user={user} />
      <section class="pad">
        <h2>Events <span class="quiet small">as far back as this node keeps them</span></h2>
        <ol class="events">{events.slice(0, 50).map((event) => <li key={event.id} class="event-row"><EventLine it={event} /></li>)}</ol>
        {isRead.value && events.length === 0 && <p class="quiet">None.</p>}
      </section>
      <EndingDialog after={after} />
    </div>
  );
}

/** Revocations of a user's tokens that are in force; nothing without any. */
function Revocations({ list }: { readonly list: readonly Revocation[] }) {
  const time = (ms: number) => new Date(ms).toLocaleString("en-GB");
  return list.length === 0 ? null : (
    <section class="pad">
      <h2>Revoked tokens</h2>
      <ul>{list.map((it) => <li>{revocationWords(it, time)}</li>)}</ul>
    </section>
  );
}

/** A user: devices that are connected, newest events, and a token on development nodes. */
export default function People() {
  useEffect(followEvents, []);
  const people = known(list.value);
  const user = query.value.get("user") ?? "";
  const typed = query.value.get("q") ?? "";
  const open = user || (isNarrow.value ? "" : (people[0]?.user ?? ""));
  useEffect(() => {
    if (!user && open) setQuery("user", open);
  }, [user, open]);
  const shown = people.filter((it) => it.user.includes(typed)).slice(0, 200);
  return (
    <>
      <Header title="People"><span class="quiet lead-note">{people.length > 0 ? `${people.length} in the events of this node, ${people.filter((it) => it.devices.length > 0).length} online` : ""}</span></Header>
      {failure.value && <Failed error={failure.value} again={() => void look(open)} />}
      {eventsFailure.value && <Failed error={eventsFailure.value} again={retryEvents} />}
      <Split
        isOpen={open !== ""}
        isEmpty={shown.length === 0}
        back="/people"
        label="All people"
        side={<>
          <form class="side-head" onSubmit={(event) => { event.preventDefault(); if (typed) { setQuery("user", typed); setQuery("q", ""); } }}>
            <label class="field">
              <Icon name="search" />
              <input data-filter aria-label="A user’s id" placeholder="A user’s id" autocomplete="off" value={typed} onInput={(event) => setQuery("q", event.currentTarget.value.trim())} />
            </label>
          </form>
          <ol class="list">
            {shown.map((it) => (
              <li key={it.user}>
                <button type="button" class={`message-row${it.user === open ? " open" : ""}`} aria-current={it.user === open} onClick={() => setQuery("user", it.user, isNarrow.value)}>
                  <b class="cut">{it.user}</b>
                  <span class="row quiet small"><i class={it.devices.length > 0 ? "dot" : "dot off"} />{it.devices.length > 0 ? it.devices.join(", ") : "offline"}</span>
                </button>
              </li>
            ))}
          </ol>
          {shown.length === 0 && typed && <p class="note">Press Enter to look at <b>{typed}</b>.</p>}
          {shown.length === 0 && !typed && isRead.value && <Empty command="tidegate tail --user bob">No user has connected since this node started. This connects one:</Empty>}
        </>}
      >
        {open && (isId(open) ? <Person user={open} /> : <p class="note">No user has this id: ids have letters, digits, and <code>_ . -</code>, 64 at most.</p>)}
      </Split>
    </>
  );
}
