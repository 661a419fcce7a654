//! Checks of a content that a client or a back end sends, and the form in which its JSON is stored.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::Content;
use crate::id::{IdError, UserId, check_id};

/// Maximum number of mentions of one message.
pub const MENTIONS_MAX: usize = 50;

/// Maximum depth of the JSON of a content: a number or text has depth 0, an empty array depth 1.
pub const JSON_DEPTH_MAX: usize = 32;

/// Begin of the kinds that the protocol may define itself.
const RESERVED: &str = "tg.";

/// Reason why a content is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// It has neither text nor data nor JSON.
    #[error("set at least one of text, data and json")]
    Empty,
    /// Its kind is not well formed.
    #[error("type: {0}")]
    Kind(IdError),
    /// Its kind is one of the protocol.
    #[error("type: names that begin with `tg.` are reserved")]
    Reserved,
    /// Its JSON is not valid.
    #[error("json: it is not one valid JSON value in UTF-8; the error is at byte {0}")]
    Syntax(usize),
    /// Its JSON is the value `null`, which counts as absent in the JSON form of a frame.
    #[error("json: must not be null; leave it out")]
    Null,
    /// Its JSON is nested too deeply.
    #[error("json: nested deeper than {JSON_DEPTH_MAX} levels")]
    Depth,
    /// An object of its JSON has a key twice.
    #[error("json: an object has a key twice; the second one is at byte {0}")]
    Twice(usize),
    /// The list of mentions is too long.
    #[error("mentions: at most {MENTIONS_MAX} are allowed")]
    Mentions,
    /// It mentions something that is no user.
    #[error("mentions: {0}; use ids of users, or `*` for all")]
    Mention(IdError),
}

impl Content {
    /// Checks all fields that this version knows, and returns the content with its JSON without insignificant white space, so
    /// that a repeated message has the same bytes in whatever framing it comes.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn checked(mut self) -> Result<Self, ContentError> {
        // A field of a newer schema may be a body of its own.
        if self.body.is_none() && self.json.is_empty() && self.unknown.is_empty() {
            return Err(ContentError::Empty);
        }
        if !self.kind.is_empty() {
            check_id(&self.kind).map_err(ContentError::Kind)?;
            if self.kind.starts_with(RESERVED) {
                return Err(ContentError::Reserved);
            }
        }
        if !self.json.is_empty() {
            self.json = minified(&self.json)?;
        }
        if self.mentions.len() > MENTIONS_MAX {
            return Err(ContentError::Mentions);
        }
        for user in self.mentions.iter().filter(|user| *user != "*") {
            UserId::new(user).map_err(ContentError::Mention)?;
        }
        Ok(self)
    }
}

/// Container that the scan of a JSON text is in.
enum Container {
    /// Array.
    Array,
    /// Object with the keys so far, and whether the next text is a key.
    Object(BTreeSet<String>, bool),
}

/// Returns the JSON without insignificant white space; numbers, texts and the order of keys stay as written.
fn minified(json: &[u8]) -> Result<Bytes, ContentError> {
    let text = std::str::from_utf8(json).map_err(|error| ContentError::Syntax(error.valid_up_to()))?;
    let mut out = Vec::with_capacity(json.len());
    let mut open: Vec<Container> = Vec::new();
    let mut at = 0;
    // The depth is checked before the syntax, whose check would stop at another depth.
    while let Some(&byte) = json.get(at) {
        let from = at;
        at += 1;
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => continue,
            b'"' => {
                at = end_of_text(json, at).ok_or(ContentError::Syntax(from))?;
                if let Some(Container::Object(keys, expects_key @ true)) = open.last_mut() {
                    *expects_key = false;
                    // Two spellings of a key, one with escapes, are the same key.
                    let key = text.get(from..at).and_then(|key| serde_json::from_str::<String>(key).ok());
                    if !keys.insert(key.ok_or(ContentError::Syntax(from))?) {
                        return Err(ContentError::Twice(from));
                    }
                }
            }
            b'{' | b'[' if open.len() >= JSON_DEPTH_MAX => return Err(ContentError::Depth),
            b'{' => open.push(Container::Object(BTreeSet::new(), true)),
            b'[' => open.push(Container::Array),
            b'}' | b']' => drop(open.pop()),
            b',' => {
                if let Some(Container::Object(_, expects_key)) = open.last_mut() {
                    *expects_key = true;
                }
            }
            _ => {}
        }
        out.extend_from_slice(&json[from..at]);
    }
    // White space between the parts of a number must not join them, so it is the text as written that is checked.
    // As a value: numbers and texts that decoders refuse would take the whole message from those who read it in JSON.
    if let Err(error) = serde_json::from_str::<serde_json::Value>(text) {
        return Err(ContentError::Syntax(byte_at(text, error.line(), error.column())));
    }
    if out == b"null" { Err(ContentError::Null) } else { Ok(out.into()) }
}

