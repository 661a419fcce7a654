import assert from "node:assert/strict";
import { test } from "node:test";
import { chainPath, type Chain } from "../src/live/chains.ts";
import { EventList, type CloudEvent } from "../src/live/cloudevents.ts";
import { feedPath, isAbout } from "../src/live/feed.ts";
import { groupAddress, groupsPath, leavingPath, membersPath } from "../src/live/groups.ts";
import { isId, isPrefix } from "../src/live/ids.ts";
import { appended, readOn } from "../src/parts/pages.ts";
import { blockedWords, chainSilentWords, isBlocked, resetDone } from "../src/words/chains.ts";
import { feedWords, ofNodeWords } from "../src/words/feed.ts";
import { leavingWords, memberCount, removedWords, roomCount, roomSilentWords, seesWords, settingWords } from "../src/words/groups.ts";

test("paths of groups, rooms and chains are escaped, and a text that begins no id reads nothing", () => {
  assert.deepEqual([groupsPath("", 50), groupsPath("te", 50), groupsPath("te am", 50)], ["/v1/groups?limit=50", "/v1/groups?limit=50&prefix=te", ""]);
  assert.deepEqual([membersPath("team", "", 50), membersPath("team", "owner", 50)], ["/v1/groups/team/members?limit=50", "/v1/groups/team/members?limit=50&role=owner"]);
  assert.equal(leavingPath({ room: "hall", user: "bob" }, ""), "/v1/rooms/hall/members/bob");
  assert.equal(leavingPath({ room: "hall", user: "bob", device: "my phone" }, "too loud"), "/v1/rooms/hall/members/bob?device=my+phone&reason=too+loud");
  assert.equal(chainPath("bob", "phone"), "/v1/users/bob/devices/phone/chain");
  assert.deepEqual([groupAddress("g:team"), groupAddress("d:alice:bob")], ["/groups?group=team", ""]);
  assert.deepEqual([isPrefix(""), isId(""), isId("a".repeat(64)), isId("a".repeat(65)), isId("a/b")], [true, false, true, false, false]);
});

test("a list is read on over empty pages, and its parts are joined", async () => {
  const asked: string[] = [];
  const pages = [{ groups: [], next: "A" }, { groups: [], next: "B/", silent: ["n2"] }, { groups: ["one"], next: "C" }, { groups: ["two"], silent: ["n2", "n3"] }];
  const read = (path: string) => {
    asked.push(path);
    return Promise.resolve(pages[asked.length - 1] ?? {});
  };
  const first = await readOn<string>("/v1/groups?limit=1", "groups", "", read);
  assert.deepEqual([first, asked], [{ items: ["one"], next: "C", silent: ["n2"] }, ["/v1/groups?limit=1", "/v1/groups?limit=1&cursor=A", "/v1/groups?limit=1&cursor=B%2F"]]);
  const second = await readOn<string>("/v1/rooms", "groups", first.next, read);
  assert.equal(asked.at(-1), "/v1/rooms?cursor=C");
  assert.deepEqual(appended(first, second), { items: ["one", "two"], next: "", silent: ["n2", "n3"] });
  let reads = 0;
  const endless = await readOn<string>("/v1/groups", "groups", "", () => Promise.resolve({ groups: [], next: String((reads += 1)) }));
  assert.deepEqual([endless, reads], [{ items: [], next: "10", silent: [] }, 10]);
});

test("settings that were not set have their defaults, and unknown ones their names", () => {
  const words = (set: Record<string, string>) => settingWords(set).map((it) => `${it.label} ${it.words}${it.isDefault ? " (default)" : ""}`);
  assert.deepEqual(words({}), ["New members see what follows their join (default)", "Messages are kept as long as the nodes keep them (default)", "Who may post all members (default)", "Notices for push providers of all messages (default)"]);
  assert.deepEqual(words({ history: "all", retention: "7d", post: "admins", push: "none", "storm.post": "admins" }), ["New members see the whole history", "Messages are kept for 7 days", "Who may post admins and owners", "Notices for push providers none", "storm.post admins"]);
});

test("counts of members and rooms read well", () => {
  assert.deepEqual([memberCount(1), memberCount(1200), seesWords(1), seesWords(1200)], ["1 member", "1,200 members", "everything", "from 1,200 on"]);
  assert.deepEqual([roomCount({ count: 1, nodes: 1 }), roomCount({ count: 12, nodes: 3 })], ["1 connection", "12 connections on three nodes"]);
  assert.deepEqual([roomSilentWords([]), roomSilentWords(["n2"])], ["", "n2 did not answer: its connections in rooms are not listed here."]);
});

