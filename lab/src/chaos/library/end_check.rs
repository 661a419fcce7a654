//! Check of a device at the end: pulls the history of all its conversations through the library, and waits until
//! everything in it was shown.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};
use tidegate_protocol::Code;

/// Time for everything to be shown. After it the checker names what is missing.
const SHOW_TIME: Duration = Duration::from_secs(15);

/// Entries of one page.
const PAGE: u32 = 200;

/// Progress of the check.
pub(super) struct EndCheck {
    /// Conversations to pull, the present one last.
    left: Vec<String>,
    /// Seq up to which the present one was pulled.
    cursor: u64,
    /// Entries that have to be shown.
    expected: BTreeSet<(String, u64)>,
    since: Duration,
}

impl EndCheck {
    /// Begins with these conversations.
    pub(super) fn new(convs: BTreeSet<String>, now: Duration) -> Self {
        Self { left: convs.into_iter().collect(), cursor: 0, expected: BTreeSet::new(), since: now }
    }

    /// Returns the next pull and its conversation; `None` when everything was pulled.
    pub(super) fn next_pull(&self) -> Option<(String, Value)> {
        let conv = self.left.last()?.clone();
        let pull = json!({
            "conversation": conv, "cursor": self.cursor, "direction": "DIRECTION_FORWARD", "limit": PAGE,
        });
        Some((conv, pull))
    }

    /// Notes an entry that has to be shown.
    pub(super) fn expect(&mut self, conv: &str, seq: u64) {
        self.expected.insert((conv.to_owned(), seq));
    }

    /// Notes a page of the present conversation.
    pub(super) fn advance(&mut self, conv: &str, page: &Value) {
        let list = |name: &str| page[name].as_array().cloned().unwrap_or_default();
        let messages = list("messages").into_iter().map(|it| it["seq"].clone());
        let ranges = list("expired").into_iter().map(|it| it["last"].clone());
        let seqs = messages.chain(list("recalled")).chain(ranges);
        let last = seqs.filter_map(|seq| seq.as_u64()).max().unwrap_or_default();
        let complete_to = page["completeTo"].as_u64().unwrap_or_default();
        if last <= self.cursor || last >= complete_to {
            self.skip(conv);
        } else {
            self.cursor = last;
        }
    }

    /// Notes the refusal of a pull: either there is nothing more for the user, or the pull is to be repeated.
    pub(super) fn refused(&mut self, conv: &str, code: u16) {
        if [Code::NotYet, Code::NotAMember].iter().any(|it| it.number() == code) {
            self.skip(conv);
        }
    }

    fn skip(&mut self, conv: &str) {
        self.left.retain(|it| it != conv);
        self.cursor = 0;
    }

    /// Returns whether everything was shown, or is overdue.
    pub(super) fn is_over(&self, now: Duration, shown: &BTreeMap<String, BTreeSet<u64>>) -> bool {
        let is_shown = |(conv, seq): &(String, u64)| shown.get(conv).is_some_and(|seqs| seqs.contains(seq));
        self.expected.iter().all(is_shown) || now > self.since + SHOW_TIME
    }
}
