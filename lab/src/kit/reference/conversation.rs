//! What a client has of a conversation: entries, recalls, edits, and what its user has removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::Value;

/// Time in which a hole may fill by itself.
const GRACE: Duration = Duration::from_millis(150);

/// Entries of one conversation.
#[derive(Default)]
pub(super) struct Conversation {
    /// Seq up to which nothing is missing; `None` before anything is known.
    to: Option<u64>,
    above: BTreeSet<u64>,
    /// Highest known seq.
    known: u64,
    recalled: BTreeSet<u64>,
    /// Newest edit of each message that has one.
    edits: BTreeMap<u64, u64>,
    cleared: u64,
    hidden: BTreeSet<u64>,
    /// When a pull of the hole is due.
    due: Option<Instant>,
    pub(super) is_pulling: bool,
}

impl Conversation {
    pub(super) fn position(&self) -> u64 {
        self.to.unwrap_or_default()
    }

    /// Notes an entry. Returns whether it is new.
    pub(super) fn add(&mut self, seq: u64, now: Instant) -> bool {
        let to = *self.to.get_or_insert(seq.saturating_sub(1));
        let is_new = seq > to && self.above.insert(seq);
        self.learn(seq, now + GRACE);
        is_new
    }

    /// Notes the highest seq; a hole below it is pulled at `due`.
    pub(super) fn learn(&mut self, seq: u64, due: Instant) {
        self.known = self.known.max(seq);
        self.settle(due);
    }

    /// Notes that nothing up to a seq is missing.
    pub(super) fn skip_to(&mut self, seq: u64, now: Instant) {
        self.to = Some(self.position().max(seq));
        self.above = self.above.split_off(&(self.position() + 1));
        self.known = self.known.max(seq);
        self.due = None;
        self.settle(now);
    }

    fn settle(&mut self, due: Instant) {
        while self.above.remove(&(self.position() + 1)) {
            self.to = Some(self.position() + 1);
        }
        self.due = match self.known > self.position() {
            true => Some(self.due.map_or(due, |earlier| earlier.min(due))),
            false => None,
        };
    }

    /// Returns whether a hole is to be pulled now.
    pub(super) fn wants_pull(&self, now: Instant) -> bool {
        !self.is_pulling && self.due.is_some_and(|due| due <= now)
    }

    /// Postpones the pull.
    pub(super) fn postpone(&mut self, due: Instant) {
        self.is_pulling = false;
        self.due = self.due.map(|_| due);
    }

    /// Notes a state. A device without a position begins at the end, or with `whole` at the beginning.
    pub(super) fn state(&mut self, state: &Value, whole: bool, now: Instant) {
        let seq = |key: &str| state[key].as_u64().unwrap_or_default();
        let begin = if whole { seq("minSeq").saturating_sub(1) } else { seq("maxSeq") };
        self.to.get_or_insert(begin);
        self.learn(seq("maxSeq"), now);
    }

    pub(super) fn recall(&mut self, seq: u64) {
        self.recalled.insert(seq);
    }

    /// Notes an edit of a message. Returns whether it is the newest one.
    pub(super) fn edit(&mut self, of: u64, edit: u64) -> bool {
        let newest = self.edits.entry(of).or_default();
        let is_newer = edit > *newest;
        *newest = edit.max(*newest);
        is_newer
    }

    /// Returns whether the content of an entry may be reported.
    pub(super) fn shows(&self, seq: u64) -> bool {
        !self.recalled.contains(&seq)
    }

    /// Notes a mark of the user's. Returns whether it is higher.
    pub(super) fn clear(&mut self, seq: u64) -> bool {
        let is_higher = seq > self.cleared;
        self.cleared = self.cleared.max(seq);
        is_higher
    }

    /// Notes hidden entries. Returns the new ones.
    pub(super) fn hide(&mut self, seqs: &Value) -> Vec<u64> {
        let seqs = seqs.as_array().into_iter().flatten().filter_map(Value::as_u64);
        seqs.filter(|seq| self.hidden.insert(*seq)).collect()
    }
}
