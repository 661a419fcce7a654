//! Which protocol a connection speaks, by its first bytes.

use super::WireError;

/// What the first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preface {
    /// A TLS handshake; the protocol is told inside.
    Tls,
    /// A PROXY header in text form; the protocol is told after it.
    ProxyV1,
    /// A PROXY header in binary form; the protocol is told after it.
    ProxyV2,
    /// An HTTP request that may upgrade to WebSocket, or asks where to connect.
    Http,
    /// Protobuf frames with their length, after `TG/1` and a newline.
    Tcp,
    /// JSON lines.
    JsonLines,
}

impl Preface {
    /// All of them, with the bytes by which they are known. No one begins like another.
    pub const ALL: [(&'static [u8], Self); 7] = [
        (b"\x16\x03", Self::Tls),
        (b"PROXY ", Self::ProxyV1),
        (b"\r\n\r\n\0\r\nQUIT\n", Self::ProxyV2),
        (b"GET ", Self::Http),
        // Of a browser, before it asks where to connect.
        (b"OPTIONS ", Self::Http),
        (b"TG/1\n", Self::Tcp),
        (b"{", Self::JsonLines),
    ];

    /// How many bytes only say which protocol it is, and are to be dropped before the rest is read.
    pub const fn skip(self) -> usize {
        match self {
            Self::Tcp => b"TG/1\n".len(),
            Self::Tls | Self::ProxyV1 | Self::ProxyV2 | Self::Http | Self::JsonLines => 0,
        }
    }
}

/// The answer of [`detect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detect {
    /// It is this.
    Found(Preface),
    /// It may become one of them.
    NeedMore,
    /// It can't become any of them: close with [`WireError::Preface`].
    Unknown,
}

impl Detect {
    /// The preface if it is known, `None` while it may become known.
    pub const fn found(self) -> Result<Option<Preface>, WireError> {
        match self {
            Self::Found(preface) => Ok(Some(preface)),
            Self::NeedMore => Ok(None),
            Self::Unknown => Err(WireError::Preface),
        }
    }
}

/// Looks at the first bytes of a connection, and waits for no more of them than it takes to tell.
pub fn detect(input: &[u8]) -> Detect {
    let mut open = false;
    for (sign, preface) in Preface::ALL {
        if input.starts_with(sign) {
            return Detect::Found(preface);
        }
        open |= sign.starts_with(input);
    }
    if open { Detect::NeedMore } else { Detect::Unknown }
}
