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

/** Returns the JSON of an answer; null if it is none. */
async function body(response: Response): Promise<unknown> {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

async function refusal(response: Response): Promise<ApiError> {
  // A page that is not JSON is described by its status.
  const it = ((await body(response)) ?? {}) as Record<string, unknown>;
  const name = typeof it["name"] === "string" ? it["name"] : `HTTP ${response.status}`;
  return new ApiError(
    Number(it["code"] ?? response.status), name, String(it["message"] ?? response.statusText), String(it["cure"] ?? ""),
    it["temporary"] === true,
  );
}

/** Sends a request with the key of the page. Fails with the reason that the node gives, unless it is a success. */
export async function request(path: string, init: RequestInit): Promise<Response> {
  const key = keyHeader();
  const response = await fetch(path, { ...init, headers: { ...init.headers, ...key } });
  if (response.status === 401) keyRefused(key);
  if (!response.ok) throw await refusal(response);
  return response;
}

async function ask(path: string, init: RequestInit): Promise<unknown> {
  try {
    // The connection may end while the body is read, too.
    return await body(await request(path, init));
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
