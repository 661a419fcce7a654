//! WebSocket framing (RFC 6455): incremental, in place, and without a buffer of its own per connection.
//!
//! The caller owns the bytes. It shows [`Decoder::next`] everything that is received and not consumed yet:
//!
//! ```
//! use tidegate_protocol::ws::{Decoder, Event, Kind, Limits, Step};
//!
//! let limits = Limits { message_bytes_max: 65_536, fragments_max: 64 };
//! let mut decoder = Decoder::server();
//! let mut input = [0x81, 0x82, 1, 2, 3, 4, b'h' ^ 1, b'i' ^ 2];
//! assert_eq!(decoder.next(&mut input[..3], &limits), Ok(Step::Need { at_least: 8 }));
//! let Ok(Step::Frame { consumed: 8, event: Event::Message { kind: Kind::Text, payload } }) =
//!     decoder.next(&mut input, &limits)
//! else {
//!     panic!("one whole text message");
//! };
//! assert_eq!(&payload[..], b"hi");
//! ```
//!
//! What is left to the caller, because only it knows about writing and time:
//! - After [`Event::Close`], or a [`Violation`], nothing that follows counts: answer with [`encode_close_reply`] or
//!   [`encode_close`], stop decoding, discard input.
//! - A peer that pings and never reads must cost nothing: keep **one** unsent pong and let a newer replace it
//!   (section 5.5.3 allows to answer only the latest ping).
//! - Control frames and fragments are work without a message; [`Event::Part`] exists so that they can be counted.
//! - A frame that was begun and a fragmented message that is open ([`Decoder::held`]) each need a deadline.

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
pub use violation::Violation;

/// The longest header a client can send: two bytes, a 64-bit length and the masking key.
///
/// So a caller never has to keep more than this plus [`Limits::message_bytes_max`] for a frame.
pub const HEADER_MAX: usize = 14;

/// The longest payload of a control frame.
pub const CONTROL_MAX: usize = 125;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// A further fragment of the message that is open.
    Continuation = 0x0,
    /// UTF-8 text.
    Text = 0x1,
    /// Bytes.
    Binary = 0x2,
    /// The end of the conversation.
    Close = 0x8,
    /// To be answered with a pong.
    Ping = 0x9,
    /// An answer to a ping, or a sign of life.
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

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text; its payload is valid UTF-8.
    Text,
    /// Bytes.
    Binary,
}

/// What one message may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest message, over all its fragments; so no frame is larger either. Claims are checked, not only bytes.
    pub message_bytes_max: usize,
    /// The most frames one message may be cut into; without it, empty fragments are free forever.
    pub fragments_max: u32,
}

/// What [`Decoder::next`] found at the start of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Nothing can be said before the input, from its same start, is this long. Nothing was changed in it.
    Need {
        /// Bytes of input needed, counted from its start; at most [`HEADER_MAX`] and the message limit.
        at_least: usize,
    },
    /// One frame was taken.
    Frame {
        /// Bytes to drop from the start of the input once the event is dealt with.
        consumed: usize,
        /// What the frame means.
        event: Event<'a>,
    },
}

/// What a frame means to the connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A whole message: borrowed from the input if it came in one frame, owned if it came in fragments.
    Message {
        /// Text or bytes.
        kind: Kind,
        /// Unmasked.
        payload: Cow<'a, [u8]>,
    },
    /// A fragment of a message that is still open was kept.
    Part,
    /// Answer with a pong of the same payload, at most [`CONTROL_MAX`] bytes.
    Ping(&'a [u8]),
    /// An answer to a ping of ours.
    Pong(&'a [u8]),
    /// The peer closes; its code has been checked.
    Close {
        /// The reason as a number, if one was given.
        code: Option<u16>,
        /// The reason in words, often empty.
        reason: &'a str,
    },
}
