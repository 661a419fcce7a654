//! JSON of what history and events have in common: contents, and names of changes.

use data_encoding::BASE64;
use prost::Message as _;
use serde_json::{Value, json};
use tidegate_protocol::{
    content::{Content, ContentBody},
    record::Message,
};

/// Returns the content as `text` or `data`; `null` if it can't be decoded, as in a push. Fields of a newer schema are left
/// out.
pub(crate) fn content_json(message: &Message) -> Value {
    match Content::decode(message.content.clone()).map(|content| content.body) {
        Ok(Some(ContentBody::Text(text))) => json!({"text": text}),
        Ok(Some(ContentBody::Data(data))) => json!({"data": BASE64.encode(&data)}),
        Ok(None) => json!({}),
        Err(_) => Value::Null,
    }
}
