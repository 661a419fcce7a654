//! What differs between two runs of the same session, in place of which the recorded answers have a fixed text or number.

use serde_json::{Value, json};

/// Time of all that happens in a recorded session, in ms since 1970.
const TIME_MS: u64 = 1_795_269_992_559;

/// Numbers above this are times in ms.
const FIRST_TIME_MS: u64 = 1_000_000_000_000;

/// Id of the connection in a recorded session.
const CONNECTION: &str = "n1.5f1c.10000000003";

/// Members whose value depends on time, chance or the machine, and the recorded one.
const BY_NAME: [(&str, &str); 20] = [
    ("accepts", "1000"),
    ("beat", "41"),
    ("behindBytes", "0"),
    ("behindMs", "0"),
    ("behindRecords", "0"),
    ("capacity", "19800"),
    ("connsMax", "19800"),
    ("cursor", r#""AQL2g8tWq1dnOnRlYW0""#),
    ("epoch", "1795269992000042"),
    ("expiresMs", "1795273592559"),
    ("lagMs", "0"),
    ("newer", r#""AQEp6Vs2vH4F""#),
    ("next", r#""AQPgMecZUeaL2""#),
    ("older", r#""AQAp6Vs2vH4E""#),
    ("secret", r#""whsec_…""#),
    ("timeUs", "1795269992559000"),
    ("token", r#""eyJ0eXAi…""#),
    ("trace", r#""0af7651916cd43dd8448eb211c80319c""#),
    ("untilMs", "1795273592559"),
    ("version", r#""0.1.0""#),
];

/// Members of these routes that depend on when the node renewed its lease, forgot a connection or reached a webhook.
const BY_ROUTE: [(&str, &str, &str); 12] = [
    ("DELETE /v1/drain", "conns", "5"),
    ("DELETE /v1/users/{user}/data", "closed", "0"),
    ("GET /v1/nodes", "conns", "1"),
    ("GET /v1/nodes", "end", "0"),
    ("GET /v1/nodes", "position", "0"),
    ("GET /v1/webhooks/{webhook}/aside", "tries", "14"),
    ("POST /v1/drain", "conns", "5"),
    ("POST /v1/users/{user}/revoke", "closed", "1"),
    ("POST /v1/webhooks/{webhook}/replay", "behind", "0"),
    ("POST /v1/webhooks/{webhook}/resume", "behind", "0"),
    ("POST /v1/webhooks/{webhook}/resume", "error", "null"),
    ("POST /v1/webhooks/{webhook}/resume", "state", r#""active""#),
];

/// Texts of one run with those that the recorded answers have.
pub(super) struct Masks(pub(super) Vec<(String, &'static str)>);

impl Masks {
    /// Replaces what differs between runs in the answer of a route.
    pub(super) fn apply(&self, route: &str, answer: &mut Value) {
        self.replace(route, "", answer);
    }

    fn replace(&self, route: &str, name: &str, value: &mut Value) {
        let of_route = BY_ROUTE.iter().find(|(it, member, _)| (*it, *member) == (route, name));
        let named = BY_NAME.iter().find(|(member, _)| *member == name).map(|(_, fixed)| *fixed);
        let fixed = of_route.map(|(.., fixed)| *fixed).or(named);
        let fixed: Option<Value> = fixed.map(|text| serde_json::from_str(text).expect("a mask is JSON"));
        match value {
            Value::Object(members) => {
                members.iter_mut().for_each(|(name, member)| self.replace(route, name, member));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(route, name, item)),
            Value::Number(number) => {
                if let Some(fixed) = fixed.filter(Value::is_number) {
                    *value = fixed;
                } else if number.as_u64().is_some_and(|number| number > FIRST_TIME_MS) {
                    *value = json!(TIME_MS);
                }
            }
            Value::String(text) => match fixed.filter(|fixed| fixed.is_string() || fixed.is_null()) {
                Some(fixed) => *value = fixed,
                None => *text = self.text(name, text),
            },
            _ => {}
        }
    }

    fn text(&self, name: &str, text: &str) -> String {
        let mut masked = text.to_owned();
        for (real, fixed) in &self.0 {
            masked = masked.replace(real.as_str(), fixed);
        }
        match name {
            "id" if masked.starts_with("n1.5f1c.") => CONNECTION.to_owned(),
            "time" => "2026-11-28T16:00:07.559Z".to_owned(),
            _ => masked,
        }
    }
}