/// Returns the position after the quotation mark that ends a text; `from` is after the first one.
fn end_of_text(json: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the byte of a line and column, both from 1, as errors of serde name them.
fn byte_at(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (before + column.saturating_sub(1)).min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<String, ContentError> {
        let content = Content { json: Bytes::copy_from_slice(json.as_bytes()), ..Content::default() };
        content.checked().map(|it| String::from_utf8(it.json.to_vec()).unwrap())
    }

    #[test]
    fn json_is_stored_without_white_space_and_as_written_otherwise() {
        let as_written = r#"{"b":1.50e+3,"a":[-0,"x \" ] , y\u0041",1e99,null],"":{}}"#;
        assert_eq!(of(as_written).as_deref(), Ok(as_written));
        let spaced =
            "\t{ \"b\" : 1.50e+3 ,\r\n\"a\":[ -0 , \"x \\\" ] , y\\u0041\" , 1e99,null ],\"\": { } } ";
        assert_eq!(of(spaced).as_deref(), Ok(as_written));
        assert_eq!(of("7").as_deref(), Ok("7"));
    }

    #[test]
    fn bad_json_is_refused_with_its_place() {
        for (json, at) in
            [("{", 1), ("{}x", 2), ("[1 2]", 3), ("1 2", 2), ("\"a", 0), ("[01]", 2), ("nul", 3)]
        {
            assert!(
                matches!(of(json), Err(ContentError::Syntax(found)) if found.abs_diff(at) <= 1),
                "{json}: {:?}",
                of(json)
            );
        }
        assert!(
            matches!(of("[1e999]"), Err(ContentError::Syntax(_))),
            "a number that is none in most decoders"
        );
        assert!(matches!(of(r#"["\ud800"]"#), Err(ContentError::Syntax(_))), "half a character");
        assert!(matches!(of(r#"{"\ud800":1}"#), Err(ContentError::Syntax(1))), "a key that is no text");
        let broken = Content { json: Bytes::from_static(b"\"\xff\""), ..Content::default() };
        assert_eq!(broken.checked(), Err(ContentError::Syntax(1)));
        assert_eq!(of(" null "), Err(ContentError::Null));
    }

    #[test]
    fn line_breaks_that_a_former_version_has_stored_begin_no_frame() {
        for json in ["[\n1]", "[\r1]"] {
            let content = Content { json: Bytes::from_static(json.as_bytes()), ..Content::text("hi") };
            assert_eq!(serde_json::to_string(&content).unwrap(), r#"{"text":"hi"}"#);
        }
    }

    #[test]
    fn keys_are_compared_without_their_escapes_and_within_one_object() {
        assert_eq!(of(r#"{"a":1,"\u0061":2}"#), Err(ContentError::Twice(7)));
        assert!(of(r#"{"a":{"a":1},"b":[{"a":1},{"a":1}],"c":"a"}"#).is_ok());
    }

    #[test]
    fn depth_is_bounded_whatever_the_text_after_it() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(of(&nested(JSON_DEPTH_MAX)).is_ok());
        assert_eq!(of(&nested(JSON_DEPTH_MAX + 1)), Err(ContentError::Depth));
        assert_eq!(of(&"{\"a\":".repeat(100_000)), Err(ContentError::Depth));
    }

    #[test]
    fn every_field_beside_the_body_is_checked() {
        let text = || Content::text("hi");
        let kind = |kind: &str| Content { kind: kind.to_owned(), ..text() }.checked().map(drop);
        assert_eq!((kind("order.shipped"), kind("tgx")), (Ok(()), Ok(())));
        assert_eq!(
            (kind("tg.poll"), kind("a b")),
            (Err(ContentError::Reserved), Err(ContentError::Kind(IdError::BadCharacter)))
        );
        let mentions = |count: usize, name: &str| {
            Content { mentions: vec![name.to_owned(); count], ..text() }.checked().map(drop)
        };
        assert_eq!((mentions(MENTIONS_MAX, "bob"), mentions(1, "*")), (Ok(()), Ok(())));
        assert_eq!(mentions(MENTIONS_MAX + 1, "bob"), Err(ContentError::Mentions));
        assert_eq!(mentions(1, "g:team"), Err(ContentError::Mention(IdError::BadCharacter)));
        let without = Content {
            kind: "a".to_owned(),
            reply_to: 1,
            mentions: vec!["bob".to_owned()],
            ..Content::default()
        };
        assert_eq!(without.checked(), Err(ContentError::Empty));
        let newer = Content { unknown: vec![0x50, 1], ..Content::default() };
        assert!(newer.checked().is_ok(), "a field of a newer schema may be a body");
    }
}
