import type { ApiError } from "../live/api.ts";

/** A request that failed: its code, what to do, and a way to try again. */
export function Failed({ error, again }: { readonly error: ApiError; readonly again: () => void }) {
  return (
    <div class="failed" role="status">
      <span class="grow"><b>{error.code > 0 ? `${error.code} ` : ""}{error.title}</b> {error.message} {error.cure}</span>
      <button type="button" class="link" onClick={again}>Try again</button>
    </div>
  );
}
