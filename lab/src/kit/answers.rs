//! Answers that the scripted node gives by itself: signs of life, `sync` and `pull` from the data of the case, `bye`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::step::{History, messages};

/// Entries of a page without a limit.
const PAGE: usize = 50;

/// Data of the answers, and the kinds that are left to the steps of the case.
#[derive(Default)]
pub(super) struct Answers {
    pub(super) manual: Vec<String>,
    pub(super) states: Vec<Value>,
    pub(super) history: BTreeMap<String, History>,
}

impl Answers {
    /// Returns the answers to a frame of this kind; none for the kinds that steps answer.
    pub(super) fn to(&self, kind: &str, frame: &Value) -> Vec<Value> {
        let body = &frame[kind];
        let id = frame["id"].as_u64().unwrap_or_default();
        if self.manual.iter().any(|manual| manual == kind) {
            return Vec::new();
        }
        match kind {
            "empty" | "ping" => vec![json!({"id": id, "pong": {"time": 1_763_712_000_000_u64}})],
            "sync" => {
                let states = self.states.iter().map(|state| json!({"id": id, "conversationState": state}));
                let unread: u64 =
                    self.states.iter().map(|state| state["unread"].as_u64().unwrap_or_default()).sum();
                states.chain([json!({"id": id, "syncEnd": {"unread": unread}})]).collect()
            }
            "pull" => vec![self.page(id, body)],
            "bye" => {
                let close = json!({"close": {"code": 3000, "name": "BYE", "reconnect": "RECONNECT_NOW"}});
                let done = (id != 0).then(|| json!({"id": id, "done": {}}));
                done.into_iter().chain([close]).collect()
            }
            "ack" if id != 0 => vec![json!({"id": id, "done": {}})],
            _ => Vec::new(),
        }
    }

    /// Returns the page that a `pull` asks for, or `NOT_YET`.
    fn page(&self, id: u64, pull: &Value) -> Value {
        let conversation = pull["conversation"].as_str().unwrap_or_default();
        let empty = History::default();
        let history = self.history.get(conversation).unwrap_or(&empty);
        let entries = messages(&history.messages, conversation);
        let message = |seq: u64| entries.iter().find(|message| message["seq"] == seq);
        let is_expired =
            |seq: u64| history.expired.iter().any(|[first, last]| (*first..=*last).contains(&seq));
        let mut seqs: BTreeSet<u64> = entries.iter().filter_map(|message| message["seq"].as_u64()).collect();
        seqs.extend(&history.recalled);
        history.expired.iter().for_each(|[first, last]| seqs.extend(*first..=*last));
        let complete_to = seqs.last().copied().unwrap_or_default();
        let cursor = pull["cursor"].as_u64().unwrap_or_default();
        let limit =
            pull["limit"].as_u64().map_or(PAGE, |limit| usize::try_from(limit).unwrap_or(PAGE).min(200));
        let chosen: Vec<u64> = if let Some(wanted) = pull["seqs"].as_array() {
            let wanted: BTreeSet<u64> = wanted.iter().filter_map(Value::as_u64).collect();
            seqs.intersection(&wanted).copied().collect()
        } else if pull["direction"] == "DIRECTION_FORWARD" {
            seqs.into_iter().filter(|seq| *seq > cursor).take(limit).collect()
        } else {
            seqs.into_iter().rev().filter(|seq| cursor == 0 || *seq < cursor).take(limit).collect()
        };
        if chosen.is_empty() {
            let error = json!({"code": 4015, "name": "NOT_YET", "temporary": true, "retryAfterMs": 1000});
            return json!({"id": id, "error": error});
        }
        let is_recalled = |seq: &&u64| history.recalled.contains(seq);
        let named: Vec<&Value> = chosen.iter().filter_map(|seq| message(*seq)).collect();
        let recalled: Vec<&u64> = chosen.iter().filter(is_recalled).collect();
        let expired: Vec<Value> = chosen
            .iter()
            .filter(|seq| is_expired(**seq))
            .map(|seq| json!({"first": seq, "last": seq}))
            .collect();
        json!({"id": id, "page": {
            "conversation": conversation, "messages": named, "recalled": recalled, "expired": expired,
            "completeTo": complete_to,
        }})
    }
}
