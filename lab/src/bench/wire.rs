//! The wire of the bench: builds its frames and checks those that come, without allocation on hot paths.

use serde::{Deserialize, Serialize};

/// Transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BenchTransport {
    /// `TG/1`, then protobuf frames with a varint length.
    Tcp,
    /// WebSocket, one protobuf frame a binary message.
    Ws,
}

impl BenchTransport {
    /// Returns the name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Ws => "WebSocket",
        }
    }
}

/// Field numbers of `ServerFrame.body` that the bench acts on.
pub(super) mod kind {
    pub(crate) const PUSH: u32 = 2;
    pub(crate) const SEND_ACK: u32 = 3;
    pub(crate) const ERROR: u32 = 4;
    pub(crate) const PONG: u32 = 5;
    pub(crate) const WELCOME: u32 = 6;
    pub(crate) const DONE: u32 = 7;
    pub(crate) const BEHIND: u32 = 8;
    pub(crate) const SHED: u32 = 9;
    pub(crate) const GO_AWAY: u32 = 11;
    pub(crate) const CLOSE: u32 = 12;
    pub(crate) const PAGE: u32 = 13;
    pub(crate) const CONVERSATION_STATE: u32 = 14;
    pub(crate) const SYNC_END: u32 = 15;
    pub(crate) const PING: u32 = 18;
}

/// Key with which every client frame is masked: the cost of unmasking does not depend on it.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// Length above which the parser must have lost its position.
const FRAME_MAX: usize = 1 << 20;

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_number(out: &mut Vec<u8>, field: u32, value: u64) {
    put_varint(out, u64::from(field << 3));
    put_varint(out, value);
}

fn put_bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    put_varint(out, u64::from(field << 3 | 2));
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn request(id: u64, field: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 16);
    if id != 0 {
        put_number(&mut out, 1, id);
    }
    put_bytes(&mut out, field, body);
    out
}

/// `Hello{version: 1, token, device}`.
pub(super) fn hello(id: u64, token: &str, device: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(token.len() + 24);
    put_number(&mut body, 1, 1);
    put_bytes(&mut body, 2, token.as_bytes());
    put_bytes(&mut body, 3, device.as_bytes());
    request(id, 2, &body)
}

fn content(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + 4);
    put_bytes(&mut out, 2, data);
    out
}

/// `Send{conversation, msg_id, content.data}`.
pub(super) fn send(id: u64, conversation: &str, msg_id: &str, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(data.len() + 96);
    put_bytes(&mut body, 1, conversation.as_bytes());
    put_bytes(&mut body, 3, msg_id.as_bytes());
    put_bytes(&mut body, 6, &content(data));
    request(id, 3, &body)
}

/// `Ack{conversation, seq}`.
pub(super) fn ack(conversation: &str, seq: u64) -> Vec<u8> {
    let mut body = Vec::with_capacity(conversation.len() + 16);
    put_bytes(&mut body, 1, conversation.as_bytes());
    put_number(&mut body, 2, seq);
    request(0, 4, &body)
}

/// `Sync{}`.
pub(super) fn sync(id: u64) -> Vec<u8> {
    request(id, 7, &[])
}

/// `Pull{conversation, cursor, limit, DIRECTION_FORWARD}`.
pub(super) fn pull(id: u64, conversation: &str, cursor: u64, limit: u64) -> Vec<u8> {
    let mut body = Vec::with_capacity(conversation.len() + 24);
    put_bytes(&mut body, 1, conversation.as_bytes());
    put_number(&mut body, 2, cursor);
    put_number(&mut body, 4, limit);
    put_number(&mut body, 5, 2);
    request(id, 8, &body)
}

/// `ServerFrame{send_ack}` with only its seq.
pub(super) fn send_ack(id: u64, seq: u64) -> Vec<u8> {
    let mut body = Vec::with_capacity(16);
    put_number(&mut body, 3, seq);
    request(id, kind::SEND_ACK, &body)
}

/// `Join{room}`.
pub(super) fn join(id: u64, room: &str) -> Vec<u8> {
    let mut body = Vec::new();
    put_bytes(&mut body, 1, room.as_bytes());
    request(id, 10, &body)
}

/// `Ping{}`.
pub(super) fn ping(id: u64) -> Vec<u8> {
    request(id, 5, &[])
}

/// `Pong{}`, the answer to a ping of the server.
pub(super) fn pong() -> Vec<u8> {
    request(0, 13, &[])
}

/// A message as the broker would push it, which raw servers replay.
pub(super) struct PushParts<'a> {
    pub(super) conversation: &'a str,
    pub(super) seq: u64,
    pub(super) sender: &'a str,
    pub(super) msg_id: &'a str,
    pub(super) time: u64,
    pub(super) data: &'a [u8],
}

