//! Form of the requests that send messages: targets, contents and the id that makes a request idempotent.

use bytes::Bytes;
use data_encoding::BASE64_NOPAD;
use prost::Message as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_protocol::{
    Code,
    content::Content,
    id::{ConversationId, MsgId, UserId},
    record::mode,
};

use crate::api::Problem;

/// Request for one message.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct SendMessage {
    pub(super) to: String,
    #[serde(default)]
    pub(super) from: Option<String>,
    pub(super) content: ContentForm,
    #[serde(default)]
    pub(super) flags: Vec<FlagWord>,
    #[serde(default)]
    pub(super) request_id: Option<String>,
}

/// Content of a message: text or base64 of data, JSON, and what belongs to them.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct ContentForm {
    text: Option<String>,
    data: Option<String>,
    #[serde(default, rename = "type")]
    kind: String,
    json: Option<Box<RawValue>>,
    #[serde(default)]
    reply_to: u64,
    #[serde(default)]
    mentions: Vec<String>,
}

/// Flag of a message.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) enum FlagWord {
    /// The content is not stored.
    Transient,
    /// The message does not count as unread.
    Silent,
    /// Push providers get no notice.
    NoPush,
}

/// Returns the flags as they are on the wire.
pub(super) fn flags(words: &[FlagWord]) -> u32 {
    words.iter().fold(0, |flags, word| {
        flags
            | match word {
                FlagWord::Transient => mode::TRANSIENT,
                FlagWord::Silent => mode::SILENT,
                FlagWord::NoPush => mode::NO_PUSH,
            }
    })
}

impl SendMessage {
    /// Takes the id of the header, if the request has none of its own.
    pub(super) fn with_key(mut self, key: Option<String>) -> Result<Self, Problem> {
        self.request_id = one_id(self.request_id, key)?;
        Ok(self)
    }
}

impl ContentForm {
    /// Returns the encoded content, of at most `bytes_max` bytes.
    pub(super) fn encoded(self, bytes_max: usize) -> Result<Bytes, Problem> {
        let bad = |why: &str| Problem(Code::BadContent, why.to_owned());
        let body = match (self.text, self.data) {
            (Some(text), None) => Content::text(text),
            (None, Some(data)) => {
                Content::data(decoded(&data).ok_or_else(|| bad("content.data: must be base64"))?)
            }
            (None, None) => Content::default(),
            (Some(_), Some(_)) => return Err(bad("content: set only one of text and data")),
        };
        let content = Content {
            kind: self.kind,
            json: self.json.map_or_else(Bytes::new, |json| Box::<str>::from(json).into_string().into()),
            reply_to: self.reply_to,
            mentions: self.mentions,
            ..body
        };
        let content = content.checked().map_err(|error| bad(&format!("content: {error}")))?;
        match content.encoded_len() {
            len if len > bytes_max => Err(Problem(
                Code::ContentTooLarge,
                format!("the content has {len} bytes, encoded; at most {bytes_max} are allowed"),
            )),
            _ => Ok(content.encode_to_vec().into()),
        }
    }
}

/// Decodes base64 of either alphabet, with or without padding, as client frames may have it.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let alphabet = |byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        byte => byte,
    };
    let text: Vec<u8> = text.trim_end_matches('=').bytes().map(alphabet).collect();
    BASE64_NOPAD.decode(&text).ok()
}

/// Returns the conversation that a target names, for a message of `sender`. The users of a direct conversation may be in
/// any order.
pub(super) fn target(to: &str, sender: &UserId) -> Result<ConversationId, Problem> {
    let user = |id: &str| {
        UserId::addressable(id)
            .map_err(|error| Problem(Code::BadId, format!("to: user {}: {error}", quoted(id))))
    };
    if !to.contains(':') {
        return Ok(ConversationId::direct(sender, &user(to)?));
    }
    conversation(to).map_err(|error| Problem(Code::BadId, format!("to: {error}")))
}

/// Returns the conversation with the key; the users of a direct one may be in any order.
pub(super) fn conversation(key: &str) -> Result<ConversationId, String> {
    ConversationId::addressable(key).map_err(|error| format!("conversation {}: {error}", quoted(key)))
}

/// Most characters of a caller's text in a refusal.
const QUOTED_MAX: usize = 64;

