//! Protocol detection by the first bytes of a connection (SPEC section 1).

use super::WireError;

/// Protocol that the first bytes announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preface {
    /// TLS handshake; the protocol follows inside.
    Tls,
    /// PROXY header in text form; the protocol follows it.
    ProxyV1,
    /// PROXY header in binary form; the protocol follows it.
    ProxyV2,
    /// HTTP request: a WebSocket upgrade, or a request to `/v1/assign`.
    Http,
    /// Protobuf frames with a length prefix, after `TG/1` and a newline.
    Tcp,
    /// JSON lines.
    JsonLines,
}

impl Preface {
    /// All prefaces with their first bytes; none is a prefix of another.
    pub const ALL: [(&'static [u8], Self); 7] = [
        (b"\x16\x03", Self::Tls),
        (b"PROXY ", Self::ProxyV1),
        (b"\r\n\r\n\0\r\nQUIT\n", Self::ProxyV2),
        (b"GET ", Self::Http),
        // A browser's CORS preflight before `/v1/assign`.
        (b"OPTIONS ", Self::Http),
        (b"TG/1\n", Self::Tcp),
        (b"{", Self::JsonLines),
    ];

    /// Returns how many bytes only announce the protocol, and must be dropped before the rest is read.
    pub const fn skip(self) -> usize {
        match self {
            Self::Tcp => b"TG/1\n".len(),
            Self::Tls | Self::ProxyV1 | Self::ProxyV2 | Self::Http | Self::JsonLines => 0,
        }
    }
}

/// Result of [`detect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detect {
    /// The preface is complete.
    Found(Preface),
    /// More bytes may complete a preface.
    NeedMore,
    /// No preface begins like this: close with [`WireError::Preface`].
    Unknown,
}

impl Detect {
    /// Returns the preface, `None` while more bytes are needed.
    pub const fn found(self) -> Result<Option<Preface>, WireError> {
        match self {
            Self::Found(preface) => Ok(Some(preface)),
            Self::NeedMore => Ok(None),
            Self::Unknown => Err(WireError::Preface),
        }
    }
}

/// Detects the protocol of a connection from as few of its first bytes as are needed to distinguish it.
pub fn detect(input: &[u8]) -> Detect {
    let mut possible = false;
    for (first_bytes, preface) in Preface::ALL {
        if input.starts_with(first_bytes) {
            return Detect::Found(preface);
        }
        possible |= first_bytes.starts_with(input);
    }
    if possible { Detect::NeedMore } else { Detect::Unknown }
}
