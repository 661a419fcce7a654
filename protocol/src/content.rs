//! What a person or a program said, with the fields that this version does not know kept as they came.

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{self, DecodeContext, WireType},
};

/// `tidegate.v1.Content`: text, or data that only the clients understand.
///
/// Hand-written where all other messages are generated, because a node must pass on fields of a newer schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Content {
    /// Readable text or opaque bytes.
    pub body: Option<Body>,
    /// Encoded fields with numbers unknown here, in the order they came.
    pub unknown: Vec<u8>,
}

/// The two forms of content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// UTF-8 text.
    Text(String),
    /// Bytes that only the clients understand.
    Data(Bytes),
}

impl Content {
    /// Content that is text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { body: Some(Body::Text(text.into())), unknown: Vec::new() }
    }

    /// Content that is bytes.
    pub fn data(data: impl Into<Bytes>) -> Self {
        Self { body: Some(Body::Data(data.into())), unknown: Vec::new() }
    }
}

impl Message for Content {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        match &self.body {
            Some(Body::Text(text)) => encoding::string::encode(1, text, buf),
            Some(Body::Data(data)) => encoding::bytes::encode(2, data, buf),
            None => {}
        }
        buf.put_slice(&self.unknown);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => {
                let mut text = String::new();
                encoding::string::merge(wire_type, &mut text, buf, ctx)?;
                self.body = Some(Body::Text(text));
                Ok(())
            }
            2 => {
                let mut data = Bytes::new();
                encoding::bytes::merge(wire_type, &mut data, buf, ctx)?;
                self.body = Some(Body::Data(data));
                Ok(())
            }
            _ => keep_unknown(&mut self.unknown, tag, wire_type, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let body = match &self.body {
            Some(Body::Text(text)) => encoding::string::encoded_len(1, text),
            Some(Body::Data(data)) => encoding::bytes::encoded_len(2, data),
            None => 0,
        };
        body + self.unknown.len()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

fn keep_unknown(
    kept: &mut Vec<u8>,
    tag: u32,
    wire_type: WireType,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<(), DecodeError> {
    match wire_type {
        WireType::Varint => {
            let mut value = 0u64;
            encoding::uint64::merge(wire_type, &mut value, buf, ctx)?;
            encoding::encode_key(tag, wire_type, kept);
            encoding::encode_varint(value, kept);
        }
        WireType::LengthDelimited => {
            let mut value = Vec::new();
            encoding::bytes::merge(wire_type, &mut value, buf, ctx)?;
            encoding::bytes::encode(tag, &value, kept);
        }
        WireType::SixtyFourBit => {
            let mut value = 0u64;
            encoding::fixed64::merge(wire_type, &mut value, buf, ctx)?;
            encoding::encode_key(tag, wire_type, kept);
            kept.put_u64_le(value);
        }
        WireType::ThirtyTwoBit => {
            let mut value = 0u32;
            encoding::fixed32::merge(wire_type, &mut value, buf, ctx)?;
            encoding::encode_key(tag, wire_type, kept);
            kept.put_u32_le(value);
        }
        WireType::StartGroup => keep_group(kept, tag, buf, ctx)?,
        WireType::EndGroup => return Err(bad_group()),
    }
    Ok(())
}

/// How deep groups may be inside each other. Protobuf libraries stop at a depth of 100, frames around the content
/// included; what is passed on must not break its receivers.
const GROUPS_MAX: usize = 32;

fn keep_group(
    kept: &mut Vec<u8>,
    tag: u32,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<(), DecodeError> {
    encoding::encode_key(tag, WireType::StartGroup, kept);
    let mut open = vec![tag];
    while let Some(&innermost) = open.last() {
        let (tag, wire_type) = encoding::decode_key(buf)?;
        match wire_type {
            WireType::StartGroup if open.len() < GROUPS_MAX => open.push(tag),
            WireType::EndGroup if tag == innermost => open.truncate(open.len() - 1),
            WireType::StartGroup | WireType::EndGroup => return Err(bad_group()),
            _ => {
                keep_unknown(kept, tag, wire_type, buf, ctx.clone())?;
                continue;
            }
        }
        encoding::encode_key(tag, wire_type, kept);
    }
    Ok(())
}

#[expect(deprecated, reason = "prost has no other way for a hand-written message to refuse")]
fn bad_group() -> DecodeError {
    DecodeError::new("a group too deep, or ended by another")
}
