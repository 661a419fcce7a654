import { signal } from "@preact/signals";
import { keyHeader } from "./key.ts";

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

/** Text between quotation marks of a shell; everything else that means something there is escaped in addresses. */
export function quoted(address: string): string {
  return `'${address.replaceAll("'", "%27")}'`;
}

/** What a command has before `curl` and among its options for a key, which is named by a variable and never written out. */
export function keyWords(hasKey = Object.keys(keyHeader()).length > 0): readonly [string, string] {
  // Other accounts can read the words of a command, so the key is none of them.
  return hasKey ? [`printf 'Authorization: Bearer %s' "$TIDEGATE_KEY" | `, " -H @-"] : ["", ""];
}

/** The command that reads a path of the node outside of the page. */
export function curl(path: string, origin: string, hasKey?: boolean): string {
  const [before, header] = keyWords(hasKey);
  return `${before}curl -s${header} ${quoted(`${origin}${path}`)}`;
}
