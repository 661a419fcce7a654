import assert from "node:assert/strict";
import { test } from "node:test";
import { allows, boot, type Boot } from "../src/live/boot.ts";
import { postOn, reaches } from "../src/live/forward.ts";

test("a request for another node goes through that of the page", async () => {
  const asked: [string, string, unknown][] = [];
  globalThis.fetch = async (path, init) => {
    asked.push([String(path), init?.method ?? "", init?.body ? JSON.parse(String(init.body)) : undefined]);
    return new Response("{}");
  };
  boot.value = { node: "n1", features: ["forward"], console: "full" } as unknown as Boot;
  await postOn("n1", "/v1/drain", undefined, "DELETE");
  await postOn("", "/v1/dev/cut", { user: "bob" });
  await postOn("n2", "/v1/dev/cut", { user: "bob" });
  await postOn("n2", "/v1/drain");
  assert.deepEqual(asked, [
    ["/v1/drain", "DELETE", undefined],
    ["/v1/dev/cut", "POST", { user: "bob" }],
    ["/v1/dev/forward", "POST", { node: "n2", method: "POST", path: "/v1/dev/cut", body: { user: "bob" } }],
    ["/v1/dev/forward", "POST", { node: "n2", method: "POST", path: "/v1/drain" }],
  ]);
  assert.equal(reaches("n2"), true);
  boot.value = { node: "n1", features: [], console: "full" } as unknown as Boot;
  assert.deepEqual([reaches("n1"), reaches("n2")], [true, false]);
});

test("a console that only reads reaches no other node", () => {
  boot.value = { node: "n1", features: ["forward", "stats"], console: "read" } as unknown as Boot;
  assert.deepEqual([reaches("n1"), reaches("n2"), allows("stats"), allows("forward")], [true, false, true, false]);
});
