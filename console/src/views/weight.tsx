import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { isSilent } from "../app/silence.ts";
import { ApiError } from "../live/api.ts";
import { adminOf, postOn } from "../live/forward.ts";
import { readNodes, type NodeRow } from "../live/nodes.ts";
import { CopyButton } from "../parts/copy.tsx";
import { Failed } from "../parts/failed.tsx";
import { curl, newClients } from "../words/nodes.ts";

/** The node whose weight is being changed. */
export const weighed = signal<NodeRow | undefined>(undefined);

const weight = signal("");
const share = signal("");
const failed = signal<ApiError | undefined>(undefined);

/** What the fields say; undefined where one of them is no allowed number. */
function wish(): { readonly weight: number; readonly share: number } | undefined {
  const [wanted, part] = [Number(weight.value), share.value.trim() === "" ? -1 : Number(share.value)];
  const isValid = weight.value.trim() !== "" && Number.isInteger(wanted) && wanted >= 0 && wanted <= 1_000_000 && Number.isInteger(part) && part >= -1 && part <= 100;
  return isValid ? { weight: wanted, share: part } : undefined;
}

async function set(node: string, body: unknown): Promise<void> {
  try {
    await postOn(node, "/v1/weight", body);
    failed.value = undefined;
    weighed.value = undefined;
  } catch (error) {
    if (error instanceof ApiError) failed.value = error;
  }
  await readNodes();
}

/** Asks for the weight and the share of a node, and says what they do before they are set. */
export function WeightDialog({ nodes }: { readonly nodes: readonly NodeRow[] }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const it = weighed.value;
  useEffect(() => {
    if (it && !dialog.current?.open) {
      weight.value = String(it.weight);
      share.value = it.share === null || it.share === undefined || it.share < 0 ? "" : String(it.share);
      failed.value = undefined;
      dialog.current?.showModal();
    } else if (!it) dialog.current?.close();
  }, [it]);
  const body = wish();
  return (
    <dialog ref={dialog} aria-label="Weight and share" onClose={() => (weighed.value = undefined)}>
      {it && (
        <form onSubmit={(event) => { event.preventDefault(); if (body) void set(it.node, body); }}>
          <h2>Weight and share of {it.node}</h2>
          <div class="pair">
            <label>Weight, 0 to 1,000,000<span class="field"><input inputMode="numeric" value={weight.value} onInput={(event) => (weight.value = event.currentTarget.value)} /></span></label>
            <label>Share of its version, %<span class="field"><input inputMode="numeric" placeholder="none" value={share.value} onInput={(event) => (share.value = event.currentTarget.value)} /></span></label>
          </div>
          <p class="soft">{body ? newClients(it, nodes, body.weight) : "Weight is a whole number up to 1,000,000; the share is 0 to 100, or empty for none."} It holds until the node restarts, and moves no connected client.</p>
          <p class="quiet small">The share decides which users go to the nodes of this version while two versions run. Leave it empty outside of a gradual rollout.</p>
          {failed.value && <Failed error={failed.value} />}
          <div class="actions">
            {body && adminOf(it.node) && <CopyButton label="Copy as curl" text={() => curl("POST", adminOf(it.node), "/v1/weight", body)} />}
            <button type="button" class="button" onClick={() => (weighed.value = undefined)}>Cancel</button>
            <button type="submit" class="button primary" disabled={!body || isSilent.value}>Set</button>
          </div>
        </form>
      )}
    </dialog>
  );
}
