import assert from "node:assert/strict";
import { test } from "node:test";
import { hueAt, hueClass, secondClass, withSlots } from "../src/charts/hues.ts";
import { nameNodes, nodeClass, nodeHue } from "../src/live/boot.ts";

const NAMES = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"];
const classes = (names: readonly string[]) => {
  const slots = withSlots(new Map(), names);
  return names.map((name) => hueClass(hueAt(slots.get(name))));
};

test("a node has the hue of its number, and hues repeat with a pattern", () => {
  assert.deepEqual(classes(NAMES), ["of-0", "of-1", "of-2", "of-0 turn-1", "of-1 turn-1", "of-2 turn-1", "of-0 turn-2"]);
  assert.equal(new Set(["tidegate-0", "tidegate-1", "tidegate-2"].map((name) => hueAt(withSlots(new Map(), [name]).get(name))?.index)).size, 3);
});

test("a node has one colour on all pages, whichever other nodes they know", () => {
  for (const known of [["n3", "n2"], ["n2"], ["n1", "n2", "n3"], ["n9", "n2", "n7", "n3"]]) {
    assert.equal(hueClass(hueAt(withSlots(new Map(), known).get("n2"))), "of-1", known.join(" "));
  }
  const [once, twice] = [["oslo", "turin"], ["turin", "oslo", "n5"]].map((names) => withSlots(new Map(), names));
  for (const name of ["oslo", "turin"]) assert.equal(once?.get(name), twice?.get(name), name);
});

test("nodes that ask for the same colour have different ones, in the order of their names", () => {
  const slots = withSlots(new Map(), ["us-1", "eu-1", "n1"]);
  assert.deepEqual([...slots], [["eu-1", 0], ["n1", 1], ["us-1", 2]]);
  assert.deepEqual(withSlots(slots, ["ap-1"]).get("us-1"), 2, "a new node takes nothing away");
  const many = withSlots(new Map(), Array.from({ length: 40 }, (_, index) => `node-${index}`));
  assert.deepEqual([many.size, new Set(many.values()).size], [40, 9]);
});

test("a node that is not there any more has the colour of no other node", () => {
  const at = (name: string) => hueAt(withSlots(new Map(), NAMES).get(name));
  assert.deepEqual([hueClass(at("n9")), secondClass(at("n9")), secondClass(at("n5"))], ["of-none", "to-none", "to-1"]);
  nameNodes(["n1"]);
  assert.deepEqual([nodeClass("n1"), nodeClass("n2"), nodeHue("n2")], ["of-0", "of-none", undefined]);
  nameNodes(["n2"]);
  assert.equal(nodeClass("n2"), "of-1", "it has come back");
  nameNodes(["n1"]);
  assert.equal(nodeClass("n2"), "of-1", "it left while the page was open, which keeps its colour");
});
