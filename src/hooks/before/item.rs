//! Item of a request: a message or an edit, as the hook gets it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use prost::Message as _;
use serde::Serialize;
use serde_json::Value;
use tidegate_protocol::{
    content::Content,
    id::{ConversationId, DeviceId, MsgId, UserId},
    record::flag_words,
};

use crate::events::content_json;

/// Question about a message or an edit of a client.
#[derive(Clone, Debug)]
pub struct BeforeQuestion {
    /// Conversation of the message.
    pub conversation: ConversationId,
    /// User who sends it.
    pub sender: UserId,
    /// Device of the user.
    pub device: DeviceId,
    /// Id of the message or the edit.
    pub msg_id: MsgId,
    /// Attempt number of a message; above 0 if the id may have been sent before.
    pub attempt: u32,
    /// Encoded content.
    pub content: Bytes,
    /// Flags of the sender.
    pub flags: u32,
    /// Seq of the message that an edit replaces; `None` for a message.
    pub of: Option<u64>,
}

/// Question as an item of a request.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ItemJson<'a> {
    attempt: u32,
    content: Value,
    conversation: &'a str,
    device: &'a str,
    first: bool,
    flags: Vec<&'static str>,
    msg_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<u64>,
    sender: &'a str,
    /// Fields of the content that this version does not know: they reach the receivers.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
}

impl BeforeQuestion {
    /// Returns the JSON of the item.
    pub(super) fn encode(&self, is_first: bool) -> Vec<u8> {
        let item = ItemJson {
            attempt: self.attempt,
            content: content_json(&self.content),
            conversation: self.conversation.as_str(),
            device: self.device.as_str(),
            first: is_first,
            flags: flag_words(self.flags),
            msg_id: self.msg_id.as_str(),
            of: self.of,
            sender: self.sender.as_str(),
            unknown: unknown_fields(&self.content),
        };
        serde_json::to_vec(&item).unwrap_or_default()
    }
}

/// Returns the fields of a content that this version does not know, in base64.
fn unknown_fields(content: &[u8]) -> Option<String> {
    let unknown = Content::decode(content).map(|content| content.unknown).unwrap_or_default();
    (!unknown.is_empty()).then(|| STANDARD.encode(unknown))
}
