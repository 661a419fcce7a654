//! Cases as data: the fields of a case and of its steps (protocol/vectors/clients/README.md).

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::wire::{KitTransport, Raw};

/// Level of a client library; each contains those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, clap::ValueEnum)]
pub enum ClientLevel {
    /// Connect, send, receive, acknowledge, reconnect.
    #[value(name = "L0")]
    L0,
    /// Sync, holes, marks, groups, recall.
    #[value(name = "L1")]
    L1,
    /// Chain, drain, several addresses.
    #[value(name = "L2")]
    L2,
    /// Rooms, signals, tabs, an outbox that persists.
    #[value(name = "L3")]
    L3,
}

/// A file of cases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Family {
    pub(super) family: String,
    #[serde(rename = "about")]
    pub(super) _about: String,
    pub(super) cases: Vec<Value>,
}

/// A case, with its parameters filled in.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    #[serde(default)]
    pub(super) family: String,
    pub(super) name: String,
    pub(super) level: ClientLevel,
    pub(super) about: String,
    /// Ability that the adapter must have.
    #[serde(default)]
    pub(super) needs: Option<String>,
    /// Transport of this case; else that of the run.
    #[serde(default)]
    pub(super) transport: Option<KitTransport>,
    /// Names of the addresses on which the scripted node listens.
    #[serde(default = "one_listener")]
    pub(super) listeners: Vec<String>,
    /// Kinds of frames that the scripted node does not answer by itself.
    #[serde(default)]
    pub(super) manual: Vec<String>,
    /// Whether the times of the case grow with the slack of the run: on a busy machine a client rightly leaves a
    /// connection that this case expects it to keep.
    #[serde(default)]
    pub(super) stretch: bool,
    /// Answers to `sync`.
    #[serde(default)]
    pub(super) states: Vec<Value>,
    /// Entries of conversations, from which pulls are answered.
    #[serde(default)]
    pub(super) history: BTreeMap<String, History>,
    pub(super) steps: Vec<Step>,
}

impl Case {
    /// Multiplies the times of a case that stretches, those that its node announces included, so that a second is longer
    /// than the slack.
    pub(super) fn stretch(&mut self, slack: Duration) {
        if !self.stretch {
            return;
        }
        let factor = slack.as_millis().div_ceil(1_000).try_into().unwrap_or(u64::MAX).saturating_add(1);
        for step in &mut self.steps {
            for time in [&mut step.wait, &mut step.within, &mut step.not_before].into_iter().flatten() {
                *time = time.saturating_mul(factor);
            }
            let heartbeat = step.welcome.as_mut().and_then(|welcome| welcome.get_mut("heartbeatMs"));
            let sent = step.send.as_mut().and_then(Value::as_object_mut);
            let waits = sent.into_iter().flat_map(|frame| frame.values_mut()).flat_map(|body| {
                let fields = body.as_object_mut().into_iter().flatten();
                fields.filter(|(name, _)| ["afterMs", "windowMs"].contains(&name.as_str())).map(|(_, it)| it)
            });
            for field in heartbeat.into_iter().chain(waits) {
                if let Some(ms) = field.as_u64() {
                    *field = ms.saturating_mul(factor).into();
                }
            }
        }
    }
}

/// Entries of a conversation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct History {
    /// In the short form.
    #[serde(default)]
    pub(super) messages: Value,
    #[serde(default)]
    pub(super) recalled: Vec<u64>,
    #[serde(default)]
    pub(super) expired: Vec<[u64; 2]>,
}

/// End of a connection by the scripted node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Cut {
    /// The connection is reset.
    Reset,
    /// The stream ends.
    End,
    /// The connection stays open.
    Keep,
}

