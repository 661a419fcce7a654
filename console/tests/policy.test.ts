import assert from "node:assert/strict";
import { test } from "node:test";
import type { Boot } from "../src/live/boot.ts";
import { keepPolicy, mayConnect, noteRefused, unreachable } from "../src/live/policy.ts";
import { unreachedWords } from "../src/words/nodes.ts";

const boot = (own: string, ...peers: [string, string][]) =>
  ({ node: "n1", clients: { ws: [own] }, peers: peers.map(([node, address]) => ({ node, ws: [address], admin: "" })) }) as unknown as Boot;

test("a node that came after the page is named, and nobody tries to connect to it", () => {
  assert.deepEqual([unreachable(undefined), mayConnect("ws://127.0.0.1:7800")], [[], true]);
  keepPolicy(boot("ws://127.0.0.1:7800", ["n2", "ws://127.0.0.1:7810"]));
  assert.deepEqual(unreachable(boot("ws://127.0.0.1:7800", ["n2", "ws://127.0.0.1:7810"])), []);
  assert.deepEqual(unreachable(boot("ws://127.0.0.1:7800")), [], "a node that left is no node to reach");
  const joined = boot("ws://127.0.0.1:7800", ["n2", "ws://127.0.0.1:7999"], ["n4", "ws://127.0.0.1:7830/v1/ws"]);
  keepPolicy(joined);
  assert.deepEqual(unreachable(joined), [{ node: "n2", isNew: false }, { node: "n4", isNew: true }], "only a load changes the policy");
  assert.deepEqual(["ws://127.0.0.1:7810/v1/ws", "ws://127.0.0.1:7830", "ws://127.0.0.1:7999"].map(mayConnect), [true, false, false]);
  assert.equal(unreachedWords(unreachable(joined)), "n4 joined after this page was loaded and n2’s address has changed since this page was loaded, and the browser lets nobody here connect to them. Reloading begins the conversation again.");
  assert.match(unreachedWords([{ node: "n4", isNew: true }]), /^n4 joined after this page was loaded, and the browser lets nobody here connect to it\./);
});

test("what the browser refuses counts, whatever the first answer said", () => {
  const it = boot("ws://127.0.0.1:7800", ["n2", "ws://127.0.0.1:7810"]);
  noteRefused("ws://127.0.0.1:7810/v1/ws");
  assert.deepEqual([mayConnect("ws://127.0.0.1:7810"), unreachable(it)], [false, [{ node: "n2", isNew: false }]]);
});
