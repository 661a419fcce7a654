//! Frame codec: protobuf and JSON payloads, splitting of streams into frames, and shared encodings of pushes.
//!
//! | module | contents |
//! |---|---|
//! | [`preface`] | detects the protocol of a connection by its first bytes |
//! | [`tcp`] | frames with a varint length in a byte stream |
//! | [`json`] | frames as JSON lines |
//! | [`push`] | a frame encoded at most once for each wire, and its headers |
//!
//! The codec keeps no buffer and allocates nothing for a length that the peer claims: a splitter locates a frame in the
//! bytes that have arrived, a decoder reads one complete payload.

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

/// Encoding of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Protobuf, `tidegate.v1.proto`.
    Proto,
    /// Proto3 JSON with 64-bit integers as numbers, `tidegate.v1.json`.
    Json,
}

/// Transport framing of a payload; a server frame has one byte form for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Protobuf preceded by its length as a varint.
    Tcp,
    /// JSON followed by a newline.
    JsonLine,
    /// WebSocket binary message with protobuf.
    WsBinary,
    /// WebSocket text message with JSON.
    WsText,
}

impl Wire {
    /// All wires.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::JsonLine, Self::WsBinary, Self::WsText];

    /// Returns the encoding of its payloads.
    pub const fn framing(self) -> Framing {
        match self {
            Self::Tcp | Self::WsBinary => Framing::Proto,
            Self::JsonLine | Self::WsText => Framing::Json,
        }
    }
}

/// Result of decoding a payload.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded<F> {
    /// A frame; its body is `None` if this version does not know its kind.
    Frame(F),
    /// An empty frame (no bytes; a blank line or `{}` in JSON), which is a ping.
    Empty,
}

/// Result of splitting a frame off the start of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// The frame is incomplete.
    Need {
        /// Input length, from its start, below which another call can't succeed. At most the limit and a header.
        at_least: usize,
    },
    /// The frame is complete.
    Frame {
        /// Range of the payload in the input.
        payload: Range<usize>,
        /// Bytes of input that the frame occupies, header included.
        consumed: usize,
    },
}

/// Reason why bytes are not frames. The stream can't be read any further.
///
/// Contains positions and kinds, never the bytes themselves, so that it may be logged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A frame is, or claims to be, larger than the limit.
    #[error("frame has at least {at_least} bytes; the limit is {max}")]
    TooLarge {
        /// Lower bound of the frame's length, from the bytes read so far.
        at_least: u64,
        /// Limit, in bytes.
        max: usize,
    },
    /// A length prefix has more than five bytes.
    #[error("length prefix of a frame has more than {} bytes", tcp::LENGTH_BYTES_MAX)]
    Length,
    /// The payload is not a protobuf message of our schema.
    #[error("{0}")]
    Proto(prost::DecodeError),
    /// A list would take many times its bytes in memory.
    #[error("list has more than {LIST_MAX} entries")]
    List,
    /// A JSON payload is not UTF-8.
    #[error("not UTF-8 after {0} bytes")]
    Utf8(usize),
    /// The payload is not JSON.
    #[error("not JSON at column {0}")]
    JsonSyntax(usize),
    /// The payload is JSON, but not a frame of our schema.
    #[error("duplicate field or wrong type before column {0}")]
    JsonShape(usize),
    /// The first bytes of a connection match no supported protocol.
    #[error("the first bytes match no supported protocol")]
    Preface,
}

impl WireError {
    /// Returns the code to close the connection with.
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

/// Decodes the payload of a client frame.
pub fn decode_client(payload: &[u8], framing: Framing) -> Result<Decoded<pb::ClientFrame>, WireError> {
    if framing == Framing::Proto && !lists::are_short(payload) {
        return Err(WireError::List);
    }
    decode(payload, framing)
}

/// Decodes the payload of a server frame.
pub fn decode_server(payload: &[u8], framing: Framing) -> Result<Decoded<pb::ServerFrame>, WireError> {
    decode(payload, framing)
}

/// Appends the payload of a client frame to `out`.
pub fn encode_client(frame: &pb::ClientFrame, framing: Framing, out: &mut Vec<u8>) {
    encode(frame, framing, out);
}

/// Appends the payload of a server frame to `out`.
pub fn encode_server(frame: &pb::ServerFrame, framing: Framing, out: &mut Vec<u8>) {
    encode(frame, framing, out);
}

/// Appends a client frame in its stream form: with a length prefix, or as a line.
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
