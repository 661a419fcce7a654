//! Violations of WebSocket framing by a peer, and the close codes that report them.

use crate::Code;

/// Violation of RFC 6455 or of the limits; the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WsViolation {
    /// Reserved bits are set, but no extension was negotiated.
    #[error("reserved bits are set without an extension")]
    ReservedBits,
    /// The opcode is unknown.
    #[error("opcode {0:#x} is unknown")]
    UnknownOpcode(u8),
    /// A client frame is not masked.
    #[error("client frame is not masked")]
    Unmasked,
    /// A server frame is masked.
    #[error("server frame is masked")]
    Masked,
    /// The length is encoded in more bytes than it needs.
    #[error("length is not encoded in the fewest bytes")]
    LengthNotMinimal,
    /// The most significant bit of a 64-bit length is set.
    #[error("the top bit of a 64-bit length is set")]
    LengthTopBit,
    /// A control frame is fragmented.
    #[error("control frame is fragmented")]
    ControlFragmented,
    /// A control frame has more than 125 bytes.
    #[error("control frame has more than 125 bytes")]
    ControlTooLong,
    /// A continuation arrived while no message is open.
    #[error("continuation without an open message")]
    NothingToContinue,
    /// A new message began while another is open.
    #[error("new message inside a fragmented one")]
    MessageOpen,
    /// The body of a close frame has one byte, half a code.
    #[error("close frame with one byte of a code")]
    CloseTooShort,
    /// The close code must not be sent.
    #[error("close code {0} must not be sent")]
    CloseCode(u16),
    /// A text message or the reason of a close frame is not UTF-8.
    #[error("text is not valid UTF-8")]
    NotUtf8,
    /// The message claims more bytes than allowed.
    #[error("message of {claimed} bytes; the limit is {max}")]
    MessageTooLarge {
        /// Message size with the claimed length of this frame, in bytes.
        claimed: u64,
        /// Limit, in bytes.
        max: usize,
    },
    /// The message has more fragments than allowed.
    #[error("more than {max} fragments in one message")]
    TooManyFragments {
        /// Limit, in frames.
        max: u32,
    },
}

impl WsViolation {
    /// Returns the code for the WebSocket close frame: 1002, 1007 or 1009.
    pub const fn close_code(self) -> u16 {
        match self {
            Self::NotUtf8 => 1007,
            Self::MessageTooLarge { .. } | Self::TooManyFragments { .. } => 1009,
            _ => 1002,
        }
    }

    /// Returns our own code, for logs, metrics and scores.
    pub const fn code(self) -> Code {
        match self {
            Self::MessageTooLarge { .. } | Self::TooManyFragments { .. } => Code::FrameTooLarge,
            _ => Code::Malformed,
        }
    }
}
