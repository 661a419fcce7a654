import { useState } from "preact/hooks";
import { isSilent } from "../app/silence.ts";
import { ApiError, get, post } from "../live/api.ts";
import { boot } from "../live/boot.ts";
import { userPath } from "../live/connections.ts";
import { Failed } from "../parts/failed.tsx";
import { blockWords } from "../words/connections.ts";

interface BlockPage {
  readonly blocks: readonly { readonly user: string; readonly time: number }[];
  readonly next?: string;
}

interface Changed {
  readonly blocked: boolean;
  readonly changed: boolean;
  readonly pending: readonly string[];
}

/** Ids of users. */
const ID = /^[A-Za-z0-9_.-]{1,64}$/;

/** Those whom a user blocks, read once the part is opened. */
export function Blocks({ user }: { readonly user: string }) {
  const [page, setPage] = useState<BlockPage | undefined>(undefined);
  const [error, setError] = useState<ApiError | undefined>(undefined);
  const [said, say] = useState("");
  const [other, setOther] = useState("");
  const mayAct = boot.value?.console === "full";
  const tried = async (run: () => Promise<void>) => {
    try {
      await run();
      setError(undefined);
    } catch (failure) {
      if (failure instanceof ApiError) setError(failure);
    }
  };
  const read = (before?: BlockPage) => tried(async () => {
    const more = await get<BlockPage>(`${userPath(user, "blocks")}?limit=50${before?.next ? `&cursor=${encodeURIComponent(before.next)}` : ""}`);
    setPage({ ...more, blocks: [...(before?.blocks ?? []), ...more.blocks] });
  });
  const change = (id: string, method: "PUT" | "DELETE") => tried(async () => {
    const it = await post<Changed>(`${userPath(user, "blocks")}/${encodeURIComponent(id)}`, undefined, method);
    say(blockWords(user, id, it.blocked, it.changed, it.pending));
    setOther("");
    await read();
  });
  return (
    <details class="pad blocks" onToggle={(event) => event.currentTarget.open && !page && void read()}>
      <summary><h2>Blocked users</h2></summary>
      {error && <Failed error={error} again={() => void read()} />}
      <p class="small soft" role="status">{said}</p>
      {page?.blocks.length === 0 && <p class="quiet">{user} blocks no user.</p>}
      <ul>
        {page?.blocks.map((it) => (
          <li class="row" key={it.user}>
            <a class="grow" href={`/people?user=${encodeURIComponent(it.user)}`}><bdi>{it.user}</bdi></a>
            <span class="quiet small num">{new Date(it.time).toLocaleString("en-GB")}</span>
            {mayAct && <button type="button" class="link" disabled={isSilent.value} aria-label={`Unblock ${it.user}`} onClick={() => void change(it.user, "DELETE")}>Unblock</button>}
          </li>
        ))}
      </ul>
      {page?.next && <button type="button" class="link" onClick={() => void read(page)}>Show more</button>}
      {page && mayAct && (
        <form class="row" onSubmit={(event) => { event.preventDefault(); if (ID.test(other)) void change(other, "PUT"); }}>
          <label class="field grow"><span class="sr">User to block</span><input placeholder="A user’s id" autocomplete="off" value={other} onInput={(event) => setOther(event.currentTarget.value.trim())} /></label>
          <button type="submit" class="button" disabled={!ID.test(other) || other === user || isSilent.value}>Block</button>
        </form>
      )}
    </details>
  );
}