/// `ServerFrame{push}`.
pub(super) fn push(parts: &PushParts<'_>) -> Vec<u8> {
    let mut body = Vec::with_capacity(parts.data.len() + 96);
    put_bytes(&mut body, 1, parts.conversation.as_bytes());
    put_number(&mut body, 2, parts.seq);
    put_bytes(&mut body, 3, parts.sender.as_bytes());
    put_bytes(&mut body, 4, parts.msg_id.as_bytes());
    put_number(&mut body, 5, parts.time);
    put_bytes(&mut body, 6, &content(parts.data));
    request(0, kind::PUSH, &body)
}

fn ws_header(out: &mut Vec<u8>, opcode: u8, len: usize, masked: bool) {
    let bit = if masked { 0x80 } else { 0 };
    out.push(0x80 | opcode);
    match len {
        0..=125 => out.push(bit | len as u8),
        126..=0xffff => {
            out.push(bit | 126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(bit | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

fn ws_masked(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    ws_header(out, opcode, payload.len(), true);
    out.extend_from_slice(&MASK);
    out.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

/// Appends a frame as a client sends it.
pub(super) fn put_client(transport: BenchTransport, payload: &[u8], out: &mut Vec<u8>) {
    match transport {
        BenchTransport::Tcp => {
            put_varint(out, payload.len() as u64);
            out.extend_from_slice(payload);
        }
        BenchTransport::Ws => ws_masked(out, 2, payload),
    }
}

/// Appends the answer to a WebSocket ping.
pub(super) fn put_ws_pong(payload: &[u8], out: &mut Vec<u8>) {
    ws_masked(out, 10, payload);
}

/// Appends a frame as the server sends it.
pub(super) fn put_server(transport: BenchTransport, payload: &[u8], out: &mut Vec<u8>) {
    match transport {
        BenchTransport::Tcp => put_varint(out, payload.len() as u64),
        BenchTransport::Ws => ws_header(out, 2, payload.len(), false),
    }
    out.extend_from_slice(payload);
}

/// Returns the WebSocket upgrade of a client; its key is constant because nothing depends on it.
pub(super) fn upgrade(address: &str) -> Vec<u8> {
    format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Protocol: tidegate.v1.proto\r\n\r\n"
    )
    .into_bytes()
}

/// Error for bytes that the wire does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed: {0}")]
pub(super) struct Malformed(pub(super) &'static str);

/// A unit of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unit<'a> {
    /// A protobuf frame.
    Frame(&'a [u8]),
    /// A WebSocket ping.
    WsPing(&'a [u8]),
    /// A WebSocket pong that no ping asked for.
    WsPong,
    /// A WebSocket close.
    WsClose,
}

fn get_varint(buf: &[u8]) -> Result<Option<(u64, usize)>, Malformed> {
    let mut value = 0u64;
    for (at, byte) in buf.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at).min(63);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + 1)));
        }
    }
    if buf.len() >= 10 { Err(Malformed("a varint of more than ten bytes")) } else { Ok(None) }
}

/// Takes the next unit off `buf`. Returns it with its length, or `None` when it is incomplete.
pub(super) fn next(transport: BenchTransport, buf: &[u8]) -> Result<Option<(Unit<'_>, usize)>, Malformed> {
    match transport {
        BenchTransport::Tcp => {
            let Some((len, head)) = get_varint(buf)? else { return Ok(None) };
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            if len > FRAME_MAX {
                return Err(Malformed("a frame of more than 1 MiB"));
            }
            Ok(buf.get(head..head + len).map(|payload| (Unit::Frame(payload), head + len)))
        }
        BenchTransport::Ws => next_ws(buf),
    }
}

fn next_ws(buf: &[u8]) -> Result<Option<(Unit<'_>, usize)>, Malformed> {
    let [first, second, rest @ ..] = buf else { return Ok(None) };
    if second & 0x80 != 0 {
        return Err(Malformed("a masked frame from the server"));
    }
    let (len, head) = match (second & 0x7f, rest) {
        (126, [a, b, ..]) => (usize::from(u16::from_be_bytes([*a, *b])), 4),
        (127, [_, _, _, _, a, b, c, d, ..]) => (u32::from_be_bytes([*a, *b, *c, *d]) as usize, 10),
        (126 | 127, _) => return Ok(None),
        (short, _) => (usize::from(short), 2),
    };
    if len > FRAME_MAX {
        return Err(Malformed("a frame of more than 1 MiB"));
    }
    let Some(payload) = buf.get(head..head + len) else { return Ok(None) };
    let unit = match first {
        0x82 => Unit::Frame(payload),
        0x88 => Unit::WsClose,
        0x89 => Unit::WsPing(payload),
        0x8a => Unit::WsPong,
        _ => return Err(Malformed("a WebSocket frame that is no whole binary message")),
    };
    Ok(Some((unit, head + len)))
}

/// A protobuf field: its number and its value.
enum Field<'a> {
    Number(u32, u64),
    Bytes(u32, &'a [u8]),
}

/// Takes one field off `buf`. Fixed-width fields do not occur in the schema.
fn field<'a>(buf: &mut &'a [u8]) -> Option<Field<'a>> {
    let (tag, used) = get_varint(buf).ok()??;
    *buf = &buf[used..];
    let (value, used) = get_varint(buf).ok()??;
    *buf = &buf[used..];
    let number = u32::try_from(tag >> 3).ok()?;
    match tag & 7 {
        0 => Some(Field::Number(number, value)),
        2 => {
            let (bytes, rest) = buf.split_at_checked(usize::try_from(value).ok()?)?;
            *buf = rest;
            Some(Field::Bytes(number, bytes))
        }
        _ => None,
    }
}

