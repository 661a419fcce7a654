//! Answers to a request, checked: the server is the application's, but its contents are as untrusted as those of a client.

use bytes::Bytes;
use prost::Message as _;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tidegate_protocol::{code::AppCode, content::Content, id::MsgId};

use super::AppDenial;
use crate::hooks::{failure::HookFailure, reason::AppReason};

/// Answer about one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ItemAnswer {
    /// The message goes on as it is.
    Allow,
    /// The message is refused.
    Deny(AppDenial),
    /// The message goes on with this encoded content.
    Replace(Bytes),
}

/// Limits of the contents that a hook returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerLimits {
    /// Most bytes of an encoded content.
    pub(super) content_bytes_max: usize,
}

#[derive(Deserialize)]
struct Answers<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    msg_id: Option<String>,
    allow: Option<bool>,
    deny: Option<Deny>,
    replace: Option<Replacement>,
}

#[derive(Deserialize)]
struct Deny {
    code: u16,
    message: Option<Value>,
}

#[derive(Deserialize)]
struct Replacement {
    content: Content,
}

/// Returns the answers about items with these ids, in their order; `None` if they are no list of that length. An answer of
/// another form is the failure of its item alone.
pub(super) fn parse(
    body: &[u8],
    ids: &[MsgId],
    limits: AnswerLimits,
) -> Option<Vec<Result<ItemAnswer, HookFailure>>> {
    let answers: Answers<'_> = serde_json::from_slice(body).ok()?;
    if answers.items.len() != ids.len() {
        return None;
    }
    let one = |(answer, id)| item(answer, id, limits).ok_or(HookFailure::BadAnswer);
    Some(answers.items.into_iter().zip(ids).map(one).collect())
}

fn item(answer: &RawValue, id: &MsgId, limits: AnswerLimits) -> Option<ItemAnswer> {
    let Answer { msg_id, allow, deny, replace } = serde_json::from_str(answer.get()).ok()?;
    // An answer that names its message tells of a list in another order.
    if msg_id.is_some_and(|named| named != id.as_str()) {
        return None;
    }
    match (allow, deny, replace) {
        (Some(true), None, None) => Some(ItemAnswer::Allow),
        (None, Some(Deny { code: number, message }), None) => {
            let code = AppCode::new(number)?;
            let reason = AppReason::of(Some(&number.into()), message.as_ref())?;
            Some(ItemAnswer::Deny(AppDenial { code, reason }))
        }
        (None, None, Some(Replacement { content })) => {
            let content = content.checked().ok()?;
            (content.encoded_len() <= limits.content_bytes_max)
                .then(|| ItemAnswer::Replace(content.encode_to_vec().into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMITS: AnswerLimits = AnswerLimits { content_bytes_max: 100 };

    fn parsed(items: Value) -> Option<Vec<Result<ItemAnswer, HookFailure>>> {
        let ids = ["m1", "m2"].map(|id| MsgId::new(id).unwrap());
        parse(&serde_json::to_vec(&json!({ "items": items })).unwrap(), &ids, LIMITS)
    }

    #[test]
    fn each_item_has_its_answer() {
        let deny = json!({"deny": {"code": 5001, "message": "no\nlinks", "more": 1}});
        let answers = parsed(json!([{"allow": true, "msgId": "m1"}, deny])).unwrap();
        assert_eq!(answers[0], Ok(ItemAnswer::Allow));
        let Ok(ItemAnswer::Deny(AppDenial { code, reason })) = &answers[1] else { panic!("{answers:?}") };
        assert_eq!((code.number(), &*reason.code, &*reason.message), (5001, "5001", "no links"));
        let replace = json!({"replace": {"content": {"text": "hi", "type": "a", "json": {"b": 1}}}});
        let answers = parsed(json!([replace, {"allow": true}])).unwrap();
        let Ok(ItemAnswer::Replace(content)) = &answers[0] else { panic!("{answers:?}") };
        let content = Content::decode(content.clone()).unwrap();
        assert_eq!((content.kind.as_str(), &*content.json), ("a", &br#"{"b":1}"#[..]));
    }

    #[test]
    fn lists_of_another_length_are_no_answer() {
        let allow = json!({"allow": true});
        assert_eq!(parsed(json!([allow])), None);
        assert_eq!(parsed(json!([allow, allow, allow])), None);
        assert_eq!(parsed(json!({"0": allow, "1": allow})), None);
        let ids = [MsgId::new("m1").unwrap()];
        for body in [&b"[{\"allow\":true}]"[..], b"{}", b"", b"\xff", b"{\"items\":[{\"allow\":true}"] {
            assert_eq!(parse(body, &ids, LIMITS), None);
        }
    }

    #[test]
    fn answer_of_another_form_is_the_failure_of_its_item_alone() {
        let deep = (0..40).fold(json!(1), |json, _| json!([json]));
        for bad in [
            json!({}),
            json!(null),
            json!("allow"),
            json!({"allow": false}),
            json!({"allow": true, "deny": {"code": 5001}}),
            json!({"allow": true, "msgId": "m2"}),
            json!({"deny": true}),
            json!({"deny": {"code": 4999}}),
            json!({"deny": {"code": 6000}}),
            json!({"deny": {"code": -1}}),
            json!({"deny": {"code": "5001"}}),
            json!({"deny": {"message": "no code"}}),
            json!({"replace": {}}),
            json!({"replace": {"content": {}}}),
            json!({"replace": {"content": {"text": "x".repeat(100)}}}),
            json!({"replace": {"content": {"text": "a", "data": "YQ=="}}}),
            json!({"replace": {"content": {"text": "a", "type": "tg.poll"}}}),
            json!({"replace": {"content": {"text": "a", "mentions": ["a b"]}}}),
            json!({"replace": {"content": {"json": deep}}}),
        ] {
            let answers = parsed(json!([bad, {"allow": true}])).unwrap();
            assert_eq!(answers, [Err(HookFailure::BadAnswer), Ok(ItemAnswer::Allow)], "{bad}");
        }
        let ids = [MsgId::new("m1").unwrap()];
        let twice = br#"{"items":[{"replace":{"content":{"json":{"a":1,"a":2}}}}]}"#;
        assert_eq!(parse(twice, &ids, LIMITS), Some(vec![Err(HookFailure::BadAnswer)]));
    }
}
