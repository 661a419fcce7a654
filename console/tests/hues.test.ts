import assert from "node:assert/strict";
import { test } from "node:test";
import { hueClass, hueOf, secondClass } from "../src/charts/hues.ts";
import { nameNodes, nodeClass, nodeHue } from "../src/live/boot.ts";

const NAMES = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"];

test("a node has a hue of its place, and repeats it with a pattern", () => {
  assert.deepEqual(NAMES.map((name) => hueClass(hueOf(NAMES, name))), ["of-0", "of-1", "of-2", "of-0 turn-1", "of-1 turn-1", "of-2 turn-1", "of-0 turn-2"]);
});

test("a node that is not there any more has the colour of no other node", () => {
  assert.deepEqual([hueClass(hueOf(NAMES, "n9")), secondClass(hueOf(NAMES, "n9")), secondClass(hueOf(NAMES, "n5"))], ["of-none", "to-none", "to-1"]);
  nameNodes(["n1"]);
  assert.deepEqual([nodeClass("n1"), nodeClass("n2"), nodeHue("n2")], ["of-0", "of-none", undefined]);
  nameNodes(["n2"]);
  assert.equal(nodeClass("n2"), "of-1", "it has come back");
  nameNodes(["n1"]);
  assert.equal(nodeClass("n2"), "of-1", "it left while the page was open, which keeps its colour");
});
