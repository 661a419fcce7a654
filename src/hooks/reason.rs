//! Reasons that the application gives for a refusal: bounded, because clients get them as they are.

use std::sync::Arc;

use serde_json::Value;
use tidegate_protocol::id::check_id;

/// Most bytes of the message; the rest is cut off.
const MESSAGE_BYTES_MAX: usize = 200;

/// Reason of the application for a refusal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AppReason {
    /// Text for the user; empty if the application gives none.
    pub message: Box<str>,
    /// The application's own code, of the form of an id; empty if it gives none.
    pub code: Box<str>,
}

impl AppReason {
    /// Returns the reason of an answer; `None` if it has none. A field of another form counts as absent: the refusal
    /// holds in any case.
    pub(super) fn of(code: Option<&Value>, message: Option<&Value>) -> Option<Arc<Self>> {
        let code = match code {
            Some(Value::String(code)) if check_id(code).is_ok() => code.as_str().into(),
            Some(Value::Number(code)) => {
                code.as_u64().map(|code| code.to_string().into()).unwrap_or_default()
            }
            _ => Box::default(),
        };
        let message = message.and_then(Value::as_str).unwrap_or_default();
        let message = &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
        let message: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let reason = Self { message: message.trim().into(), code };
        (reason != Self::default()).then(|| Arc::new(reason))
    }

    /// Returns the bytes of its texts.
    pub(super) fn bytes(&self) -> usize {
        self.message.len() + self.code.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(answer: &Value) -> Option<(String, String)> {
        let reason = AppReason::of(answer.get("code"), answer.get("message"))?;
        Some((reason.code.to_string(), reason.message.to_string()))
    }

    #[test]
    fn code_and_message_are_bounded_and_other_forms_count_as_absent() {
        let some = |code: &str, message: &str| Some((code.to_owned(), message.to_owned()));
        assert_eq!(of(&json!({"code": 5001, "message": " no\n\u{7}links "})), some("5001", "no  links"));
        assert_eq!(of(&json!({"code": "trial.over"})), some("trial.over", ""));
        let long = of(&json!({"message": format!("x{}", "é".repeat(200))})).unwrap().1;
        assert_eq!((long.len(), long.chars().count()), (199, 100));
        for none in [
            json!({}),
            json!({"code": null, "message": " "}),
            json!({"code": "no id", "message": 5}),
            json!({"code": -1, "message": ["x"]}),
            json!({"code": "x".repeat(65)}),
        ] {
            assert_eq!(of(&none), None, "{none}");
        }
    }
}