/// Returns the begin of a text in quotation marks, for a refusal: callers may have put anything there.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Returns the id of a message from the field `requestId`.
pub(super) fn message_id(text: &str) -> Result<MsgId, Problem> {
    MsgId::new(text)
        .map_err(|_| Problem(Code::BadId, "requestId: must match [A-Za-z0-9_.-]{1,64}".to_owned()))
}

/// Returns the one id that the field and the header give.
pub(in crate::api) fn one_id(
    field: Option<String>,
    header: Option<String>,
) -> Result<Option<String>, Problem> {
    match (field, header) {
        (Some(field), Some(header)) if field != header => Err(Problem(
            Code::BadContent,
            "requestId and Idempotency-Key differ; send one of them, or the same id in both".to_owned(),
        )),
        (field, header) => Ok(field.or(header)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T>(result: Result<T, Problem>) -> Option<Code> {
        result.err().map(|Problem(code, _)| code)
    }

    #[test]
    fn target_is_a_user_or_a_conversation_with_its_users_in_any_order() {
        let alice = UserId::new("alice").unwrap();
        for (to, key) in [
            ("bob", "d:alice:bob"),
            ("alice", "d:alice:alice"),
            ("d:alice:bob", "d:alice:bob"),
            ("d:bob:alice", "d:alice:bob"),
            ("d:zoe:carl", "d:carl:zoe"),
            ("g:team", "g:team"),
            ("r:hall", "r:hall"),
        ] {
            let found = target(to, &alice);
            assert_eq!(found.ok().map(|it| it.as_str().to_owned()), Some(key.to_owned()), "{to}");
        }
        for to in ["", "bo b", "d:alice", "d:a:b:c", "d::b", "g:", "x:team", ":", "g:te am", &"u".repeat(65)]
            .into_iter()
            .chain([".", "..", "g:.", "r:..", "d:..:bob"])
        {
            assert_eq!(code(target(to, &alice)), Some(Code::BadId), "{to}");
        }
    }

    #[test]
    fn content_is_text_or_data_and_has_the_bytes_that_a_client_would_send() {
        let content = |text: &str, max| {
            let form: ContentForm =
                serde_json::from_str(text).map_err(|_| Problem(Code::Malformed, String::new()))?;
            form.encoded(max)
        };
        let text: Bytes = Content::text("hi").encode_to_vec().into();
        assert_eq!(content(r#"{"text":"hi"}"#, 4).ok(), Some(text));
        let data: Bytes = Content::data(vec![0xfb, 0xff, 0xfe]).encode_to_vec().into();
        for form in [r#"{"data":"+//+"}"#, r#"{"data":"-__-"}"#] {
            assert_eq!(content(form, 100).ok(), Some(data.clone()), "{form}");
        }
        for form in [r#"{"data":"AA=="}"#, r#"{"data":"AA"}"#] {
            assert!(content(form, 100).is_ok(), "{form}");
        }
        for (form, refused) in [
            ("{}", Code::BadContent),
            (r#"{"text":"a","data":""}"#, Code::BadContent),
            (r#"{"data":"?"}"#, Code::BadContent),
            (r#"{"text":"hi!"}"#, Code::ContentTooLarge),
            (r#"{"text":"a","more":1}"#, Code::Malformed),
        ] {
            assert_eq!(code(content(form, 4)), Some(refused), "{form}");
        }
    }

    #[test]
    fn header_and_field_are_one_id() {
        let id = |text: &str| Some(text.to_owned());
        assert_eq!(one_id(id("a"), id("a")).ok(), Some(id("a")));
        assert_eq!(one_id(None, id("a")).ok(), Some(id("a")));
        assert_eq!(code(one_id(id("a"), id("b"))), Some(Code::BadContent));
        assert_eq!(code(message_id("a b")), Some(Code::BadId));
    }

    #[test]
    fn refusals_repeat_only_the_begin_of_a_long_text() {
        let long = "\u{200b}".repeat(2_000_000);
        let alice = UserId::new("alice").unwrap();
        for to in [long.clone(), format!("d:{long}:bob"), format!("d:bob:{long}"), format!("x:{long}")] {
            let Err(Problem(_, why)) = target(&to, &alice) else { panic!("a target") };
            assert!(why.len() < 1_000, "{} bytes", why.len());
        }
        assert_eq!(quoted("b b"), "\"b b\"");
    }
}
