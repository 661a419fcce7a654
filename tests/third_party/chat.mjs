// Two users talk through a running node with clients that we did not write: npm `ws` and `protobufjs`.
//
//   node chat.mjs TRANSPORT ADDRESS USER_A TOKEN_A USER_B TOKEN_B
//
// TRANSPORT is ws-json, ws-proto or tcp-proto; with ws- the address may be a wss:// URL, whose authority is in the file
// NODE_EXTRA_CA_CERTS. Exits 0 when every answer was the expected one.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import net from "node:net";
import { fileURLToPath } from "node:url";

// The packages live where `cargo xtask test` installed them, away from this file.
const require = createRequire(`${process.env.TIDEGATE_NODE_DIR ?? process.cwd()}/`);
const WebSocket = require("ws");
const protobuf = require("protobufjs");

const ANSWER_MS = 10_000;
const schema = fileURLToPath(new URL("../../protocol/tidegate/v1/client.proto", import.meta.url));
const root = protobuf.loadSync(schema);
const ClientFrame = root.lookupType("tidegate.v1.ClientFrame");
const ServerFrame = root.lookupType("tidegate.v1.ServerFrame");

const encodeProto = (frame) => ClientFrame.fromObject(frame);
const readProto = (message) => ServerFrame.toObject(message, { longs: Number, enums: String });

