import { signal } from "@preact/signals";

/** Paths that the open view has read, in the order of their first read; few enough to list. */
export const asked = signal<readonly string[]>([]);
const KEEP = 20;
let view = "";

/** Notes that a view reads a path. */
export function noteAsked(path: string): void {
  // Tests without a browser have no address.
  const { pathname = "", search = "" } = globalThis.location ?? {};
  const open = pathname + search;
  const before = view === open ? asked.value : [];
  view = open;
  // What the page itself is built on is no part of a view.
  if (path !== "/v1/console" && !before.includes(path)) asked.value = [...before, path].slice(-KEEP);
}

/** The command that reads a path of the node outside of the page; a key is named by a variable, and never written out. */
export function curl(path: string, origin: string, hasKey: boolean): string {
  // Everything else that means something between quotation marks of a shell is escaped in addresses.
  const address = `${origin}${path}`.replaceAll("'", "%27");
  // Other accounts can read the words of a command, so the key is none of them.
  return hasKey ? `printf 'Authorization: Bearer %s' "$TIDEGATE_KEY" | curl -s -H @- '${address}'` : `curl -s '${address}'`;
}
