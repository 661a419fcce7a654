//! WebSocket framing (RFC 6455): incremental and in place, without a buffer per connection.
//!
//! The caller owns the bytes and passes everything received and not yet consumed to [`Decoder::next`]:
//!
//! ```
//! use tidegate_protocol::ws::{Decoder, Kind, WsEvent, WsLimits, WsStep};
//!
//! let limits = WsLimits { message_bytes_max: 65_536, fragments_max: 64 };
//! let mut decoder = Decoder::server();
//! let mut input = [0x81, 0x82, 1, 2, 3, 4, b'h' ^ 1, b'i' ^ 2];
//! assert_eq!(decoder.next(&mut input[..3], &limits), Ok(WsStep::Need { at_least: 8 }));
//! let Ok(WsStep::Frame { consumed: 8, event: WsEvent::Message { kind: Kind::Text, payload } }) =
//!     decoder.next(&mut input, &limits)
//! else {
//!     panic!("one whole text message");
//! };
//! assert_eq!(&payload[..], b"hi");
//! ```
//!
//! Writing and time are left to the caller:
//! - After [`WsEvent::Close`] or a [`WsViolation`], ignore all further input: reply with [`encode_close_reply`] or
//!   [`encode_close`], stop decoding and discard input.
//! - A peer that pings and never reads must cost nothing: keep **one** unsent pong and replace it with a newer one
//!   (section 5.5.3 allows answering only the latest ping).
//! - Control frames and fragments are work without a message; count them ([`WsEvent::Part`]).
//! - An incomplete frame and an open fragmented message ([`Decoder::held`]) each need a deadline.

mod decode;
mod encode;
mod mask;
mod violation;

use std::borrow::Cow;

pub use decode::Decoder;
pub use encode::{
    CLOSE_REASON_MAX, SERVER_HEADER_MAX, encode_client, encode_close, encode_close_reply, encode_fragment,
    encode_server, server_header,
};
pub use mask::mask;
pub use violation::WsViolation;

/// Maximum header of a client frame, in bytes: two bytes, a 64-bit length and the masking key.
///
/// A caller never keeps more than this plus [`WsLimits::message_bytes_max`] for a frame.
pub const HEADER_MAX: usize = 14;

/// Maximum payload of a control frame, in bytes.
pub const CONTROL_MAX: usize = 125;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Next fragment of the open message.
    Continuation = 0x0,
    /// UTF-8 text.
    Text = 0x1,
    /// Bytes.
    Binary = 0x2,
    /// End of the connection.
    Close = 0x8,
    /// Ping, to be answered with a pong.
    Ping = 0x9,
    /// Answer to a ping, or an unsolicited sign of life.
    Pong = 0xA,
}

impl Opcode {
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xA => Self::Pong,
            _ => return None,
        })
    }

    const fn is_control(self) -> bool {
        self as u8 & 0x8 != 0
    }
}

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text; its payload is valid UTF-8.
    Text,
    /// Bytes.
    Binary,
}

/// Limits of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WsLimits {
    /// Maximum size of a message over all its fragments, in bytes. A frame is checked by its claimed length.
    pub message_bytes_max: usize,
    /// Maximum number of frames of one message. Without this limit, empty fragments would be unlimited.
    pub fragments_max: u32,
}

/// Result of [`Decoder::next`] at the start of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum WsStep<'a> {
    /// The frame is incomplete. The input is unchanged.
    Need {
        /// Required length of the input, from the same start; at most [`HEADER_MAX`] plus the message limit.
        at_least: usize,
    },
    /// One frame was decoded.
    Frame {
        /// Bytes to drop from the start of the input after the event is processed.
        consumed: usize,
        /// Meaning of the frame.
        event: WsEvent<'a>,
    },
}

/// Meaning of a frame for the connection.
#[derive(Debug, PartialEq, Eq)]
pub enum WsEvent<'a> {
    /// A complete message: borrowed from the input if it was one frame, owned if it was fragmented.
    Message {
        /// Text or bytes.
        kind: Kind,
        /// Unmasked payload.
        payload: Cow<'a, [u8]>,
    },
    /// A fragment was added to the open message, which is still incomplete.
    Part,
    /// A ping, to be answered with a pong of the same payload, at most [`CONTROL_MAX`] bytes.
    Ping(&'a [u8]),
    /// An answer to our ping.
    Pong(&'a [u8]),
    /// The peer closes the connection; the code is valid.
    Close {
        /// Close code, `None` if the frame has none.
        code: Option<u16>,
        /// Close reason, often empty.
        reason: &'a str,
    },
}
