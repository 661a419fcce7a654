//! What a peer can do wrong in WebSocket framing, and the close code that says so.

use crate::Code;

/// A breach of RFC 6455 or of the limits; the connection can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Reserved bits are set, but no extension was negotiated.
    #[error("reserved bits are set without an extension")]
    ReservedBits,
    /// The opcode has no meaning.
    #[error("opcode {0:#x} has no meaning")]
    UnknownOpcode(u8),
    /// A client must mask every frame.
    #[error("a client must mask its frames")]
    Unmasked,
    /// A server must not mask any frame.
    #[error("a server must not mask its frames")]
    Masked,
    /// The length is written with more bytes than it needs.
    #[error("a length must use the fewest bytes")]
    LengthNotMinimal,
    /// The most significant bit of a 64-bit length is set.
    #[error("the top bit of a 64-bit length must be zero")]
    LengthTopBit,
    /// Control frames can't be fragmented.
    #[error("a control frame must not be fragmented")]
    ControlFragmented,
    /// Control frames carry at most 125 bytes.
    #[error("a control frame carries at most 125 bytes")]
    ControlTooLong,
    /// A continuation, but no message is open.
    #[error("a continuation without a message to continue")]
    NothingToContinue,
    /// A new message began while another is open.
    #[error("a new message inside a fragmented one")]
    MessageOpen,
    /// The body of a close frame has one byte: half a code.
    #[error("a close frame with half a code")]
    CloseTooShort,
    /// The close code must not be sent.
    #[error("close code {0} must not be sent")]
    CloseCode(u16),
    /// Text, or the reason of a close frame, is not UTF-8.
    #[error("text is not valid UTF-8")]
    NotUtf8,
    /// The message claims more bytes than allowed.
    #[error("a message of {claimed} bytes, at most {max} allowed")]
    MessageTooLarge {
        /// What the frame would bring the message to.
        claimed: u64,
        /// The limit.
        max: usize,
    },
    /// The message is cut into more fragments than allowed.
    #[error("more than {max} fragments in one message")]
    TooManyFragments {
        /// The limit.
        max: u32,
    },
}

impl Violation {
    /// The code for the WebSocket close frame: 1002, 1007 or 1009.
    pub const fn close_code(self) -> u16 {
        match self {
            Self::NotUtf8 => 1007,
            Self::MessageTooLarge { .. } | Self::TooManyFragments { .. } => 1009,
            _ => 1002,
        }
    }

    /// The code of ours that says it in logs, metrics and scores.
    pub const fn code(self) -> Code {
        match self {
            Self::MessageTooLarge { .. } | Self::TooManyFragments { .. } => Code::FrameTooLarge,
            _ => Code::Malformed,
        }
    }
}
