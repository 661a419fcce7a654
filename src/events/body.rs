//! JSON of what histories, events and questions to hooks have in common: authors and contents of messages.

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Value, json};
use tidegate_protocol::{content::Content, record::Message};

/// Puts the sender of a message, and the id under which it was sent.
pub(crate) fn put_author(message: &Message, data: &mut Map<String, Value>) {
    data.insert("sender".to_owned(), json!(message.sender.as_str()));
    data.insert("device".to_owned(), json!(message.device.as_str()));
    data.insert("msgId".to_owned(), json!(message.msg_id.as_str()));
}

/// Returns an encoded content as clients get it in JSON; `null` if it can't be decoded, as in a push. Fields of a newer schema are
/// left out.
pub(crate) fn content_json(encoded: &Bytes) -> Value {
    let Ok(content) = Content::decode(encoded.clone()) else { return Value::Null };
    match serde_json::to_value(&content) {
        Ok(value) => value,
        // A node of a former version did not check the field; the rest must not be hidden with it.
        Err(_) => serde_json::to_value(Content { json: Bytes::new(), ..content }).unwrap_or_default(),
    }
}
