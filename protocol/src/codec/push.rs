//! Shared frame for many connections, encoded at most once for each wire.

use std::sync::OnceLock;

use bytes::{BufMut, Bytes};
use prost::{
    Message,
    encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint, encoded_len_varint, key_len},
};

use super::{Framing, Wire, encode_server, tcp};
use crate::{pb, trace::TraceContext, ws};

/// Number of the `ServerFrame` field that holds a `Push`.
const FRAME_PUSH: u32 = 2;
// Numbers of the `Push` fields.
const PUSH_CONVERSATION: u32 = 1;
const PUSH_SEQ: u32 = 2;
const PUSH_SENDER: u32 = 3;
const PUSH_MSG_ID: u32 = 4;
const PUSH_TIME: u32 = 5;
const PUSH_CONTENT: u32 = 6;
const PUSH_FLAGS: u32 = 12;

/// Server frame for many connections; share it in an `Arc` and write its bytes for each connection's wire.
///
/// The protobuf form is encoded on construction, the others when a connection first needs them.
#[derive(Debug)]
pub struct PushFrame {
    tcp: Bytes,
    head: u8,
    json_line: OnceLock<Bytes>,
    ws_binary: OnceLock<Bytes>,
    ws_text: OnceLock<Bytes>,
    trace: Option<TraceContext>,
}

impl PushFrame {
    /// Encodes a server frame.
    pub fn new(frame: &pb::ServerFrame) -> Self {
        Self::from_payload(frame.encoded_len(), |out| frame.encode_raw(out))
    }

    /// Encodes a push of a message from its encoded `Content`. The content is decoded only for JSON, which omits it if
    /// that fails.
    pub fn from_parts(
        conversation: &str,
        seq: u64,
        sender: &str,
        msg_id: &str,
        time: u64,
        content_encoded: &[u8],
        flags: u32,
    ) -> Self {
        let push_len = text_len(PUSH_CONVERSATION, conversation)
            + number_len(PUSH_SEQ, seq)
            + text_len(PUSH_SENDER, sender)
            + text_len(PUSH_MSG_ID, msg_id)
            + number_len(PUSH_TIME, time)
            + block_len(PUSH_CONTENT, content_encoded.len())
            + number_len(PUSH_FLAGS, flags.into());
        Self::from_payload(block_len(FRAME_PUSH, push_len), |out| {
            put_head(FRAME_PUSH, push_len, out);
            put_text(PUSH_CONVERSATION, conversation, out);
            put_number(PUSH_SEQ, seq, out);
            put_text(PUSH_SENDER, sender, out);
            put_text(PUSH_MSG_ID, msg_id, out);
            put_number(PUSH_TIME, time, out);
            put_head(PUSH_CONTENT, content_encoded.len(), out);
            out.put_slice(content_encoded);
            put_number(PUSH_FLAGS, flags.into(), out);
        })
    }

    /// Creates the frame of an encoded `Push`, as [`Self::push`] of another node returned it.
    pub fn from_push(push: &[u8]) -> Self {
        Self::from_payload(block_len(FRAME_PUSH, push.len()), |out| {
            put_head(FRAME_PUSH, push.len(), out);
            out.put_slice(push);
        })
    }

    /// Returns the encoded `Push`, `None` if the frame has another kind.
    pub fn push(&self) -> Option<Bytes> {
        let mut rest = self.proto();
        let (tag, kind) = decode_key(&mut rest).ok()?;
        let len = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
        let whole = tag == FRAME_PUSH && kind == WireType::LengthDelimited && rest.len() == len;
        whole.then(|| self.tcp.slice(self.tcp.len() - len..))
    }

    /// Returns the bytes of the frame on `wire`, header included.
    pub fn bytes(&self, wire: Wire) -> &Bytes {
        match wire {
            Wire::Tcp => &self.tcp,
            Wire::WsBinary => self.ws_binary.get_or_init(|| with_ws_header(wire, self.proto())),
            Wire::JsonLine => self.json_line.get_or_init(|| match self.ws_text.get() {
                Some(text) => with_newline(text[ws_header_len_of(text)..].to_vec()),
                None => with_newline(self.json()),
            }),
            Wire::WsText => self.ws_text.get_or_init(|| match self.json_line.get() {
                Some(line) => with_ws_header(wire, &line[..line.len() - 1]),
                None => with_ws_header(wire, &self.json()),
            }),
        }
    }

    /// Attaches the trace context of the message; receivers do not see it.
    #[must_use]
    pub fn traced(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }

    /// Returns the trace context, `None` if the message's steps are not recorded.
    pub fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }

    /// Returns the protobuf payload.
    pub fn proto(&self) -> &[u8] {
        &self.tcp[usize::from(self.head)..]
    }

    fn json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.tcp.len() * 2);
        encode_server(&decode_ours(self.proto()), Framing::Json, &mut out);
        out
    }

    fn from_payload(len: usize, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut out = Vec::with_capacity(encoded_len_varint(len as u64) + len);
        tcp::put_length(len, &mut out);
        let head = u8::try_from(out.len()).expect("a varint has at most ten bytes");
        write(&mut out);
        debug_assert_eq!(out.len(), usize::from(head) + len);
        Self {
            tcp: out.into(),
            head,
            json_line: OnceLock::new(),
            ws_binary: OnceLock::new(),
            ws_text: OnceLock::new(),
            trace: None,
        }
    }
}

/// Encodes a frame for one connection on `wire`, header included.
pub fn encode_frame(frame: &pb::ServerFrame, wire: Wire) -> Bytes {
    let mut payload = Vec::new();
    match wire {
        Wire::Tcp => {
            let len = frame.encoded_len();
            payload.reserve_exact(encoded_len_varint(len as u64) + len);
            tcp::put_length(len, &mut payload);
            frame.encode_raw(&mut payload);
            payload.into()
        }
        Wire::WsBinary => {
            let len = frame.encoded_len();
            payload.reserve_exact(ws::SERVER_HEADER_MAX + len);
            put_ws_header(wire, len, &mut payload);
            frame.encode_raw(&mut payload);
            payload.into()
        }
        Wire::JsonLine => {
            encode_server(frame, Framing::Json, &mut payload);
            with_newline(payload)
        }
        Wire::WsText => {
            encode_server(frame, Framing::Json, &mut payload);
            with_ws_header(wire, &payload)
        }
    }
}

/// Appends the header of an unmasked, unfragmented WebSocket message: text for JSON, binary for protobuf.
pub fn put_ws_header(wire: Wire, payload_bytes: usize, out: &mut Vec<u8>) {
    let opcode = match wire.framing() {
        Framing::Json => ws::Opcode::Text,
        Framing::Proto => ws::Opcode::Binary,
    };
    ws::server_header(opcode, payload_bytes, out);
}

fn ws_header_len_of(message: &[u8]) -> usize {
    match message[1] {
        126 => 4,
        127 => ws::SERVER_HEADER_MAX,
        _ => 2,
    }
}

fn with_ws_header(wire: Wire, payload: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(ws::SERVER_HEADER_MAX + payload.len());
    put_ws_header(wire, payload.len(), &mut out);
    out.extend_from_slice(payload);
    out.into()
}

fn with_newline(mut json: Vec<u8>) -> Bytes {
    json.push(b'\n');
    json.into()
}

/// Decodes a payload of this module. Only content that was passed as bytes can be undecodable; it is then omitted.
fn decode_ours(payload: &[u8]) -> pb::ServerFrame {
    pb::ServerFrame::decode(payload).unwrap_or_else(|_| {
        let mut rest = payload;
        let mut push = pb::Push::default();
        let whole =
            decode_key(&mut rest).and_then(|_| decode_varint(&mut rest)).and_then(|_| push.merge(rest));
        if whole.is_err() {
            push.content = None;
        }
        pb::ServerFrame { id: 0, body: Some(pb::server_frame::Body::Push(push)) }
    })
}

fn block_len(tag: u32, bytes: usize) -> usize {
    key_len(tag) + encoded_len_varint(bytes as u64) + bytes
}

fn text_len(tag: u32, text: &str) -> usize {
    if text.is_empty() { 0 } else { block_len(tag, text.len()) }
}

fn number_len(tag: u32, number: u64) -> usize {
    if number == 0 { 0 } else { key_len(tag) + encoded_len_varint(number) }
}

fn put_head(tag: u32, bytes: usize, out: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(bytes as u64, out);
}

fn put_text(tag: u32, text: &str, out: &mut Vec<u8>) {
    if !text.is_empty() {
        put_head(tag, text.len(), out);
        out.put_slice(text.as_bytes());
    }
}

fn put_number(tag: u32, number: u64, out: &mut Vec<u8>) {
    if number != 0 {
        encode_key(tag, WireType::Varint, out);
        encode_varint(number, out);
    }
}