/** Frames that came and were not asked for yet, with a wait that ends in an error rather than never. */
class Inbox {
  #frames = [];
  #waiting = [];
  put(frame) {
    const waiter = this.#waiting.shift();
    if (waiter) waiter(frame);
    else this.#frames.push(frame);
  }
  take(what) {
    if (this.#frames.length > 0) return Promise.resolve(this.#frames.shift());
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no answer in ${ANSWER_MS} ms: ${what}`)), ANSWER_MS);
      this.#waiting.push((frame) => (clearTimeout(timer), resolve(frame)));
    });
  }
  get left() {
    return this.#frames;
  }
}

async function openWebSocket(address, binary) {
  const protocol = binary ? "tidegate.v1.proto" : "tidegate.v1.json";
  const url = address.includes("://") ? address : `ws://${address}/`;
  const socket = new WebSocket(url, [protocol], { perMessageDeflate: false });
  const inbox = new Inbox();
  const closed = new Promise((resolve) => socket.once("close", resolve));
  const ponged = () => new Promise((resolve) => (socket.once("pong", resolve), socket.ping("tide")));
  socket.on("message", (data, isBinary) => {
    assert.equal(isBinary, binary, "frames keep the kind of the sub-protocol");
    inbox.put(binary ? readProto(ServerFrame.decode(data)) : JSON.parse(data.toString()));
  });
  await new Promise((resolve, reject) => (socket.once("open", resolve), socket.once("error", reject)));
  assert.equal(socket.protocol, protocol, "the server chooses the sub-protocol that was offered");
  const send = (frame) =>
    socket.send(binary ? ClientFrame.encode(encodeProto(frame)).finish() : JSON.stringify(frame));
  return { inbox, send, ponged, closed };
}

/** Where the first frame ends: its varint length and that many bytes; Infinity while the length is not complete. */
function frameEnd(buffered) {
  const last = buffered.subarray(0, 5).findIndex((byte) => byte < 0x80);
  if (last < 0) return Infinity;
  const reader = protobuf.Reader.create(buffered);
  return reader.uint32() + reader.pos;
}

async function openTcp(address) {
  const [host, port] = address.split(":");
  const socket = net.connect(Number(port), host);
  const inbox = new Inbox();
  const closed = new Promise((resolve) => socket.once("close", () => resolve(undefined)));
  let buffered = Buffer.alloc(0);
  socket.on("data", (data) => {
    buffered = Buffer.concat([buffered, data]);
    for (let end = frameEnd(buffered); end <= buffered.length; end = frameEnd(buffered)) {
      inbox.put(readProto(ServerFrame.decodeDelimited(buffered.subarray(0, end))));
      buffered = buffered.subarray(end);
    }
  });
  await new Promise((resolve, reject) => (socket.once("connect", resolve), socket.once("error", reject)));
  socket.write("TG/1\n");
  const send = (frame) => socket.write(ClientFrame.encodeDelimited(encodeProto(frame)).finish());
  return { inbox, send, ponged: async () => {}, closed };
}

const open = {
  "ws-json": (address) => openWebSocket(address, false),
  "ws-proto": (address) => openWebSocket(address, true),
  "tcp-proto": openTcp,
};

async function logIn(transport, address, token) {
  const client = await open[transport](address);
  client.send({ id: 1, hello: { version: 1, token, device: "third-party" } });
  const { id, welcome } = await client.inbox.take("Welcome");
  assert.equal(id, 1, "the reply echoes the id");
  assert.ok(welcome?.session && welcome.node && welcome.heartbeatMs > 0, "Welcome names session, node, heartbeat");
  assert.ok(!welcome.resumed, "nothing to resume");
  return client;
}

async function ask(client, frame, what) {
  client.send(frame);
  const reply = await client.inbox.take(what);
  assert.equal(reply.id, frame.id, `${what}: the reply echoes the id, got ${JSON.stringify(reply)}`);
  return reply;
}

async function takePush(client, expected) {
  const { id, push } = await client.inbox.take("Push");
  assert.ok(!id, "a push answers no request");
  assert.ok(push?.time > 0, "a push carries the time");
  const { conversation, seq, sender, msgId, content } = push;
  assert.deepEqual({ conversation, seq, sender, msgId, text: content.text }, expected);
  client.send({ ack: { conversation, seq } });
}

async function story(transport, address, a, tokenA, b, tokenB) {
  const [alice, bob] = await Promise.all([logIn(transport, address, tokenA), logIn(transport, address, tokenB)]);
  const conversation = `d:${[a, b].sort().join(":")}`;
  const first = { toUser: b, msgId: "m1", content: { text: "hi · 你好 · 👋" } };

  const { sendAck } = await ask(alice, { id: 2, send: first }, "SendAck");
  assert.deepEqual([sendAck?.conversation, sendAck?.msgId, sendAck?.seq], [conversation, "m1", 1]);
  assert.ok(sendAck.time > 0 && !sendAck.duplicate);
  await takePush(bob, { conversation, seq: 1, sender: a, msgId: "m1", text: first.content.text });

  const retry = (await ask(alice, { id: 3, send: { ...first, attempt: 1 } }, "SendAck of a retry")).sendAck;
  assert.deepEqual([retry?.seq, retry?.time, retry?.duplicate], [1, sendAck.time, true], "a retry gets the same ack");

  const other = { ...first, attempt: 1, content: { text: "something else" } };
  const { error } = await ask(alice, { id: 4, send: other }, "Error CONFLICT");
  assert.deepEqual([error?.code, error?.name, error?.temporary ?? false], [4000, "CONFLICT", false]);

  const answer = { conversation, msgId: "x9", content: { text: "hey" } };
  const second = (await ask(bob, { id: 2, send: answer }, "SendAck")).sendAck;
  assert.deepEqual([second?.seq, second?.duplicate ?? false], [2, false]);
  await takePush(alice, { conversation, seq: 2, sender: b, msgId: "x9", text: "hey" });

  await alice.ponged();
  assert.ok((await ask(alice, { id: 5, ping: {} }, "Pong")).pong, "a Ping is answered by a Pong");
  for (const client of [alice, bob]) {
    assert.ok((await ask(client, { id: 6, bye: {} }, "Done")).done, "a Bye with an id is answered");
    const { close } = await client.inbox.take("Close");
    assert.deepEqual([close?.code, close?.name, close?.reconnect], [3000, "BYE", "RECONNECT_NOW"]);
    assert.equal(await client.closed, transport.startsWith("ws-") ? 1000 : undefined, "the close code");
    assert.deepEqual(client.inbox.left, [], "nothing else came");
  }
}

const [transport, ...rest] = process.argv.slice(2);
if (!(transport in open) || rest.length !== 5) {
  console.error(`usage: chat.mjs ${Object.keys(open).join("|")} ADDRESS USER_A TOKEN_A USER_B TOKEN_B`);
  process.exit(2);
}
const deadline = setTimeout(() => {
  console.error(`${transport}: the conversation did not end in ${3 * ANSWER_MS} ms`);
  process.exit(1);
}, 3 * ANSWER_MS);
story(transport, ...rest).then(
  () => (clearTimeout(deadline), console.log(`${transport}: ok`), process.exit(0)),
  (error) => (console.error(`${transport}: ${error.stack}`), process.exit(1)),
);