/// A `ServerFrame`: the kind and the bytes of its body. An empty frame has kind 0.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct View<'a> {
    pub(super) id: u64,
    pub(super) kind: u32,
    pub(super) body: &'a [u8],
}

/// Reads a `ServerFrame`.
pub(super) fn view(mut frame: &[u8]) -> Option<View<'_>> {
    let mut view = View::default();
    while !frame.is_empty() {
        match field(&mut frame)? {
            Field::Number(1, id) => view.id = id,
            Field::Number(..) => {}
            Field::Bytes(kind, body) => (view.kind, view.body) = (kind, body),
        }
    }
    Some(view)
}

fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Returns the bytes that a frame with this id and body takes on the wire.
pub(super) fn framed_len(transport: BenchTransport, view: &View<'_>) -> usize {
    let id = if view.id == 0 { 0 } else { 1 + varint_len(view.id) };
    let body = varint_len(u64::from(view.kind) << 3) + varint_len(view.body.len() as u64) + view.body.len();
    let frame = id + body;
    frame
        + match (transport, frame) {
            (BenchTransport::Tcp, _) => varint_len(frame as u64),
            (BenchTransport::Ws, 0..=125) => 2,
            (BenchTransport::Ws, _) => 4,
        }
}

/// The verified parts of a `Push`. `data` is empty when there is no `content.data`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PushView<'a> {
    pub(super) seq: u64,
    pub(super) data: &'a [u8],
}

/// Reads a `Push`.
pub(super) fn push_view(mut body: &[u8]) -> Option<PushView<'_>> {
    let mut view = PushView::default();
    while !body.is_empty() {
        match field(&mut body)? {
            Field::Number(2, seq) => view.seq = seq,
            Field::Bytes(6, mut content) => {
                while !content.is_empty() {
                    if let Field::Bytes(2, data) = field(&mut content)? {
                        view.data = data;
                    }
                }
            }
            _ => {}
        }
    }
    Some(view)
}

/// A `Page`: its entries, and whether it names seqs that are gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PageView<'a> {
    pub(super) entries: Vec<PushView<'a>>,
    pub(super) has_losses: bool,
}

/// Reads a `Page`.
pub(super) fn page_view(mut body: &[u8]) -> Option<PageView<'_>> {
    let mut view = PageView::default();
    while !body.is_empty() {
        match field(&mut body)? {
            Field::Bytes(2, push) => view.entries.push(push_view(push)?),
            Field::Bytes(3 | 4, _) | Field::Number(3, _) => view.has_losses = true,
            _ => {}
        }
    }
    Some(view)
}

/// Returns the conversation that a `Behind` or a `Page` names.
pub(super) fn conversation_of(mut body: &[u8]) -> Option<&str> {
    while !body.is_empty() {
        if let Field::Bytes(1, name) = field(&mut body)? {
            return std::str::from_utf8(name).ok();
        }
    }
    None
}

/// Returns a number field of a small message, 0 when absent: `Shed.count`, `Error.temporary`, `Close.after_ms`.
pub(super) fn number_of(mut body: &[u8], wanted: u32) -> u64 {
    while let Some(found) = field(&mut body) {
        if let Field::Number(number, value) = found
            && number == wanted
        {
            return value;
        }
    }
    0
}

/// Returns the code and texts of an `Error` or a `Close`, for people.
pub(super) fn reason(mut body: &[u8]) -> String {
    let (mut code, mut text) = (0, String::new());
    while let Some(found) = field(&mut body) {
        match found {
            Field::Number(1, value) => code = value,
            Field::Bytes(2 | 3, bytes) => {
                text.push(' ');
                text.push_str(&String::from_utf8_lossy(bytes));
            }
            _ => {}
        }
    }
    format!("{code}{text}")
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
