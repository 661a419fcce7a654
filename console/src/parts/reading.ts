import { useEffect, useState } from "preact/hooks";
import { ApiError, get } from "../live/api.ts";

/** The answers of a path: the newest one, and why the last read failed. */
export interface Reading<T> {
  readonly value?: T;
  readonly error?: ApiError;
  /** Reads again now. */
  readonly again: () => void;
}

/** Reads a path, again after each pause while the page is visible; without a pause only once. A failure keeps the answer before it. An empty path reads nothing. */
export function useReading<T>(path: string, everyMs: number): Reading<T> {
  const [it, set] = useState<{ readonly path: string; readonly value?: T; readonly error?: ApiError }>({ path });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!path) return;
    let [isOver, isReading] = [false, false];
    const read = async () => {
      if (isReading) return;
      isReading = true;
      try {
        const value = await get<T>(path);
        if (!isOver) set({ path, value });
      } catch (error) {
        if (!isOver && error instanceof ApiError) set((last) => ({ ...(last.path === path ? last : { path }), error }));
      }
      isReading = false;
    };
    void read();
    const timer = everyMs > 0 ? setInterval(() => !document.hidden && void read(), everyMs) : 0;
    return () => {
      isOver = true;
      clearInterval(timer);
    };
  }, [path, everyMs, turn]);
  return { ...(it.path === path ? it : {}), again: () => setTurn(turn + 1) };
}
