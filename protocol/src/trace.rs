//! W3C trace context (`traceparent`) of a message, which links its steps on all nodes.

use std::{fmt, str::FromStr};

use prost::{
    bytes::Buf as _,
    encoding::{WireType, decode_key, decode_varint},
};

/// Size of a context in a record, in bytes.
pub const TRACE_BYTES: usize = 24;

/// Number of the `Record` field that holds the trace context.
const RECORD_TRACE: u32 = 9;

/// Trace of one message. Only messages whose steps are recorded have one, so the sampled flag is always set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceContext {
    id: [u8; 16],
    span: [u8; 8],
}

impl TraceContext {
    /// Creates a trace from random numbers. Zeros, which the W3C forbids, become ones.
    pub fn new(id: u128, span: u64) -> Self {
        Self { id: id.max(1).to_be_bytes(), span: span.max(1).to_be_bytes() }
    }

    /// Returns the trace id.
    pub fn id(&self) -> u128 {
        u128::from_be_bytes(self.id)
    }

    /// Encodes the context as in a record.
    pub fn to_bytes(self) -> [u8; TRACE_BYTES] {
        let mut bytes = [0; TRACE_BYTES];
        bytes[..16].copy_from_slice(&self.id);
        bytes[16..].copy_from_slice(&self.span);
        bytes
    }

    /// Decodes the context of a record, `None` if it is missing or invalid: a bad trace never fails a record.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, span) = bytes.split_first_chunk::<16>()?;
        let span = <[u8; 8]>::try_from(span).ok()?;
        (*id != [0; 16] && span != [0; 8]).then_some(Self { id: *id, span })
    }

    /// Finds the trace context in an encoded record without decoding the other fields.
    pub fn of_record(mut record: &[u8]) -> Option<Self> {
        while !record.is_empty() {
            let (tag, kind) = decode_key(&mut record).ok()?;
            let number = decode_varint(&mut record).ok()?;
            match kind {
                WireType::Varint => {}
                WireType::LengthDelimited => {
                    let bytes = record.get(..usize::try_from(number).ok()?)?;
                    if tag == RECORD_TRACE {
                        return Self::from_bytes(bytes);
                    }
                    record.advance(bytes.len());
                }
                _ => return None,
            }
        }
        None
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-01", self.id(), u64::from_be_bytes(self.span))
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error for text that is not a valid `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent")]
pub struct TraceError;

impl FromStr for TraceContext {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        let lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'));
        let mut parts = text.split('-');
        let (Some("00"), Some(id), Some(span), Some(flags), None, true) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next(), lower)
        else {
            return Err(TraceError);
        };
        if (id.len(), span.len(), flags.len()) != (32, 16, 2) {
            return Err(TraceError);
        }
        let id = u128::from_str_radix(id, 16).map_err(|_| TraceError)?;
        let span = u64::from_str_radix(span, 16).map_err(|_| TraceError)?;
        if id == 0 || span == 0 { Err(TraceError) } else { Ok(Self::new(id, span)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn context_round_trips_and_malformed_text_is_refused() {
        let context: TraceContext = TEXT.parse().unwrap();
        assert_eq!(context.to_string(), TEXT);
        assert_eq!(TraceContext::from_bytes(&context.to_bytes()), Some(context));
        let wrong = [
            "",
            "00",
            &TEXT[..54],
            &TEXT.to_uppercase(),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        ];
        for text in wrong {
            assert_eq!(text.parse::<TraceContext>(), Err(TraceError), "{text}");
        }
        assert_eq!(TraceContext::from_bytes(&[0; TRACE_BYTES]), None);
        assert_eq!(TraceContext::from_bytes(&[1; 23]), None);
        assert_eq!(TraceContext::new(0, 0), TraceContext::new(1, 1));
    }
}
