import { noteAsked } from "./asked.ts";
import { keyHeader, keyRefused } from "./key.ts";
import { firstTime } from "./loading.ts";

/** An answer of the node that is no success, or none at all (`code` 0). */
export class ApiError extends Error {
  readonly code: number;
  readonly title: string;
  readonly cure: string;
  readonly temporary: boolean;

  constructor(code: number, title: string, message: string, cure: string, temporary: boolean) {
    super(message);
    this.code = code;
    this.title = title;
    this.cure = cure;
    this.temporary = temporary;
  }
}

async function answer(response: Response): Promise<unknown> {
  const text = await response.text();
  let body: unknown = null;
  try {
    body = JSON.parse(text);
  } catch {
    // A page that is not JSON is described by its status.
  }
  if (response.ok) return body;
  const it = (body ?? {}) as Record<string, unknown>;
  const name = typeof it["name"] === "string" ? it["name"] : `HTTP ${response.status}`;
  throw new ApiError(
    Number(it["code"] ?? response.status), name, String(it["message"] ?? response.statusText), String(it["cure"] ?? ""),
    it["temporary"] === true,
  );
}

async function ask(path: string, init: RequestInit): Promise<unknown> {
  try {
    const key = keyHeader();
    const response = await fetch(path, { ...init, headers: { ...init.headers, ...key } });
    if (response.status === 401) keyRefused(key);
    // The connection may end while the body is read, too.
    return await answer(response);
  } catch (error) {
    if (error instanceof ApiError || (error instanceof DOMException && error.name === "AbortError")) throw error;
    throw new ApiError(0, "No answer", "The node does not answer.", "Check that it runs; the page tries again by itself.", true);
  }
}

/** Reads a route of the node. A request that can be aborted may wait for news, so that the page does not count as loading. */
export function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  if (signal) return ask(path, { signal }) as Promise<T>;
  noteAsked(path);
  return firstTime(path, () => ask(path, {})) as Promise<T>;
}

/** Asks the node to do something. */
export function post<T>(path: string, body?: unknown, method = "POST"): Promise<T> {
  const init: RequestInit = { method, headers: { "content-type": "application/json" } };
  if (body !== undefined) init.body = JSON.stringify(body);
  return ask(path, init) as Promise<T>;
}
