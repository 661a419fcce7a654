import assert from "node:assert/strict";
import { test } from "node:test";
import { Stage } from "../src/try/stage.ts";
import { STORY, nextLine } from "../src/words/lines.ts";

/** A stage of two people who are not connected, on a page that is never drawn. */
function stage(): Stage {
  Object.assign(globalThis, { window: { setTimeout: () => 1 }, requestAnimationFrame: () => 1 });
  return new Stage("pair");
}

test("the tint of a person whose node died ends before its next hello", () => {
  const it = stage();
  const [alice, bob] = it.people;
  assert.ok(alice && bob);
  const arrives = (person: typeof bob, raw: string) => person.tap.report({ connection: 1 } as never, "out", raw, true);
  it.untilHello(bob, "red");
  arrives(alice, '{"id":1,"hello":{}}');
  arrives(bob, '{"id":1,"hello":{}}');
  arrives(bob, '{"id":2,"sync":{}}');
  const [before, hello, sync] = it.wire.items.map((item) => it.wire.cover(1, item.key)?.tone);
  assert.deepEqual([before, hello, sync], ["red", undefined, undefined]);
});

test("people whom another tab took over are named, others who are closed are not", () => {
  const it = stage();
  const [alice, bob] = it.people;
  assert.ok(alice && bob);
  alice.state.value = { name: "closed", error: { name: "REPLACED" } } as typeof alice.state.value;
  bob.state.value = { name: "closed" } as typeof bob.state.value;
  assert.deepEqual(it.replaced, ["alice"]);
});

test("a finding about the hidden message is planted, another one is not", () => {
  const it = stage();
  it.recorder.hidden.add("bob a-2");
  assert.deepEqual([it.isPlanted("a-2"), it.isPlanted("a-1"), it.isPlanted("")], [true, false, false]);
});

test("a line of the page is at least eight messages from the same text, whoever said it", () => {
  const all = STORY.flat();
  assert.equal(new Set(all).size, all.length);
  const texts: string[] = [];
  let [told, state] = [0, 7];
  for (let message = 0; message < 400; message += 1) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    // A person may type such a line as well, and other messages come in between.
    const typed = state % 5 === 0 ? (all[(state >>> 8) % all.length] ?? "") : state % 5 === 1 ? `typed ${message}` : undefined;
    const line = typed ?? nextLine(told++, state & 256 ? 1 : 0, texts);
    if (typed === undefined) assert.ok(line !== "" && !texts.slice(-8).includes(line), `${line} again after ${texts.slice(-8).join(" | ")}`);
    texts.push(line);
  }
});

test("two people whose breaks begin at once do not say the same", () => {
  const it = stage();
  const [alice, bob] = it.people;
  assert.ok(alice && bob);
  for (const person of [alice, bob]) Object.defineProperty(person, "client", { value: { send: () => new Promise(() => {}) } });
  for (const person of [alice, bob, alice, alice, bob, bob, bob, alice]) void it.tell(person);
  const shown = [...it.messages.values()];
  assert.equal(new Set(shown.map(({ text }) => text)).size, 8);
  void it.say(alice, "typed");
  assert.deepEqual([...it.messages.values()].map(({ isOfPage }) => isOfPage), [...Array.from({ length: 8 }, () => true), false]);
});

test("the check mark waits until everybody is connected and every history was pulled", async () => {
  const it = stage();
  const pulls: string[] = [];
  const live = new Set(["alice"]);
  let answer = () => {};
  for (const person of it.people) {
    Object.defineProperty(person, "isLive", { get: () => live.has(person.name) });
    person.tap.request = (kind) => {
      pulls.push(`${person.name} ${kind}`);
      return person.name === "bob" ? new Promise((resolve) => (answer = () => resolve())) : Promise.resolve();
    };
  }
  Object.assign(it, { base: 0 });
  assert.equal(await it.check(), false);
  assert.deepEqual([pulls, it.isChecked.value], [[], false], "bob is away");
  live.add("bob");
  const checked = it.check();
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.deepEqual([pulls.sort(), it.isChecked.value], [["alice pull", "bob pull"], false], "bob’s history is under way");
  answer();
  assert.equal(await checked, true);
  assert.equal(it.isChecked.value, true);
});
