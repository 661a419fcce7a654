//! JSON form of the three messages with a oneof, both frames and `Content`: the chosen kind is a key of the object.

use std::fmt;

use base64::{
    Engine,
    alphabet::{STANDARD, URL_SAFE},
    engine::{
        DecodePaddingMode::Indifferent,
        general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD as CANONICAL},
    },
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
    ser::SerializeMap,
};

use bytes::Bytes;
use serde_json::value::RawValue;

use super::fields::{Object, integer};
use crate::{
    content::{Content, ContentBody},
    pb,
};

/// `id` of a frame, read like any other integer field.
#[derive(Deserialize)]
#[serde(transparent)]
struct Id(#[serde(deserialize_with = "integer")] u64);

macro_rules! envelope {
    ($frame:ident, $oneof:ident { $($kind:ident $name:literal $(or $alias:literal)?,)* }) => {
        const _: () = {
            use pb::$oneof::Body;

            #[derive(Deserialize)]
            #[serde(field_identifier)]
            enum Key {
                #[serde(rename = "id")]
                Id,
                $(#[serde(rename = $name $(, alias = $alias)?)] $kind,)*
                #[serde(other)]
                Other,
            }

            impl Serialize for pb::$frame {
                fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                    let mut map = to.serialize_map(None)?;
                    if self.id != 0 {
                        map.serialize_entry("id", &self.id)?;
                    }
                    match &self.body {
                        None => {}
                        $(Some(Body::$kind(body)) => map.serialize_entry($name, body)?,)*
                    }
                    map.end()
                }
            }

            struct FrameVisitor;

            impl<'de> Visitor<'de> for FrameVisitor {
                type Value = pb::$frame;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object with one kind of frame")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                    let (mut id, mut body) = (None, None);
                    while let Some(key) = map.next_key()? {
                        match key {
                            Key::Id => set(&mut id, Some(map.next_value::<Id>()?.0))?,
                            $(Key::$kind => {
                                let value = map.next_value::<Option<Object<_>>>()?;
                                set(&mut body, value.map(|object| Body::$kind(object.0)))?;
                            })*
                            Key::Other => {
                                map.next_value::<IgnoredAny>()?;
                            }
                        }
                    }
                    Ok(pb::$frame { id: id.unwrap_or_default(), body })
                }
            }

            impl<'de> Deserialize<'de> for pb::$frame {
                fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    from.deserialize_map(FrameVisitor)
                }
            }
        };
    };
}

envelope!(ClientFrame, client_frame {
    Hello "hello",
    Send "send",
    Ack "ack",
    Ping "ping",
    Read "read",
    Sync "sync",
    Pull "pull",
    NextId "nextId" or "next_id",
    Join "join",
    Leave "leave",
    Bye "bye",
    Pong "pong",
    Recall "recall",
    Clear "clear",
    Hide "hide",
    Signal "signal",
    Refresh "refresh",
    React "react",
    Edit "edit",
    Watch "watch",
});

envelope!(ServerFrame, server_frame {
    Push "push",
    SendAck "sendAck" or "send_ack",
    Error "error",
    Pong "pong",
    Welcome "welcome",
    Done "done",
    Behind "behind",
    Shed "shed",
    Notice "notice",
    GoAway "goAway" or "go_away",
    Close "close",
    Page "page",
    ConversationState "conversationState" or "conversation_state",
    SyncEnd "syncEnd" or "sync_end",
    Receipt "receipt",
    NextIdIs "nextIdIs" or "next_id_is",
    Ping "ping",
    Cleared "cleared",
    Hidden "hidden",
    Signal "signal",
    RoomStats "roomStats" or "room_stats",
    Presence "presence",
});

/// Sets `field`, and fails if it is already set; `null` (`None`) sets nothing.
fn set<T, E: de::Error>(field: &mut Option<T>, value: Option<T>) -> Result<(), E> {
    if value.is_some() && field.is_some() {
        return Err(E::custom("duplicate or mutually exclusive keys"));
    }
    if value.is_some() {
        *field = value;
    }
    Ok(())
}

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new().with_decode_padding_mode(Indifferent);
const LENIENT_STANDARD: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);
const LENIENT_URL_SAFE: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, LENIENT);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum ContentKey {
    Text,
    Data,
    Type,
    Json,
    #[serde(alias = "reply_to")]
    ReplyTo,
    Mentions,
    #[serde(other)]
    Other,
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        match &self.body {
            Some(ContentBody::Text(text)) => map.serialize_entry("text", text)?,
            Some(ContentBody::Data(data)) => map.serialize_entry("data", &CANONICAL.encode(data))?,
            None => {}
        }
        if !self.kind.is_empty() {
            map.serialize_entry("type", &self.kind)?;
        }
        // Nodes of a former version pass on the field without a check. A line break in it would begin another frame of a
        // JSON line, which its author could choose.
        if let Ok(json) = serde_json::from_slice::<&RawValue>(&self.json)
            && !self.json.contains(&b'\n')
            && !self.json.contains(&b'\r')
        {
            map.serialize_entry("json", json)?;
        }
        if self.reply_to != 0 {
            map.serialize_entry("replyTo", &self.reply_to)?;
        }
        if !self.mentions.is_empty() {
            map.serialize_entry("mentions", &self.mentions)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with text, data or json")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut content, mut body) = (Content::default(), None);
        while let Some(key) = map.next_key()? {
            match key {
                ContentKey::Type => content.kind = map.next_value::<Option<_>>()?.unwrap_or_default(),
                ContentKey::Json => {
                    let json = map.next_value::<Option<Box<RawValue>>>()?;
                    content.json =
                        json.map_or_else(Bytes::new, |it| Box::<str>::from(it).into_string().into());
                }
                ContentKey::ReplyTo => content.reply_to = map.next_value::<Id>()?.0,
                ContentKey::Mentions => {
                    content.mentions = map.next_value::<Option<Mentions>>()?.unwrap_or_default().0;
                }
                ContentKey::Text => {
                    set(&mut body, map.next_value::<Option<String>>()?.map(ContentBody::Text))?
                }
                ContentKey::Data => {
                    set(
                        &mut body,
                        map.next_value::<Option<Base64>>()?.map(|data| ContentBody::Data(data.0.into())),
                    )?;
                }
                ContentKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Content { body, ..content })
    }
}

/// Mentions of a content, as many as [`Content::mention`] takes.
#[derive(Default)]
struct Mentions(Vec<String>);

impl<'de> Deserialize<'de> for Mentions {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct MentionsVisitor;

        impl<'de> Visitor<'de> for MentionsVisitor {
            type Value = Mentions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of users")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut users: A) -> Result<Mentions, A::Error> {
                let mut content = Content::default();
                while let Some(user) = users.next_element()? {
                    content.mention(user);
                }
                Ok(Mentions(content.mentions))
            }
        }

        from.deserialize_seq(MentionsVisitor)
    }
}

struct Base64(Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Base64Visitor;

        impl Visitor<'_> for Base64Visitor {
            type Value = Base64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base64")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Base64, E> {
                let url_safe = text.bytes().any(|byte| matches!(byte, b'-' | b'_'));
                let engine = if url_safe { LENIENT_URL_SAFE } else { LENIENT_STANDARD };
                engine.decode(text).map(Base64).map_err(|_| E::custom("not base64"))
            }
        }

        from.deserialize_str(Base64Visitor)
    }
}
