//! Frames ↔ bytes: protobuf and JSON payloads, how streams are cut into frames, and frames encoded once for many.
//!
//! | room | what it holds |
//! |---|---|
//! | [`preface`] | which protocol a connection speaks, by its first bytes |
//! | [`tcp`] | frames with a varint length in a stream of bytes |
//! | [`json`] | frames as lines of a stream |
//! | [`push`] | a frame encoded at most once for each wire, and its headers |
//!
//! Nothing here keeps a buffer, and nothing allocates from a length that the other side claims: the cutters look at
//! the bytes that have arrived and say where a frame is, the decoders read one whole payload.

mod envelope;
pub(crate) mod fields;
pub mod json;
mod lists;
pub mod preface;
pub mod push;
pub mod tcp;

use std::ops::Range;

use prost::Message;
use serde::{Deserialize, Serialize};

use crate::{code::Code, pb};

pub use lists::LIST_MAX;
pub use preface::{Detect, Preface, detect};
pub use push::{PushFrame, encode_frame};

/// How a frame is written as a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Protobuf, `tidegate.v1.proto`.
    Proto,
    /// Proto3 JSON with 64-bit integers as numbers, `tidegate.v1.json`.
    Json,
}

/// How payloads travel: the four things that a server frame can look like as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Protobuf after its length as a varint.
    Tcp,
    /// JSON and a newline.
    JsonLine,
    /// A WebSocket binary message: protobuf.
    WsBinary,
    /// A WebSocket text message: JSON.
    WsText,
}

impl Wire {
    /// All wires.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::JsonLine, Self::WsBinary, Self::WsText];

    /// What the payload is.
    pub const fn framing(self) -> Framing {
        match self {
            Self::Tcp | Self::WsBinary => Framing::Proto,
            Self::JsonLine | Self::WsText => Framing::Json,
        }
    }
}

/// What a payload says.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded<F> {
    /// A frame. Its body is `None` when it is of a kind that this version does not know.
    Frame(F),
    /// An empty frame (no bytes; a blank line or `{}` in JSON): a ping.
    Empty,
}

/// What a cutter of streams sees at the start of its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// No whole frame yet.
    Need {
        /// How long the input must be, from its start, before another look can help. At most the limit and a header.
        at_least: usize,
    },
    /// A whole frame.
    Frame {
        /// Where in the input its payload is.
        payload: Range<usize>,
        /// How many bytes of input it takes, header and all.
        consumed: usize,
    },
}

/// Why bytes are not frames. The stream they came from cannot be read on.
///
/// Says where and what kind, never the bytes themselves, so that it may be logged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A frame is, or claims to be, larger than the limit.
    #[error("a frame of at least {at_least} bytes where {max} are allowed")]
    TooLarge {
        /// What is known of its length.
        at_least: u64,
        /// The limit.
        max: usize,
    },
    /// A length prefix of more than five bytes.
    #[error("the length of a frame does not end within {} bytes", tcp::LENGTH_BYTES_MAX)]
    Length,
    /// Not a protobuf message of our schema.
    #[error("{0}")]
    Proto(prost::DecodeError),
    /// A list that would take many times its bytes.
    #[error("a list of more than {LIST_MAX} entries")]
    List,
    /// A JSON payload is not UTF-8.
    #[error("not UTF-8 after {0} bytes")]
    Utf8(usize),
    /// Not JSON.
    #[error("not JSON at column {0}")]
    JsonSyntax(usize),
    /// JSON, but not a frame of our schema.
    #[error("a field that is doubled or of the wrong type before column {0}")]
    JsonShape(usize),
    /// The first bytes of a connection are of no protocol spoken here.
    #[error("the first bytes are of no protocol spoken here")]
    Preface,
}

impl WireError {
    /// The code to close the connection with.
    pub const fn code(&self) -> Code {
        match self {
            Self::TooLarge { .. } => Code::FrameTooLarge,
            Self::Preface => Code::UnknownFraming,
            Self::Length
            | Self::Proto(_)
            | Self::List
            | Self::Utf8(_)
            | Self::JsonSyntax(_)
            | Self::JsonShape(_) => Code::Malformed,
        }
    }
}

/// Reads the payload of a frame from a client.
pub fn decode_client(payload: &[u8], framing: Framing) -> Result<Decoded<pb::ClientFrame>, WireError> {
    if framing == Framing::Proto && !lists::are_short(payload) {
        return Err(WireError::List);
    }
    decode(payload, framing)
}

/// Reads the payload of a frame from the broker.
pub fn decode_server(payload: &[u8], framing: Framing) -> Result<Decoded<pb::ServerFrame>, WireError> {
    decode(payload, framing)
}

/// Appends the payload of a client's frame.
pub fn encode_client(frame: &pb::ClientFrame, framing: Framing, out: &mut Vec<u8>) {
    encode(frame, framing, out);
}

/// Appends the payload of a broker's frame.
pub fn encode_server(frame: &pb::ServerFrame, framing: Framing, out: &mut Vec<u8>) {
    encode(frame, framing, out);
}

/// Appends a client's frame as it goes into a stream: with its length, or as a line.
pub fn write_client(frame: &pb::ClientFrame, framing: Framing, out: &mut Vec<u8>) {
    match framing {
        Framing::Proto => {
            tcp::put_length(frame.encoded_len(), out);
            encode(frame, framing, out);
        }
        Framing::Json => {
            encode(frame, framing, out);
            out.push(b'\n');
        }
    }
}

fn decode<F>(payload: &[u8], framing: Framing) -> Result<Decoded<F>, WireError>
where
    F: Message + Default + PartialEq + for<'de> Deserialize<'de>,
{
    match framing {
        Framing::Proto if payload.is_empty() => Ok(Decoded::Empty),
        Framing::Proto => F::decode(payload).map(Decoded::Frame).map_err(WireError::Proto),
        Framing::Json => json::decode(payload),
    }
}

fn encode<F: Message + Serialize>(frame: &F, framing: Framing, out: &mut Vec<u8>) {
    match framing {
        Framing::Proto => frame.encode_raw(out),
        Framing::Json => json::encode(frame, out),
    }
}
