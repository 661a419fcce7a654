import assert from "node:assert/strict";
import { test } from "node:test";
import { asked, curl, noteAsked } from "../src/live/asked.ts";

test("a command has the address in quotation marks, and a key only by name", () => {
  assert.equal(curl("/v1/nodes", "http://127.0.0.1:7801", false), "curl -s 'http://127.0.0.1:7801/v1/nodes'");
  assert.equal(curl("/v1/x?a=b&c=it's", "https://n1", true), `printf 'Authorization: Bearer %s' "$TIDEGATE_KEY" | curl -s -H @- 'https://n1/v1/x?a=b&c=it%27s'`);
});

test("each path is listed once, and only the newest are", () => {
  for (let turn = 0; turn < 2; turn += 1) for (let n = 0; n < 30; n += 1) noteAsked(`/v1/${n}`);
  assert.equal(asked.value.length, 20);
  assert.equal(new Set(asked.value).size, 20);
  assert.equal(asked.value.at(-1), "/v1/29");
});
