import { useState } from "preact/hooks";
import { path, query } from "../app/router.ts";
import { Header } from "../app/shell.tsx";
import { groupsPath, membersPath, type Group, type ListedGroup, type Member } from "../live/groups.ts";
import { isPrefix } from "../live/ids.ts";
import { Empty } from "../parts/empty.tsx";
import { Failed } from "../parts/failed.tsx";
import { usePages } from "../parts/pages.ts";
import { useReading } from "../parts/reading.ts";
import { memberCount, seesWords, settingWords } from "../words/groups.ts";
import { curl } from "../words/nodes.ts";
import { grouped } from "../words/numbers.ts";
import { Chooser } from "./groupside.tsx";
import { Rooms } from "./rooms.tsx";

/** Entries of a page of a list. */
const PAGE = 50;

/** Roles by which members are filtered. */
const ROLES = ["", "owner", "admin", "member"] as const;

function Members({ group }: { readonly group: string }) {
  const [role, setRole] = useState("");
  const pages = usePages<Member>(membersPath(group, role, PAGE), "members");
  return (
    <section class="pad" aria-label="Members">
      <div class="row members-head">
        <h2 class="grow">Members</h2>
        <span class="segmented" role="group" aria-label="Role">
          {ROLES.map((it) => <button type="button" aria-pressed={role === it} onClick={() => setRole(it)}>{it || "all"}</button>)}
        </span>
        <button type="button" class="link" onClick={pages.again}>Read again</button>
      </div>
      {pages.error && <Failed error={pages.error} again={pages.again} />}
      {!pages.isRead && !pages.error && <p class="quiet">–</p>}
      {pages.isRead && pages.items.length === 0 && !pages.hasMore && <p class="quiet">{role === "member" ? "All members are owners or admins." : role ? `No member is an ${role}.` : "No member is left."}</p>}
      {pages.items.length > 0 && (
        <table class="connections">
          <thead><tr><th>User</th><th>Role</th><th class="wide">Sees</th></tr></thead>
          <tbody>
            {pages.items.map((it) => (
              <tr key={it.user}>
                <td class="who"><a href={`/people?user=${encodeURIComponent(it.user)}`}><bdi>{it.user}</bdi></a><span class="narrow small quiet">sees {seesWords(it.joinedSeq)}</span></td>
                <td>{it.role} {it.muted && <span class="chip amber">muted</span>}</td>
                <td class="wide num soft">{seesWords(it.joinedSeq)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {pages.hasMore && <button type="button" class="link more" onClick={pages.more}>{pages.items.length === 0 ? "Read on" : "Show more"}</button>}
    </section>
  );
}

function Details({ id }: { readonly id: string }) {
  const { value, error, again } = useReading<Group>(`/v1/groups/${encodeURIComponent(id)}`, 0);
  const meta = Object.entries(value?.meta ?? {});
  return (
    <div class="person">
      <div class="person-head">
        <div class="grow">
          <h2><bdi>{value?.name ?? id}</bdi></h2>
          <span class="quiet"><code>g:{id}</code>{value && <>, {memberCount(value.count)}</>}</span>
        </div>
        <a class="button" href={`/guard?key=${encodeURIComponent(`conversation:g:${id}`)}`}>Limits</a>
        <button type="button" class="button" onClick={again}>Read again</button>
      </div>
      {error && <div class="pad"><Failed error={error} again={again} /></div>}
      {!value && !error && <p class="note quiet">Reading the group.</p>}
      {value && (
        <section class="pad" aria-label="Settings">
          <h2>Settings</h2>
          <dl class="facts">
            {settingWords(value.settings).map((it) => (
              <div key={it.name}>
                <dt>{it.label}</dt>
                <dd><bdi>{it.words}</bdi>{it.isDefault && <span class="quiet small"> (default)</span>}</dd>
              </div>
            ))}
            {meta.map(([name, text]) => (
              <div key={`meta ${name}`}>
                <dt>Metadata <code>{name}</code></dt>
                <dd><bdi>{text}</bdi></dd>
              </div>
            ))}
          </dl>
        </section>
      )}
      {value && <Members group={id} />}
    </div>
  );
}

function Groups() {
  const text = query.value.get("q") ?? "";
  const pages = usePages<ListedGroup>(groupsPath(text, PAGE), "groups");
  const isNone = pages.isRead && pages.items.length === 0 && !pages.hasMore;
  return (
    <Chooser
      of="group"
      label="All groups"
      field="Beginning of a group’s id"
      pages={pages}
      shown={pages.items}
      id={(it) => it.id}
      row={(it) => <span class="row quiet small"><span class="cut grow"><bdi>{it.name ?? ""}</bdi></span><span class="num">{memberCount(it.count)}, seq {grouped(it.maxSeq)}</span></span>}
      details={(id) => <Details key={id} id={id} />}
    >
      {!isPrefix(text) && <p class="note">No group has such an id: ids have letters, digits, and <code>_ . -</code>, 64 at most.</p>}
      {!pages.isRead && !pages.error && isPrefix(text) && <p class="note quiet">Reading the groups.</p>}
      {isNone && text && isPrefix(text) && <p class="note">No group’s id begins with <b>{text}</b>.</p>}
      {isNone && !text && <Empty command={curl("POST", location.origin, "/v1/groups", { id: "team", members: ["alice", "bob"] })}>There is no group. This creates one:</Empty>}
    </Chooser>
  );
}

/** Groups with their settings and members, and the live rooms of this moment. */
export default function GroupsAndRooms() {
  const isRooms = path.value === "/rooms";
  return (
    <>
      <Header title="Groups and rooms"><span class="quiet lead-note">{isRooms ? "live rooms that have members now, on all nodes" : "all groups, in the order of their ids"}</span></Header>
      {isRooms ? <Rooms /> : <Groups />}
    </>
  );
}
