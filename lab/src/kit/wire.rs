//! Wires of the scripted node: transports, and the bytes of its frames.

use anyhow::{Context as _, Result, ensure};
use data_encoding::HEXLOWER_PERMISSIVE;
use prost::Message as _;
use serde::Deserialize;
use serde_json::Value;
use tidegate_protocol::{
    Code,
    codec::{self, Framing},
    pb,
    ws::{self, Opcode},
};

/// Transport and framing of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum KitTransport {
    /// JSON lines over TCP.
    TcpJson,
    /// WebSocket with text messages.
    WsJson,
    /// Protobuf frames over TCP.
    TcpProto,
    /// WebSocket with binary messages.
    WsProto,
}

impl KitTransport {
    /// All transports, with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::TcpJson, "tcp-json"),
        (Self::WsJson, "ws-json"),
        (Self::TcpProto, "tcp-proto"),
        (Self::WsProto, "ws-proto"),
    ];

    /// Returns the name in cases and in `description`.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(transport, _)| *transport == self).map_or("", |(_, name)| name)
    }

    /// Returns the transport with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(transport, _)| *transport)
    }

    /// Returns whether it is a WebSocket.
    pub const fn is_ws(self) -> bool {
        matches!(self, Self::WsJson | Self::WsProto)
    }

    /// Returns the encoding of its payloads.
    pub const fn framing(self) -> Framing {
        match self {
            Self::TcpJson | Self::WsJson => Framing::Json,
            Self::TcpProto | Self::WsProto => Framing::Proto,
        }
    }

    /// Returns the name of its encoding.
    pub const fn framing_name(self) -> &'static str {
        match self.framing() {
            Framing::Json => "json",
            Framing::Proto => "proto",
        }
    }

    /// Returns the address of a port on loopback.
    pub fn address(self, port: u16) -> String {
        if self.is_ws() { format!("ws://127.0.0.1:{port}/") } else { format!("tcp://127.0.0.1:{port}") }
    }
}

/// Returns the frame that a case writes as JSON. It must be of a known kind, or empty.
pub(super) fn server_frame(frame: &Value) -> Result<pb::ServerFrame> {
    let parsed: pb::ServerFrame = serde_json::from_value(frame.clone()).with_context(|| frame.to_string())?;
    let is_empty = frame.as_object().is_some_and(serde_json::Map::is_empty);
    ensure!(parsed.body.is_some() || is_empty, "no frame of a node: {frame}");
    Ok(parsed)
}

/// A payload that the schema does not have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) json: String,
    pub(super) proto: String,
}

/// Form of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameForm {
    /// WebSocket frames of a message.
    pub(super) fragments: usize,
    /// Whether the frame has fields that the schema does not have.
    pub(super) unknown_fields: bool,
}

impl FrameForm {
    /// One WebSocket frame, known fields.
    pub(super) const PLAIN: Self = Self { fragments: 1, unknown_fields: false };
}

/// Adds unknown fields to a frame and to its body.
fn with_unknown_json(frame: &Value) -> Value {
    let mut frame = frame.clone();
    for (_, body) in frame.as_object_mut().into_iter().flatten().filter(|(_, body)| body.is_object()) {
        body["futureField"] = serde_json::json!({"a": [1, {"b": null}]});
    }
    frame["futureTop"] = "x".into();
    frame
}

/// Adds field 900 to the body of a frame, and field 901 to the frame.
fn with_unknown_proto(frame: &pb::ServerFrame, payload: &[u8]) -> Option<Vec<u8>> {
    // The body is the only field after the id.
    let head = pb::ServerFrame { id: frame.id, body: None }.encoded_len();
    let mut rest = payload.get(head..)?;
    let tag = prost::encoding::decode_varint(&mut rest).ok()?;
    prost::encoding::decode_varint(&mut rest).ok()?;
    let mut body = rest.to_vec();
    prost::encoding::string::encode(900, &"unknown".to_owned(), &mut body);
    let mut out = payload[..head].to_vec();
    prost::encoding::encode_varint(tag, &mut out);
    prost::encoding::encode_varint(body.len() as u64, &mut out);
    out.extend(body);
    prost::encoding::uint64::encode(901, &7, &mut out);
    Some(out)
}

/// Appends a frame to `out`, in this form. After `close` follows the close of the WebSocket.
pub(super) fn put(frame: &Value, transport: KitTransport, form: FrameForm, out: &mut Vec<u8>) -> Result<()> {
    let value = frame;
    let frame = server_frame(frame)?;
    let mut payload = Vec::new();
    codec::encode_server(&frame, transport.framing(), &mut payload);
    if form.unknown_fields {
        payload = match transport.framing() {
            Framing::Json => with_unknown_json(value).to_string().into_bytes(),
            Framing::Proto => with_unknown_proto(&frame, &payload).context("a frame without a body")?,
        };
    }
    put_payload(&payload, transport, form.fragments, out);
    if let (true, Some(pb::server_frame::Body::Close(close))) = (transport.is_ws(), &frame.body) {
        let number = u16::try_from(close.code).unwrap_or(4_999);
        let status = Code::from_number(number).map_or(number.max(3_000), Code::ws_close);
        ws::encode_close(status, &close.name, out);
    }
    Ok(())
}

/// Appends a payload of the case's own making.
pub(super) fn put_raw(raw: &Raw, transport: KitTransport, out: &mut Vec<u8>) -> Result<()> {
    let payload = match transport.framing() {
        Framing::Json => raw.json.clone().into_bytes(),
        Framing::Proto => HEXLOWER_PERMISSIVE.decode(raw.proto.as_bytes()).context("hex")?,
    };
    put_payload(&payload, transport, 1, out);
    Ok(())
}

fn put_payload(payload: &[u8], transport: KitTransport, fragments: usize, out: &mut Vec<u8>) {
    match transport {
        KitTransport::TcpJson => {
            out.extend_from_slice(payload);
            out.push(b'\n');
        }
        KitTransport::TcpProto => {
            codec::tcp::put_length(payload.len(), out);
            out.extend_from_slice(payload);
        }
        KitTransport::WsJson | KitTransport::WsProto => {
            let opcode = if transport.framing() == Framing::Json { Opcode::Text } else { Opcode::Binary };
            let parts: Vec<&[u8]> = match payload.len().div_ceil(fragments.max(1)) {
                0 => vec![payload],
                size => payload.chunks(size).collect(),
            };
            for (at, part) in parts.iter().enumerate() {
                let opcode = if at == 0 { opcode } else { Opcode::Continuation };
                ws::encode_fragment(at + 1 == parts.len(), opcode, part, None, out);
            }
        }
    }
}
