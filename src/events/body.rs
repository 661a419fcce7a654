//! JSON of what history and events have in common: contents.

use bytes::Bytes;
use prost::Message as _;
use serde_json::Value;
use tidegate_protocol::content::Content;

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
