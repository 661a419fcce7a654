//! Encoding of a notice as a CloudEvent.

use prost::Message as _;
use serde_json::{Map, Value, json};
use tidegate_protocol::{
    content::{Content, ContentBody},
    machine::waiting::WaitingNotice,
    record::{Body, Message},
};

use crate::{
    connections::{ConnectedDevices, DeviceSeen},
    hooks::EncodedEvent,
    webhooks::{CloudEvent, FoundEntry, WaitingPreview, cloud_event},
};

/// Type of the event.
pub(super) const WAITING: &str = "tidegate.message.waiting";

/// Longest beginning of a text in a preview, in characters: a push provider takes 4 KiB in all.
const PREVIEW_CHARS_MAX: usize = 256;

/// What is known about a notice that is due.
#[derive(Clone, Debug)]
pub(super) struct NoticeFacts {
    pub(super) notice: WaitingNotice,
    /// Whether an unread message of the notice mentions the user.
    pub(super) is_mentioned: bool,
    /// Unread messages of the conversation.
    pub(super) unread: u64,
    /// Unread messages of the user; `None` if they are not wanted, or took too long to count.
    pub(super) badge: Option<u64>,
    /// Connected devices; `None` if nothing asked for them.
    pub(super) devices: Option<ConnectedDevices>,
}

/// Encodes a notice; `shown` is the preview of its newest message, if it has content.
pub(super) fn encode(
    source: &str,
    preview: WaitingPreview,
    facts: &NoticeFacts,
    shown: Option<Value>,
) -> EncodedEvent {
    let WaitingNotice { user, newest, count, .. } = &facts.notice;
    let key = newest.conversation.as_str();
    let mut data = Map::new();
    let mut put = |name: &str, value: Value| drop(data.insert(name.to_owned(), value));
    put("user", json!(user.as_str()));
    put("conversation", json!(key));
    put("seq", json!(newest.seq));
    put("time", json!(newest.time));
    put("count", json!(count));
    put("unread", json!(facts.unread));
    put("mentioned", json!(facts.is_mentioned));
    if let Some(badge) = facts.badge {
        put("badge", json!(badge));
    }
    if let Some(of) = &facts.devices {
        let devices = of.devices.iter().map(|(device, seen)| {
            let seen = match seen {
                DeviceSeen::Unknown => "unknown",
                DeviceSeen::Unacked => "unacked",
                DeviceSeen::Acked => "acked",
            };
            json!({"device": device.as_str(), "seen": seen})
        });
        put("devices", devices.collect());
    }
    if preview != WaitingPreview::None {
        put("from", json!(newest.sender.as_str()));
    }
    if let Some(shown) = shown {
        put("preview", shown);
    }
    cloud_event(CloudEvent {
        id: format!("waiting/{user}/{key}/{}", newest.seq),
        kind: WAITING,
        source,
        subject: key,
        time: Some(newest.time),
        data,
    })
}

/// Returns the preview of a message, of a bounded length.
pub(super) fn preview_of(found: &FoundEntry) -> Value {
    let row = match found {
        FoundEntry::Row(row, _) if row.recalled.is_none() => row,
        FoundEntry::Row(..) => return json!({"gone": "recalled"}),
        FoundEntry::Pruned => return json!({"gone": "pruned"}),
    };
    match &row.row.body {
        Body::Message(message) if message.mode.is_transient => json!({"gone": "transient"}),
        Body::Message(message) => beginning(message),
        _ => json!({}),
    }
}

fn beginning(message: &Message) -> Value {
    let Ok(content) = Content::decode(message.content.clone()) else { return json!({}) };
    let mut preview = Map::new();
    if !content.kind.is_empty() {
        preview.insert("type".to_owned(), json!(content.kind));
    }
    if let Some(ContentBody::Text(text)) = &content.body {
        let beginning: String = text.chars().take(PREVIEW_CHARS_MAX).collect();
        if beginning.len() < text.len() {
            preview.insert("cut".to_owned(), json!(true));
        }
        preview.insert("text".to_owned(), json!(beginning));
    }
    Value::Object(preview)
}
