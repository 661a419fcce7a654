//! Content of a message; preserves fields that this version of the schema does not know.

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{self, DecodeContext, WireType},
};

/// `tidegate.v1.Content`: text, or data that only the clients understand.
///
/// Hand-written, unlike all other messages, because a node must pass on fields of a newer schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Content {
    /// Readable text or opaque bytes.
    pub body: Option<ContentBody>,
    /// Encoded fields with unknown numbers, in order of arrival.
    pub unknown: Vec<u8>,
}

/// Text or data of a [`Content`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContentBody {
    /// UTF-8 text.
    Text(String),
    /// Bytes that only the clients understand.
    Data(Bytes),
}

impl Content {
    /// Creates content with text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { body: Some(ContentBody::Text(text.into())), unknown: Vec::new() }
    }

    /// Creates content with opaque bytes.
    pub fn data(data: impl Into<Bytes>) -> Self {
        Self { body: Some(ContentBody::Data(data.into())), unknown: Vec::new() }
    }
}

impl Message for Content {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        match &self.body {
            Some(ContentBody::Text(text)) => encoding::string::encode(1, text, buf),
            Some(ContentBody::Data(data)) => encoding::bytes::encode(2, data, buf),
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
                self.body = Some(ContentBody::Text(text));
                Ok(())
            }
            2 => {
                let mut data = Bytes::new();
                encoding::bytes::merge(wire_type, &mut data, buf, ctx)?;
                self.body = Some(ContentBody::Data(data));
                Ok(())
            }
            _ => keep_unknown(&mut self.unknown, tag, wire_type, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let body = match &self.body {
            Some(ContentBody::Text(text)) => encoding::string::encoded_len(1, text),
            Some(ContentBody::Data(data)) => encoding::bytes::encoded_len(2, data),
            None => 0,
        };
        body + self.unknown.len()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

fn keep_unknown(
    out: &mut Vec<u8>,
    tag: u32,
    wire_type: WireType,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<(), DecodeError> {
    match wire_type {
        WireType::Varint => {
            let mut value = 0u64;
            encoding::uint64::merge(wire_type, &mut value, buf, ctx)?;
            encoding::encode_key(tag, wire_type, out);
            encoding::encode_varint(value, out);
        }
        WireType::LengthDelimited => {
            let mut value = Vec::new();
            encoding::bytes::merge(wire_type, &mut value, buf, ctx)?;
            encoding::bytes::encode(tag, &value, out);
        }
        WireType::SixtyFourBit => {
            let mut value = 0u64;
            encoding::fixed64::merge(wire_type, &mut value, buf, ctx)?;
            encoding::encode_key(tag, wire_type, out);
            out.put_u64_le(value);
        }
        WireType::ThirtyTwoBit => {
            let mut value = 0u32;
            encoding::fixed32::merge(wire_type, &mut value, buf, ctx)?;
            encoding::encode_key(tag, wire_type, out);
            out.put_u32_le(value);
        }
        WireType::StartGroup => keep_group(out, tag, buf, ctx)?,
        WireType::EndGroup => return Err(bad_group()),
    }
    Ok(())
}

/// Maximum nesting depth of protobuf groups in unknown fields. Protobuf libraries stop at a depth of 100, enclosing
/// frames included, and forwarded content must stay decodable for its receivers.
const GROUP_DEPTH_MAX: usize = 32;

fn keep_group(
    out: &mut Vec<u8>,
    tag: u32,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<(), DecodeError> {
    encoding::encode_key(tag, WireType::StartGroup, out);
    let mut open = vec![tag];
    while let Some(&innermost) = open.last() {
        let (tag, wire_type) = encoding::decode_key(buf)?;
        match wire_type {
            WireType::StartGroup if open.len() < GROUP_DEPTH_MAX => open.push(tag),
            WireType::EndGroup if tag == innermost => open.truncate(open.len() - 1),
            WireType::StartGroup | WireType::EndGroup => return Err(bad_group()),
            _ => {
                keep_unknown(out, tag, wire_type, buf, ctx.clone())?;
                continue;
            }
        }
        encoding::encode_key(tag, wire_type, out);
    }
    Ok(())
}

#[expect(deprecated, reason = "prost has no other way for a hand-written message to fail")]
fn bad_group() -> DecodeError {
    DecodeError::new("unknown group is nested too deeply or ends with another tag")
}
