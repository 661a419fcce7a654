import { isSilent } from "../app/silence.ts";
import type { ApiError } from "../live/api.ts";
import { Marked } from "./marked.tsx";

/** A request that failed: its code, what to do, and a button for it unless the page repeats it by itself. */
export function Failed({ error, again, label = "Try again" }: { readonly error: ApiError; readonly again?: () => void; readonly label?: string }) {
  // The bar of the page says it already.
  if (error.code === 0 && isSilent.value) return null;
  return (
    <div class="failed" role="status">
      <span class="grow"><b>{error.code > 0 ? `${error.code} ` : ""}{error.title}</b> <Marked text={error.message} /> <Marked text={error.cure} /></span>
      {again && <button type="button" class="link" onClick={again}>{label}</button>}
    </div>
  );
}
