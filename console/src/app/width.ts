import { signal } from "@preact/signals";

const query = matchMedia("(max-width: 1023px)");

/** Whether the page is too narrow for a list beside its detail: the list then opens the detail in its place. */
export const isNarrow = signal(query.matches);

query.addEventListener("change", () => (isNarrow.value = query.matches));
