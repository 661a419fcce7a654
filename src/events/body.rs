//! JSON of what history and events have in common: contents.

use bytes::Bytes;
use prost::Message as _;
use serde_json::Value;
use tidegate_protocol::content::Content;

/// Returns an encoded content as clients get it in JSON; `null` if it can't be decoded, as in a push. Fields of a newer schema are
/// left out.
pub(crate) fn content_json(encoded: &Bytes) -> Value {
    let Ok(content) = Content::decode(encoded.clone()) else { return Value::Null };
    serde_json::to_value(content).unwrap_or_default()
}
