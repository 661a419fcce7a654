import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { ApiError, get, post } from "../src/live/api.ts";

const { fetch } = globalThis;
afterEach(() => { globalThis.fetch = fetch; });

/** Answers each request with a body that ends by an error after its first bytes. */
function breaking(error: Error): void {
  const body = () => new ReadableStream({
    start(controller) {
      controller.enqueue(new TextEncoder().encode('{"ok":'));
      controller.error(error);
    },
  });
  globalThis.fetch = () => Promise.resolve(new Response(body(), { status: 200 }));
}

test("a connection that ends within the body is an answer that is missing", async () => {
  breaking(new TypeError("terminated"));
  await assert.rejects(post("/v1/drain"), (error: unknown) => error instanceof ApiError && error.code === 0 && error.title === "No answer" && error.temporary);
});

test("an aborted request is none", async () => {
  breaking(new DOMException("aborted", "AbortError"));
  await assert.rejects(get("/v1/events", new AbortController().signal), { name: "AbortError" });
});

test("a refusal keeps its code", async () => {
  globalThis.fetch = () => Promise.resolve(new Response('{"code":4011,"name":"ARCHIVE_BEHIND","message":"wait","temporary":true}', { status: 503 }));
  await assert.rejects(post("/v1/drain"), (error: unknown) => error instanceof ApiError && error.code === 4011 && error.title === "ARCHIVE_BEHIND");
});
