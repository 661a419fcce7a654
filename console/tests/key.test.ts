import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { get } from "../src/live/api.ts";
import { lines } from "../src/live/events.ts";
import { keyAsked, setKey, tryKey } from "../src/live/key.ts";

const { fetch } = globalThis;
afterEach(() => { globalThis.fetch = fetch; });

/** Answers each request with 200 if it has the right key, and otherwise with 401; returns the keys that were sent. */
function node(right: string): (string | undefined)[] {
  const sent: (string | undefined)[] = [];
  globalThis.fetch = (_path, init) => {
    const key = (init?.headers as Record<string, string>)["authorization"];
    sent.push(key);
    return Promise.resolve(new Response("{}", { status: key === `Bearer ${right}` ? 200 : 401 }));
  };
  return sent;
}

test("a page without a key asks for one, and sends a refused one once", async () => {
  const sent = node("right");
  await assert.rejects(lines("/v1/stats/stream", new AbortController().signal).next());
  assert.equal(keyAsked.value, "missing");
  setKey("wrong");
  await assert.rejects(get("/v1/nodes"));
  assert.equal(keyAsked.value, "refused");
  await assert.rejects(get("/v1/nodes"));
  assert.equal(keyAsked.value, "refused");
  setKey("right");
  await get("/v1/nodes");
  assert.equal(keyAsked.value, "");
  assert.deepEqual(sent, [undefined, "Bearer wrong", undefined, "Bearer right"]);
});

test("a key that is typed is tried by one request, before the page uses it", async () => {
  const sent = node("right");
  setKey("");
  await tryKey("wrong");
  assert.equal(keyAsked.value, "refused");
  globalThis.fetch = () => Promise.resolve(new Response("{}", { status: 429 }));
  await tryKey("wrong");
  assert.equal(keyAsked.value, "refused");
  const later = node("right");
  await tryKey("right");
  assert.equal(keyAsked.value, "");
  await get("/v1/nodes");
  assert.deepEqual([sent, later], [["Bearer wrong"], ["Bearer right", "Bearer right"]]);
});

test("a late refusal of an older key does not take the present one away", async () => {
  node("right");
  setKey("old");
  const late = get("/v1/nodes", new AbortController().signal);
  setKey("right");
  await assert.rejects(late);
  assert.equal(keyAsked.value, "");
  await get("/v1/nodes", new AbortController().signal);
});

test("a stream that the node refuses fails with its reason", async () => {
  const refusal = { code: 2008, name: "SCOPE_MISSING", message: "The key lacks a scope.", cure: "Use another key.", temporary: false };
  globalThis.fetch = () => Promise.resolve(new Response(JSON.stringify(refusal), { status: 403 }));
  await assert.rejects(lines("/v1/events/stream", new AbortController().signal).next(), { code: 2008, title: "SCOPE_MISSING", message: "The key lacks a scope.", cure: "Use another key." });
});
