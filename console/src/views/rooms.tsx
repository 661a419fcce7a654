import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { query } from "../app/router.ts";
import { isSilent } from "../app/silence.ts";
import { isFull, nodeClass } from "../live/boot.ts";
import { REASON_MAX } from "../live/connections.ts";
import { leave, leavingPath, type Leaving, type Room, type RoomMember } from "../live/groups.ts";
import { isId } from "../live/ids.ts";
import { Confirm } from "../parts/confirm.tsx";
import { Empty } from "../parts/empty.tsx";
import { Failed } from "../parts/failed.tsx";
import { Modal } from "../parts/modal.tsx";
import { Outcome } from "../parts/outcome.tsx";
import { usePages } from "../parts/pages.ts";
import { useReading } from "../parts/reading.ts";
import { leavingWords, removedWords, roomCount, roomSilentWords } from "../words/groups.ts";
import { Chooser } from "./groupside.tsx";

/** Entries of a page of a list, and the time between two reads of its beginning: each asks all nodes. */
const PAGE = 50;
const AGAIN_MS = 5000;

/** Who is asked about, before it is removed from its room. */
const leaving = signal<Leaving | undefined>(undefined);

/** What was done last. */
const outcome = signal("");

function Question({ it, after }: { readonly it: Leaving; readonly after: () => void }) {
  const [isOne, setOne] = useState(false);
  const [reason, setReason] = useState("");
  const { device, ...whole } = it;
  const what: Leaving = isOne ? it : whole;
  return (
    <Confirm
      title={`Remove ${it.user} from ${it.room}?`}
      words={leavingWords(what)}
      path={leavingPath(what, reason.trim())}
      keep="Keep"
      verb="Remove"
      run={async () => removedWords(what, await leave(what, reason.trim()))}
      done={(said) => (outcome.value = said)}
      close={() => { leaving.value = undefined; after(); }}
    >
      <label class="asked">Reason that the clients get, {REASON_MAX} characters at most
        <span class="field"><input autofocus maxLength={REASON_MAX} autocomplete="off" value={reason} onInput={(event) => setReason(event.currentTarget.value)} /></span>
      </label>
      <label class="choice"><input type="checkbox" checked={isOne} onChange={(event) => setOne(event.currentTarget.checked)} /> Only the device {device}</label>
    </Confirm>
  );
}

function Details({ room }: { readonly room: string }) {
  const base = `/v1/rooms/${encodeURIComponent(room)}`;
  const count = useReading<Room>(base, AGAIN_MS);
  const pages = usePages<RoomMember>(`${base}/members?limit=${PAGE}`, "members", AGAIN_MS);
  const mayAct = isFull();
  const failure = pages.error ?? count.error;
  const silent = roomSilentWords(pages.silent);
  const again = () => { count.again(); pages.again(); };
  // What was done belongs to the room in which it was done.
  useEffect(() => () => { outcome.value = ""; }, []);
  return (
    <div class="person">
      <div class="person-head">
        <div class="grow">
          <h2><bdi>{room}</bdi></h2>
          <span class="quiet"><code>r:{room}</code>{count.value && <>, {roomCount(count.value)}</>}</span>
        </div>
        <a class="button" href={`/guard?key=${encodeURIComponent(`conversation:r:${room}`)}`}>Limits</a>
      </div>
      <Outcome said={outcome} />
      <section class="pad" aria-label="Members">
        <h2>Members <span class="quiet small">connections that are in the room now</span></h2>
        {failure && <Failed error={failure} again={again} />}
        {silent && <p class="small lagging">{silent}</p>}
        {!pages.isRead && !pages.error && <p class="quiet">–</p>}
        {pages.isRead && pages.items.length === 0 && !silent && <p class="quiet">No connection is in this room now.</p>}
        {pages.items.length > 0 && (
          <table class="connections">
            <thead><tr><th>User and device</th><th class="wide">Node</th>{mayAct && <th class="end acts"><span class="sr">Actions</span></th>}</tr></thead>
            <tbody>
              {pages.items.map((it) => (
                <tr key={`${it.user} ${it.device}`} class={nodeClass(it.node)}>
                  <td class="who"><a href={`/people?user=${encodeURIComponent(it.user)}`}><bdi>{it.user}</bdi></a> <span class="soft"><bdi>{it.device}</bdi></span><span class="narrow small quiet">{it.node}</span></td>
                  <td class="wide"><span class="node">{it.node}</span></td>
                  {mayAct && <td class="end acts"><button type="button" class="link" disabled={isSilent.value} aria-label={`Remove ${it.user} from ${room}, on ${it.device} or all devices`} onClick={() => (leaving.value = { room, user: it.user, device: it.device })}>Remove</button></td>}
                </tr>
              ))}
            </tbody>
          </table>
        )}
        {pages.hasMore && <button type="button" class="link more" onClick={pages.more}>Show more</button>}
      </section>
      <Modal label="Remove from a live room" isOpen={leaving.value !== undefined} close={() => (leaving.value = undefined)}>
        {leaving.value && <Question it={leaving.value} after={again} />}
      </Modal>
    </div>
  );
}

/** Live rooms that have members now, with their members; a room without members is no longer one. */
export function Rooms() {
  const text = query.value.get("q") ?? "";
  const pages = usePages<Room>(`/v1/rooms?limit=${PAGE}`, "rooms", AGAIN_MS);
  const shown = pages.items.filter((it) => it.room.startsWith(text));
  const isNone = pages.isRead && shown.length === 0;
  const silent = roomSilentWords(pages.silent);
  return (
    <Chooser
      of="room"
      label="All live rooms"
      field="Beginning of a room’s id"
      pages={pages}
      shown={shown}
      id={(it) => it.room}
      row={(it) => <span class="quiet small num">{roomCount(it)}</span>}
      note={silent && <p class="note lagging">{silent}</p>}
      details={(room) => <Details key={room} room={room} />}
    >
      {!pages.isRead && !pages.error && <p class="note quiet">Reading the rooms.</p>}
      {isNone && text && (isId(text) ? <p class="note">Press Enter to look at <b>{text}</b>.</p> : <p class="note">No room has such an id.</p>)}
      {isNone && !text && !silent && <Empty command="tidegate tail --user bob --room hall">No live room has members now. This joins one:</Empty>}
    </Chooser>
  );
}