test("a removal from a room says what it does and what came of it", () => {
  assert.match(leavingWords({ room: "hall", user: "bob" }), /^All connections of bob leave hall, on all nodes, and stay open\./);
  assert.match(leavingWords({ room: "hall", user: "bob", device: "phone" }), /^The connection of bob’s phone leaves hall, and stays open\./);
  assert.equal(removedWords({ room: "hall", user: "bob" }, { removed: 2, silent: [] }), "Two connections of bob have left hall.");
  assert.equal(removedWords({ room: "hall", user: "bob" }, { removed: 0, silent: ["n3"] }), "No connection of bob was in hall. n3 did not answer, so bob may still be in the room there.");
});

test("a chain says what it waits for, and what came of its reset", () => {
  const chain: Chain = { expected: "m-2", held: 0, blockedMs: 0, done: 1, skipped: 0, node: "n1", silent: [] };
  assert.deepEqual([blockedWords(chain), isBlocked(chain)], ["–", false]);
  assert.deepEqual([blockedWords({ ...chain, held: 2, blockedMs: 4200 }), isBlocked({ ...chain, held: 2 })], ["4.2 s", true]);
  assert.deepEqual([chainSilentWords([]), chainSilentWords(["n2", "n3"])], ["", "n2 and n3 did not answer: what they hold is not known."]);
  assert.equal(resetDone("bob", "phone", { chain: true, closed: 1, silent: [] }), "The chain of bob’s phone was removed, and its connection was closed.");
  assert.equal(resetDone("bob", "phone", { chain: false, closed: 0, silent: ["n2"] }), "No chain of bob’s phone was saved. n2 did not answer, so a connection there may go on.");
});

const event = (id: string, type = "tidegate.online", subject = "bob", data = {}): CloudEvent => ({ id, type, subject, time: "2026-01-02T14:00:00Z", data });

test("a list of events stands still while it is paused, counts what waits, and goes on with it", () => {
  const it = new EventList();
  const ids = () => it.list.value.map((one) => one.id);
  it.add([event("1"), event("2")]);
  it.toggle();
  it.add([event("3")]);
  it.add([event("4")]);
  assert.deepEqual([ids(), it.heldBack.value], [["2", "1"], 2]);
  it.toggle();
  it.add([event("4"), event("5")]);
  assert.deepEqual([ids(), it.heldBack.value], [["5", "4", "3", "2", "1"], 0]);
  it.clear();
  assert.deepEqual(ids(), []);
});

test("events of the feed are said in words, and found by user and conversation", () => {
  const say = (type: string, data: object) => feedWords(event("x", `tidegate.${type}`, "g:team", data));
  assert.equal(say("message.accepted", { seq: 18, sender: "ann" }), "has message 18 from ann");
  assert.equal(say("message.accepted", { seq: 18, gone: "recalled" }), "has message 18, whose content is recalled");
  assert.equal(say("message.edited", { seq: 21, of: 18, by: "ann" }), "has 21: message 18 was edited by ann");
  assert.equal(say("group.created", { seq: 1, users: ["ann", "bob"] }), "was created with ann and bob");
  assert.equal(say("group.changed", { seq: 2, settings: { history: "all" } }), "was changed: history");
  assert.equal(say("member.joined", { seq: 3, users: ["a", "b", "c", "d", "e"], by: "ann" }), "has 3: a, b, c and 2 more joined by ann");
  assert.equal(say("member.role", { seq: 4, users: ["bob"], role: "admin" }), "has 4: bob changed in role to admin");
  assert.equal(say("node.draining", { node: "n2" }), "gets no new clients");
  assert.equal(say("partition.moved", { partition: 7, from: { node: "n2" } }), "owns partition 7, which n2 owned before");
  assert.equal(say("message.invented", {}), "");
  const sent = event("x", "tidegate.message.accepted", "g:team", { sender: "ann", users: ["bob"] });
  assert.deepEqual(["team", "ann", "bob", "carol"].map((text) => isAbout(sent, text)), [true, true, true, false]);
  assert.deepEqual([feedPath(""), feedPath("messages")], ["/v1/events/stream?types=tidegate.*", "/v1/events/stream?types=tidegate.message.accepted"]);
});

test("a list of one node's events names the nodes whose events it lacks", () => {
  assert.equal(ofNodeWords("n1", []), "");
  assert.equal(ofNodeWords("n1", ["n2", "n3"]), "These are the logins, reads, chains and requests of n1. Those of n2 and n3 are on their own consoles, and all are in the topic of events.");
});
