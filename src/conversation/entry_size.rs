//! Size of an entry of a history as JSON, which bounds the responses of the admin API.

use prost::Message as _;
use tidegate_protocol::{
    content::{Content, ContentBody},
    record::{Body, MemberChange, Message},
};

use crate::store::StoredRow;

/// Bytes of the fields of an entry besides its ids, its content and its users.
const FIELDS_BYTES: usize = 96;

/// Returns the approximate number of bytes of an entry as JSON.
pub(crate) fn entry_bytes(row: &StoredRow) -> usize {
    FIELDS_BYTES
        + match &row.row.body {
            Body::Message(message) => message_bytes(message),
            Body::Member(change) => change_bytes(change),
            // Its content is counted apart.
            Body::Edit(_) | Body::Recall(_) | Body::Prune(_) | Body::Rules(_) => 0,
        }
}

fn message_bytes(message: &Message) -> usize {
    let content = Content::decode(message.content.clone()).map_or(0, |content| {
        let body = match &content.body {
            Some(ContentBody::Text(text)) => escaped_bytes(text.as_bytes()),
            Some(ContentBody::Data(data)) => data.len().div_ceil(3) * 4,
            None => 0,
        };
        let mentions: usize = content.mentions.iter().map(|user| user.len() + 3).sum();
        body + content.kind.len() + content.json.len() + mentions
    });
    message.sender.as_str().len() + message.device.as_str().len() + message.msg_id.as_str().len() + content
}

fn change_bytes(change: &MemberChange) -> usize {
    let users: usize = change.users.iter().map(|user| user.as_str().len() + 3).sum();
    let setting = |(name, value): (&String, &String)| {
        escaped_bytes(name.as_bytes()) + escaped_bytes(value.as_bytes()) + 6
    };
    users + change.settings.iter().map(setting).sum::<usize>()
}

/// Returns the bytes of a text within JSON.
fn escaped_bytes(text: &[u8]) -> usize {
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.iter().map(escaped).sum()
}
