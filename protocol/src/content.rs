//! Content of a message; preserves fields that this version of the schema does not know.

mod check;

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{self, DecodeContext, WireType},
};

pub use self::check::{ContentError, JSON_DEPTH_MAX, MENTIONS_MAX};

/// `tidegate.v1.Content`: text, data or JSON, of which the broker understands nothing.
///
/// Hand-written, unlike all other messages, because a node must pass on fields of a newer schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Content {
    /// Readable text or opaque bytes.
    pub body: Option<ContentBody>,
    /// Kind of the JSON or the data, chosen by the application; empty: none.
    pub kind: String,
    /// JSON in UTF-8; empty: none. Only [`Self::checked`] makes sure that it is valid.
    pub json: Bytes,
    /// Seq of the message that this one replies to; 0: none.
    pub reply_to: u64,
    /// Mentioned users; `*` means all. Of a longer list only the first [`MENTIONS_MAX`] and one more are decoded.
    pub mentions: Vec<String>,
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
        Self { body: Some(ContentBody::Text(text.into())), ..Self::default() }
    }

    /// Creates content with opaque bytes.
    pub fn data(data: impl Into<Bytes>) -> Self {
        Self { body: Some(ContentBody::Data(data.into())), ..Self::default() }
    }

    /// Returns whether it is nothing but a body, as all content of the first version was.
    pub fn is_plain(&self) -> bool {
        let Self { kind, json, reply_to, mentions, unknown, .. } = self;
        kind.is_empty() && json.is_empty() && *reply_to == 0 && mentions.is_empty() && unknown.is_empty()
    }

    /// Adds a mention, unless the list is longer than allowed already.
    pub(crate) fn mention(&mut self, user: String) {
        if self.mentions.len() <= MENTIONS_MAX {
            self.mentions.push(user);
        }
    }
}

// Numbers of the fields after the body.
const TYPE: u32 = 3;
const JSON: u32 = 4;
const REPLY_TO: u32 = 5;
const MENTIONS: u32 = 6;

impl Message for Content {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        match &self.body {
            Some(ContentBody::Text(text)) => encoding::string::encode(1, text, buf),
            Some(ContentBody::Data(data)) => encoding::bytes::encode(2, data, buf),
            None => {}
        }
        if !self.kind.is_empty() {
            encoding::string::encode(TYPE, &self.kind, buf);
        }
        if !self.json.is_empty() {
            encoding::bytes::encode(JSON, &self.json, buf);
        }
        if self.reply_to != 0 {
            encoding::uint64::encode(REPLY_TO, &self.reply_to, buf);
        }
        encoding::string::encode_repeated(MENTIONS, &self.mentions, buf);
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
            TYPE => encoding::string::merge(wire_type, &mut self.kind, buf, ctx),
            JSON => encoding::bytes::merge(wire_type, &mut self.json, buf, ctx),
            REPLY_TO => encoding::uint64::merge(wire_type, &mut self.reply_to, buf, ctx),
            MENTIONS => {
                let mut user = String::new();
                encoding::string::merge(wire_type, &mut user, buf, ctx)?;
                self.mention(user);
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
        let kind = if self.kind.is_empty() { 0 } else { encoding::string::encoded_len(TYPE, &self.kind) };
        let json = if self.json.is_empty() { 0 } else { encoding::bytes::encoded_len(JSON, &self.json) };
        let reply_to =
            if self.reply_to == 0 { 0 } else { encoding::uint64::encoded_len(REPLY_TO, &self.reply_to) };
        let mentions = encoding::string::encoded_len_repeated(MENTIONS, &self.mentions);
        body + kind + json + reply_to + mentions + self.unknown.len()
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
