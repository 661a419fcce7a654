import type { Signal } from "@preact/signals";

/** What was done last, until it is dismissed. */
export function Outcome({ said }: { readonly said: Signal<string> }) {
  return (
    <div role="status">
      {said.value && (
        <p class="outcome">
          <span class="grow">{said.value}</span>
          <button type="button" class="link" onClick={() => (said.value = "")}>Dismiss</button>
        </p>
      )}
    </div>
  );
}
