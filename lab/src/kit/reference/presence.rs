//! Watches of a client: the conversations whose presence it asks for, and who is online there by the reports of the node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// One watched conversation.
#[derive(Debug, Default)]
struct Watch {
    /// Whether the node has answered: then it belongs to the connection, and is made again on the next one.
    is_answered: bool,
    /// Users that are online; `None` without a complete report on this connection.
    online: Option<BTreeSet<String>>,
}

/// Watched conversations of a client, by key.
#[derive(Debug, Default)]
pub(super) struct Watches {
    all: BTreeMap<String, Watch>,
}

impl Watches {
    /// Notes that the application asks for reports.
    pub(super) fn begin(&mut self, conversation: &str) {
        self.all.entry(conversation.to_owned()).or_default().is_answered = false;
    }

    /// Notes that the node has agreed.
    pub(super) fn agreed(&mut self, conversation: &str) {
        if let Some(watch) = self.all.get_mut(conversation) {
            watch.is_answered = true;
        }
    }

    /// Forgets a watch that was refused, or that the application has ended. Returns the event of a list that was known.
    pub(super) fn end(&mut self, conversation: &str) -> Option<Value> {
        let watch = self.all.remove(conversation)?;
        watch.online.map(|_| unknown(conversation))
    }

    /// Forgets all lists, because the connection has ended, and returns their events.
    pub(super) fn lost(&mut self) -> Vec<Value> {
        let known = self.all.iter_mut().filter_map(|(key, watch)| watch.online.take().map(|_| unknown(key)));
        known.collect()
    }

    /// Returns the conversations that a new connection watches again.
    pub(super) fn again(&self) -> Vec<String> {
        let answered = self.all.iter().filter(|(_, watch)| watch.is_answered);
        answered.map(|(key, _)| key.clone()).collect()
    }

    /// Applies a report, which with `merges` never replaces a list. Returns the event of the whole list, which is unknown after
    /// the last one.
    pub(super) fn report(&mut self, report: &Value, merges: bool) -> Option<Value> {
        let conversation = report["conversation"].as_str()?;
        let watch = self.all.get_mut(conversation)?;
        if report["ended"] == true {
            // While a watch is unanswered, an earlier one has ended.
            return match watch.is_answered {
                true => self.end(conversation),
                false => watch.online.take().map(|_| unknown(conversation)),
            };
        }
        let is_complete = report["complete"] == true;
        if is_complete && !(merges && watch.online.is_some()) {
            watch.online = Some(BTreeSet::new());
        }
        let online = watch.online.as_mut()?;
        online.extend(users(&report["online"]));
        for user in users(&report["offline"]) {
            online.remove(&user);
        }
        Some(json!({"event": "presence", "conversation": report["conversation"], "online": online}))
    }
}

fn users(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().into_iter().flatten().filter_map(|user| user.as_str().map(str::to_owned))
}

/// Returns the event of a list that is no longer known.
fn unknown(conversation: &str) -> Value {
    json!({"event": "presence", "conversation": conversation})
}
