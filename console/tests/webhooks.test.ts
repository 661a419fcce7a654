import assert from "node:assert/strict";
import { test } from "node:test";
import { asidePath, webhookPath, type Webhook } from "../src/live/webhooks.ts";
import { answerWords, lagWords, stateTone, troubleWords, webhooksVerdict } from "../src/words/webhooks.ts";

const endpoint = (state: string, more: Partial<Webhook> = {}): Webhook => ({ id: "crm", url: "https://crm.internal/tg", types: ["tidegate.*"], state, node: "n1", ...more });

test("paths of endpoints and events are escaped", () => {
  assert.equal(webhookPath("crm", "/pause"), "/v1/webhooks/crm/pause");
  assert.equal(asidePath("crm", { conversation: "g:team", seq: 18, tries: 2 }), "/v1/webhooks/crm/aside/g%3Ateam/18");
});

test("the verdict names what does not take its events", () => {
  assert.deepEqual(webhooksVerdict([]), { tone: "", sentence: "No endpoint gets events." });
  assert.equal(webhooksVerdict([endpoint("active")]).sentence, "The endpoint takes its events.");
  assert.equal(webhooksVerdict([endpoint("active"), endpoint("active", { id: "b" })]).sentence, "All two endpoints take their events.");
  assert.deepEqual(webhooksVerdict([endpoint("paused"), endpoint("active", { id: "b" })]), { tone: "amber", sentence: "crm is paused, so events wait." });
  for (const state of ["failing", "disabled", "unusable"]) assert.deepEqual(webhooksVerdict([endpoint(state)]), { tone: "red", sentence: "crm takes no events. They wait, and none is lost." });
});

test("what waits and what went wrong is said in words", () => {
  assert.equal(lagWords(endpoint("active")), "–");
  assert.equal(lagWords(endpoint("active", { behind: 0 })), "nothing waits");
  assert.equal(lagWords(endpoint("failing", { behind: 1200, lagMs: 4200 })), "1,200 behind, 4.2 s");
  assert.equal(troubleWords(endpoint("active")), "");
  assert.equal(troubleWords(endpoint("active", { parkedCount: 1, asideCount: 2 })), "one conversation sent apart, two events set aside");
  assert.deepEqual(["active", "paused", "failing"].map(stateTone), ["chip", "chip amber", "chip red"]);
  assert.equal(answerWords("crm", "a test", { taken: true, status: 204 }), "crm has taken a test with status 204.");
  assert.equal(answerWords("crm", "a test", { taken: false, status: 500, error: "status 500" }), "crm has not taken a test: status 500.");
});
