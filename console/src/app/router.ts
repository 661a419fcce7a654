import { computed, signal } from "@preact/signals";

const href = signal(location.pathname + location.search);

/** The path of the page. */
export const path = computed(() => href.value.split("?")[0] ?? "/");

/** The query of the page: filters and selections live here, so that an address shows the same view again. */
export const query = computed(() => new URLSearchParams(href.value.split("?")[1] ?? ""));

/** The view of the page: the first part of its path. Groups and live rooms are one view. */
export function current(): string {
  const first = `/${path.value.split("/")[1] ?? ""}`;
  return first === "/rooms" ? "/groups" : first;
}

/** Opens another address of the page without a load. */
export function go(to: string, replace = false): void {
  if (to === href.value) return;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  href.value = to;
}

/** Sets one field of the query; an empty value removes it. With `isStep` the browser's way back leads to what was shown before. */
export function setQuery(name: string, value: string, isStep = false): void {
  const next = new URLSearchParams(query.value);
  if (value) next.set(name, value);
  else next.delete(name);
  const text = next.toString();
  go(path.value + (text ? `?${text}` : ""), !isStep);
}

/** Follows links inside the page and the history of the browser. */
export function startRouter(): void {
  addEventListener("popstate", () => (href.value = location.pathname + location.search));
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (!link || link.origin !== location.origin || link.target || link.hasAttribute("download")) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}
