import { useState } from "preact/hooks";
import { isSilent } from "../app/silence.ts";
import { ApiError, post } from "../live/api.ts";
import { isFull } from "../live/boot.ts";
import { userPath } from "../live/connections.ts";
import { isId } from "../live/ids.ts";
import { Failed } from "../parts/failed.tsx";
import { usePages } from "../parts/pages.ts";
import { blockWords } from "../words/connections.ts";

interface Blocked {
  readonly user: string;
  readonly time: number;
}

interface Changed {
  readonly blocked: boolean;
  readonly changed: boolean;
  readonly pending: readonly string[];
}

/** Those whom a user blocks, read once the part is opened. */
export function Blocks({ user }: { readonly user: string }) {
  const [isOpen, setOpen] = useState(false);
  const path = userPath(user, "blocks");
  const pages = usePages<Blocked>(isOpen ? `${path}?limit=50` : "", "blocks");
  const [failure, setFailure] = useState<ApiError | undefined>(undefined);
  const [said, say] = useState("");
  const [other, setOther] = useState("");
  const mayAct = isFull();
  const error = failure ?? pages.error;
  const change = async (id: string, method: "PUT" | "DELETE") => {
    try {
      const it = await post<Changed>(`${path}/${encodeURIComponent(id)}`, undefined, method);
      say(blockWords(user, id, it.blocked, it.changed, it.pending));
      setOther("");
      setFailure(undefined);
      pages.again();
    } catch (error) {
      if (error instanceof ApiError) setFailure(error);
    }
  };
  return (
    <details class="pad blocks" onToggle={(event) => event.currentTarget.open && setOpen(true)}>
      <summary><h2>Blocked users</h2></summary>
      {error && <Failed error={error} again={() => { setFailure(undefined); pages.again(); }} />}
      <p class="small soft" role="status">{said}</p>
      {pages.isRead && pages.items.length === 0 && !pages.hasMore && <p class="quiet">{user} blocks no user.</p>}
      <ul>
        {pages.items.map((it) => (
          <li class="row" key={it.user}>
            <a class="grow" href={`/people?user=${encodeURIComponent(it.user)}`}><bdi>{it.user}</bdi></a>
            <span class="quiet small num">{new Date(it.time).toLocaleString("en-GB")}</span>
            {mayAct && <button type="button" class="link" disabled={isSilent.value} aria-label={`Unblock ${it.user}`} onClick={() => void change(it.user, "DELETE")}>Unblock</button>}
          </li>
        ))}
      </ul>
      {pages.hasMore && <button type="button" class="link" onClick={pages.more}>Show more</button>}
      {pages.isRead && mayAct && (
        <form class="row" onSubmit={(event) => { event.preventDefault(); if (isId(other)) void change(other, "PUT"); }}>
          <label class="field grow"><span class="sr">User to block</span><input placeholder="A user’s id" autocomplete="off" value={other} onInput={(event) => setOther(event.currentTarget.value.trim())} /></label>
          <button type="submit" class="button" disabled={!isId(other) || other === user || isSilent.value}>Block</button>
        </form>
      )}
    </details>
  );
}
