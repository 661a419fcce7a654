//! Wires of the scripted node: transports, and the bytes of its frames.

use anyhow::{Context as _, Result, ensure};
use data_encoding::HEXLOWER_PERMISSIVE;
use serde::Deserialize;
use serde_json::Value;
use tidegate_protocol::{
    Code,
    codec::{self, Framing},
    pb,
    ws::{self, Opcode},
};

use super::step::Raw;

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

/// Appends a frame to `out`, on WebSocket as this number of fragments. After `close` follows the close of the WebSocket.
pub(super) fn put(
    frame: &Value,
    transport: KitTransport,
    fragments: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let frame = server_frame(frame)?;
    let mut payload = Vec::new();
    codec::encode_server(&frame, transport.framing(), &mut payload);
    put_payload(&payload, transport, fragments, out);
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
            let opcode =
                if transport.framing() == Framing::Json { Opcode::Text } else { Opcode::Binary };
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
