// A WebSocket client with text frames for versions of Node that have none (before 22), as the option `webSocket` takes it.
import { createHash, randomBytes } from 'node:crypto';
import { request } from 'node:http';

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
const [CONTINUATION, TEXT, CLOSE, PING, PONG] = [0, 1, 8, 9, 10];
/** Longest message that is accepted. */
const MESSAGE_MAX = 16 * 1024 * 1024;
/** Time that the server has to close after the client has. */
const LINGER_MS = 1000;

/** Returns a frame of a client, which is masked. */
function frameOf(opcode, payload) {
  const { length } = payload;
  const size = length < 126 ? 0 : length < 65_536 ? 2 : 8;
  const head = Buffer.alloc(2 + size + 4);
  head[0] = 0x80 | opcode;
  head[1] = 0x80 | (size === 0 ? length : size === 2 ? 126 : 127);
  if (size === 2) head.writeUInt16BE(length, 2);
  if (size === 8) head.writeBigUInt64BE(BigInt(length), 2);
  const mask = randomBytes(4);
  mask.copy(head, 2 + size);
  return Buffer.concat([head, payload.map((byte, at) => byte ^ mask[at % 4])]);
}

/** Opens a WebSocket. */
export function openWebSocket(url, protocols) {
  const it = { onopen: null, onmessage: null, onclose: null, onerror: null, send, close };
  let socket;
  let isOver = false;
  let input = Buffer.alloc(0);
  let parts = [];

  const end = () => {
    if (isOver) return;
    isOver = true;
    socket?.destroy();
    it.onclose?.({});
  };
  const fail = () => {
    if (isOver) return;
    isOver = true;
    socket?.destroy();
    it.onerror?.({});
  };

  function send(text) {
    if (socket && !isOver) socket.write(frameOf(TEXT, Buffer.from(text)));
  }

  function close() {
    if (isOver) return;
    isOver = true;
    if (!socket) return call.destroy();
    socket.end(frameOf(CLOSE, Buffer.from([3, 232])));
    socket.resume();
    socket.setTimeout(LINGER_MS, () => socket.destroy());
  }

  /** Handles the frames that have arrived whole. */
  function read(chunk) {
    input = Buffer.concat([input, chunk]);
    while (!isOver && input.length >= 2) {
      const short = input[1] & 0x7f;
      const size = short < 126 ? 0 : short === 126 ? 2 : 8;
      if (input.length < 2 + size) return;
      const length = size === 0 ? short : size === 2 ? input.readUInt16BE(2) : Number(input.readBigUInt64BE(2));
      if (length > MESSAGE_MAX || input[1] & 0x80) return fail();
      if (input.length < 2 + size + length) return;
      const payload = input.subarray(2 + size, 2 + size + length);
      const [opcode, isLast] = [input[0] & 0x0f, (input[0] & 0x80) !== 0];
      input = input.subarray(2 + size + length);
      handle(opcode, isLast, payload);
    }
  }

  function handle(opcode, isLast, payload) {
    if (opcode === PING) return void socket.write(frameOf(PONG, payload));
    if (opcode === PONG) return;
    if (opcode === CLOSE) return end();
    if (opcode !== TEXT && opcode !== CONTINUATION) return fail();
    parts.push(payload);
    if (parts.reduce((sum, part) => sum + part.length, 0) > MESSAGE_MAX) return fail();
    if (!isLast) return;
    const data = Buffer.concat(parts).toString();
    parts = [];
    it.onmessage?.({ data });
  }

  const key = randomBytes(16).toString('base64');
  const headers = {
    connection: 'Upgrade',
    upgrade: 'websocket',
    'sec-websocket-version': '13',
    'sec-websocket-key': key,
    'sec-websocket-protocol': protocols.join(', '),
  };
  const call = request(url.replace(/^ws/, 'http'), { headers, agent: false });
  call.on('upgrade', (response, upgraded, head) => {
    socket = upgraded;
    socket.on('error', () => {});
    const accepted = createHash('sha1').update(key + GUID).digest('base64');
    const { 'sec-websocket-accept': accept, 'sec-websocket-protocol': protocol } = response.headers;
    if (isOver || accept !== accepted || !protocols.includes(protocol)) return isOver ? void socket.destroy() : fail();
    socket.setNoDelay(true);
    socket.on('close', end);
    it.onopen?.({});
    socket.on('data', (chunk) => isOver || read(chunk));
    if (head.length > 0) read(head);
  });
  call.on('response', (response) => {
    response.resume();
    fail();
  });
  call.on('error', fail);
  call.end();
  return it;
}
