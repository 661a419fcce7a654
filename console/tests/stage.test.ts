import assert from "node:assert/strict";
import { test } from "node:test";
import { Stage } from "../src/try/stage.ts";

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