/// A step: one of the first group, and details.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Step {
    /// Command for the adapter.
    pub(super) adapter: Option<Map<String, Value>>,
    /// A connection must come; its name from then on.
    pub(super) open: Option<String>,
    /// As `open`, then `hello` must come, and `welcome` is sent.
    pub(super) login: Option<String>,
    /// A frame must come.
    pub(super) expect: Option<Value>,
    /// A frame, or several with one write.
    pub(super) send: Option<Value>,
    /// Messages as frames in their short form: a seq, or an object with what differs.
    pub(super) push: Option<Value>,
    /// An ack of exactly this seq must come within the time of acks, after any lower ones.
    pub(super) acked: Option<u64>,
    /// A frame that has not come until now.
    pub(super) none: Option<Value>,
    /// A payload by framing: `json` as text, `proto` in hex.
    pub(super) raw: Option<Raw>,
    /// The node ends the connection.
    pub(super) cut: Option<Cut>,
    /// Whether the node stops reading.
    pub(super) stall: Option<bool>,
    /// A WebSocket ping, with this text.
    pub(super) ws_ping: Option<String>,
    /// An event must come.
    pub(super) event: Option<String>,
    /// An event, a frame or a connection must not come from now on.
    pub(super) never: Option<Never>,
    /// Time passes, in ms.
    pub(super) wait: Option<u64>,
    /// The client must end the connection.
    pub(super) ended: Option<bool>,
    /// The connection must still be open.
    pub(super) alive: Option<bool>,
    /// The next connection is refused.
    pub(super) refuse: Option<Value>,
    /// A name for this time, for `since`.
    pub(super) mark: Option<String>,
    /// New answers to `sync` and `pull`.
    pub(super) states: Option<Vec<Value>>,
    pub(super) history: Option<BTreeMap<String, History>>,
    pub(super) manual: Option<Vec<String>>,

    /// Connection, else the one that was opened last.
    pub(super) on: Option<String>,
    /// Conversation of `push` and `acked`, else `d:alice:bob`.
    pub(super) conversation: Option<String>,
    /// Address of `open`, `login` and `refuse`, else the first.
    pub(super) at: Option<String>,
    /// Client of `event`, else `c`.
    pub(super) client: Option<String>,
    /// Pattern of `event`.
    pub(super) with: Option<Value>,
    /// Pattern of the `hello` of `login`, and fields of its `welcome`.
    pub(super) hello: Option<Value>,
    pub(super) welcome: Option<Map<String, Value>>,
    /// `welcome.nextId` for a client that declared none.
    pub(super) undeclared: Option<String>,
    /// Bounds in ms since a mark, else since the last act of the kit.
    pub(super) not_before: Option<u64>,
    pub(super) within: Option<u64>,
    pub(super) since: Option<String>,
    /// How many bytes of `send` are written before `cut`; negative: how many are left out.
    pub(super) bytes: Option<i64>,
    /// Byte after which `send` pauses.
    pub(super) split: Option<usize>,
    /// WebSocket frames of `send`.
    pub(super) fragments: Option<usize>,
    /// Whether the frames of `send` have fields that the schema does not have.
    pub(super) unknown: Option<bool>,
    /// Whether `expect` takes the first frame that matches, and leaves others of its kind.
    pub(super) any: Option<bool>,
}

/// Pattern of an event, a frame or a connection that must not come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Never {
    pub(super) event: Option<String>,
    pub(super) client: Option<String>,
    pub(super) with: Option<Value>,
    pub(super) frame: Option<Value>,
    /// Address at which no connection may come; `*` is any.
    pub(super) open: Option<String>,
}

/// Conversation of messages in the short form.
pub(super) const CONVERSATION: &str = "d:alice:bob";

/// Returns the messages of a short form: a seq, an object with what differs from the default, `@seqs:N` for
/// the seqs up to N, or a list of these.
pub(super) fn messages(short: &Value, conversation: &str) -> Vec<Value> {
    if let Value::Array(list) = short {
        return list.iter().flat_map(|item| messages(item, conversation)).collect();
    }
    if let Some(count) = short.as_str().and_then(|text| text.strip_prefix("@seqs:")?.parse::<u64>().ok()) {
        return (1..=count).flat_map(|seq| messages(&seq.into(), conversation)).collect();
    }
    if short.is_null() {
        return Vec::new();
    }
    let seq = short.as_u64().or_else(|| short["seq"].as_u64()).unwrap_or_default();
    let mut message = json!({
        "conversation": conversation, "seq": seq, "sender": "bob", "msgId": format!("b{seq}"),
        "time": 1_763_712_000_000_u64 + seq % 1_000_000, "content": {"text": format!("t{seq}")},
    });
    for (key, value) in short.as_object().into_iter().flatten() {
        message[key] = value.clone();
        // A change, a recall or an edit is no message; only the edit has an id.
        if ["event", "recall", "edit"].contains(&key.as_str()) {
            message["content"] = Value::Null;
        }
        if key == "event" || key == "recall" {
            message["msgId"] = Value::Null;
        }
    }
    vec![message]
}

fn one_listener() -> Vec<String> {
    vec!["a".to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_stretches_only_cases_that_say_so() {
        let mut case: Case = serde_json::from_value(json!({
            "name": "n", "level": "L0", "about": "", "stretch": true,
            "steps": [
                {"login": "c1", "welcome": {"heartbeatMs": 600}}, {"wait": 2_200}, {"send": {"goAway": {"afterMs": 300, "reason": "deploy"}}},
            ],
        }))
        .expect("the case is well formed");
        let mut fixed = Case { stretch: false, ..case.clone() };
        case.stretch(Duration::from_secs(2));
        fixed.stretch(Duration::from_secs(2));
        let times = |case: &Case| {
            let sent = case.steps[2].send.as_ref().map(|frame| frame["goAway"]["afterMs"].clone());
            (
                case.steps[0].welcome.as_ref().map(|welcome| welcome["heartbeatMs"].clone()),
                case.steps[1].wait,
                sent,
            )
        };
        assert_eq!(times(&case), (Some(json!(1_800)), Some(6_600), Some(json!(900))));
        assert_eq!(times(&fixed), (Some(json!(600)), Some(2_200), Some(json!(300))));
    }
}
