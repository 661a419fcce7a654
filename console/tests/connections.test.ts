import assert from "node:assert/strict";
import { test } from "node:test";
import { kickPath, listPath, type Connection } from "../src/live/connections.ts";
import { ago, blockWords, bytes, endedWords, kickQuestion, kickWords, listWords, matches, revocationWords, revokeWords, silentWords, transportWords } from "../src/words/connections.ts";

const it: Connection = { id: "n1.a.1", user: "Alice", device: "phone", node: "n1", address: "10.0.0.7", transport: "tcp-proto", sinceMs: 0, outboxBytes: 0, window: 0, expiresMs: null };

test("lists and kicks are asked for with what was chosen, and with nothing else", () => {
  assert.equal(listPath({ user: "", node: "", sort: "", limit: 200 }), "/v1/connections?limit=200");
  assert.equal(listPath({ user: "", node: "n2", sort: "outbox", limit: 1000 }), "/v1/connections?node=n2&sort=outbox&limit=1000");
  assert.equal(listPath({ user: "a.b", node: "n2", sort: "outbox", limit: 1000 }), "/v1/users/a.b/connections");
  assert.equal(kickPath({ user: "bob", device: "phone", id: "n1.a.1" }, "a & b", false), "/v1/connections/n1.a.1?reason=a+%26+b&reconnect=never");
  assert.equal(kickPath({ user: "bob", device: "phone" }, "", true), "/v1/users/bob/connections?device=phone&reconnect=after");
  assert.equal(kickPath({ user: "bob" }, "", false), "/v1/users/bob/connections?reconnect=never");
});

test("a connection matches by any of its names", () => {
  for (const text of ["ali", "PHONE", "n1", "10.0", "n1.a.1"]) assert.ok(matches(it, text), text);
  assert.ok(!matches(it, "bob"));
});

test("a list names what it leaves out", () => {
  const all = { connections: [it], total: 1, silent: [] };
  assert.equal(listWords(all, 1, "", false), "");
  assert.equal(listWords(all, 0, "x", false), "");
  assert.equal(listWords({ ...all, total: 4200 }, 1, "", false), "These are the 1 newest of 4,200.");
  assert.equal(listWords({ ...all, total: 4200 }, 0, "x", true), "No connections of the 1 with the most bytes waiting of 4,200 match. The others were not searched.");
  assert.equal(silentWords([]), "");
  assert.equal(silentWords(["n2", "n3"]), "n2 and n3 did not answer: their connections are not listed here, and may go on.");
});

test("ended connections differ from those that may go on", () => {
  assert.equal(endedWords({ closed: 2, open: [] }, "kick"), "Two connections were closed.");
  assert.equal(endedWords({ closed: 0, open: ["n3"] }, "kick"), "No connection was closed. n3 did not answer, so connections there may go on.");
  assert.equal(endedWords({ closed: 1, open: [] }, "revoke"), "Revoked. One connection was closed.");
  assert.equal(endedWords({ closed: 0, open: ["n2", "n3"] }, "revoke"), "Revoked. No connection was closed so far; n2 and n3 have not confirmed, and refuse these tokens within two seconds.");
});

test("a question names what happens and what does not", () => {
  assert.equal(kickQuestion({ user: "bob", device: "phone", id: "n1.a.1" }), "Kick bob’s phone?");
  assert.equal(kickQuestion({ user: "bob" }), "Kick all devices of bob?");
  assert.match(kickWords({ user: "bob" }, false), /^All connections of bob, on all nodes, are closed with KICKED \(3501\).+stays away.+Its token stays valid/);
  assert.match(kickWords({ user: "bob", id: "n1.a.1", node: "n1" }, true), /^Its connection to n1 is closed .+ after five seconds/);
  assert.match(revokeWords("bob", { before: "now" }), /^All tokens of bob that were issued until now are refused .+the connections that use them end/);
  assert.match(revokeWords("bob", { device: "phone" }), /used by the device phone, are refused/);
  assert.match(revokeWords("bob", { device: "phone" }), /without the claim dev still logs in under another device name/);
  assert.match(revokeWords("bob", { tokenId: "t" }), /^The token of bob with this id is refused .+that use it end/);
});

test("revocations, blocks, times and sizes in words", () => {
  const time = (ms: number) => `T${ms}`;
  assert.equal(revocationWords({ before: 5, tokenId: null, device: null, atMs: 5, untilMs: 9 }, time), "All tokens, issued before T5. In force until T9.");
  assert.equal(revocationWords({ before: 5, tokenId: null, device: "phone", atMs: 5, untilMs: null }, time), "Tokens used by phone, issued before T5. In force for as long as tokens may live.");
  assert.equal(blockWords("bob", "eve", true, false, []), "bob already blocked eve.");
  assert.equal(blockWords("bob", "eve", false, true, ["n2", "n3"]), "bob no longer blocks eve. n2 and n3 follow within two seconds.");
  assert.deepEqual([59_000, 61_000, 7_300_000, 200_000_000, -5].map(ago), ["59 s", "1 min", "2 h", "2 d", "0 s"]);
  assert.deepEqual([0, 999, 1500, 2_500_000].map(bytes), ["0", "999 B", "1.5 KB", "2.5 MB"]);
  assert.deepEqual(["tcp-json", "quic"].map(transportWords), ["TCP, JSON", "quic"]);
});
