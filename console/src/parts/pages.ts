import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get } from "../live/api.ts";

/** A list that the node answers in pages. */
export interface Pages<T> {
  readonly items: readonly T[];
  /** Whether the first page has arrived. */
  readonly isRead: boolean;
  readonly hasMore: boolean;
  /** Nodes that did not answer, so that what they have is missing. */
  readonly silent: readonly string[];
  /** Why the last read failed; what was read before stays. */
  readonly error?: ApiError;
  /** Reads the list from its beginning. */
  readonly again: () => void;
  /** Reads the next page. */
  readonly more: () => void;
}

/** What was read of a list so far. */
export interface Part<T> {
  readonly items: readonly T[];
  readonly next: string;
  readonly silent: readonly string[];
}

type Answer = { readonly next?: string; readonly silent?: readonly string[] } & Readonly<Record<string, unknown>>;

/** Pages that are read at once until one has an entry: each is one bounded read of the node, and may be empty before the end. */
const READS_MAX = 10;
/** Time after a change of the path before it is read, so that typing reads nothing for each letter. */
const TYPING_MS = 250;

/** Reads on behind a cursor until there is an entry, the list ends, or ten pages were empty. `name` is the field of the entries. */
export async function readOn<T>(path: string, name: string, cursor: string, read: (path: string) => Promise<Answer> = get): Promise<Part<T>> {
  const items: T[] = [];
  const silent = new Set<string>();
  let next = cursor;
  for (let reads = 0; reads < READS_MAX; reads += 1) {
    const it = await read(next ? `${path}${path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(next)}` : path);
    items.push(...((it[name] ?? []) as T[]));
    for (const node of it.silent ?? []) silent.add(node);
    next = it.next ?? "";
    if (!next || items.length > 0) break;
  }
  return { items, next, silent: [...silent] };
}

/** Both parts of a list, of which the second one continues the first. */
export function appended<T>(first: Part<T>, second: Part<T>): Part<T> {
  return { items: [...first.items, ...second.items], next: second.next, silent: [...new Set([...first.silent, ...second.silent])] };
}

/**
 * Reads a list by pages. With a pause it is read again after each, as long as only its beginning is shown. An empty path
 * reads nothing.
 */
export function usePages<T>(path: string, name: string, everyMs = 0): Pages<T> {
  const [it, set] = useState<{ readonly path: string; readonly part?: Part<T>; readonly error?: ApiError }>({ path });
  const [turn, setTurn] = useState(0);
  const isFirst = useRef(true);
  const isReading = useRef(false);
  const hasMore = useRef(false);
  const run = async (task: () => Promise<Part<T>>, isOver: () => boolean) => {
    if (isReading.current) return;
    isReading.current = true;
    try {
      const part = await task();
      if (!isOver()) set({ path, part });
    } catch (error) {
      if (!isOver() && error instanceof ApiError) set((last) => ({ ...(last.path === path ? last : { path }), error }));
    }
    isReading.current = false;
  };
  useEffect(() => {
    if (!path) return;
    let isOver = false;
    hasMore.current = false;
    isReading.current = false;
    const read = () => run(() => readOn<T>(path, name, ""), () => isOver);
    const delay = setTimeout(() => void read(), isFirst.current ? 0 : TYPING_MS);
    isFirst.current = false;
    const timer = everyMs > 0 ? setInterval(() => !document.hidden && !hasMore.current && void read(), everyMs) : 0;
    return () => {
      isOver = true;
      clearTimeout(delay);
      clearInterval(timer);
    };
  }, [path, name, everyMs, turn]);
  const part = it.path === path ? it.part : undefined;
  const asked = useRef(path);
  asked.current = path;
  const more = () => {
    if (!part?.next) return;
    hasMore.current = true;
    void run(async () => appended(part, await readOn<T>(path, name, part.next)), () => asked.current !== path);
  };
  return {
    items: part?.items ?? [], isRead: part !== undefined, hasMore: (part?.next ?? "") !== "", silent: part?.silent ?? [],
    ...(it.path === path && it.error ? { error: it.error } : {}),
    again: () => {
      isFirst.current = true;
      setTurn(turn + 1);
    },
    more,
  };
}
