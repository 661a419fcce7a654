//! Receiver of the model, which checks the order of what it takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tidegate_protocol::{
    id::ConversationId,
    machine::webhook::{WebhookEvent, WebhookEventKind, WebhookFailure, WebhookOutcome},
};

use super::feed::{Key, key};

/// Entries of each conversation with such a seq are not wanted, by the feed.
const UNWANTED: u64 = 7;

/// Entries of each conversation with such a seq are not wanted, by what the store has.
const PASSED: u64 = 5;

/// Answer of a receiver that fails.
pub(super) const FAILED: WebhookOutcome = WebhookOutcome::Failed(WebhookFailure::Status(500));

#[derive(Default)]
pub(super) struct Receiver {
    seed: u64,
    taken: BTreeSet<Key>,
    /// What was taken since the last replay, by partition.
    since: BTreeMap<u32, BTreeSet<Key>>,
    pub(super) poison: BTreeSet<Key>,
    pub(super) aside: BTreeSet<Key>,
    /// Events that an operator skipped.
    pub(super) skipped: BTreeSet<Key>,
    pub(super) is_down: bool,
    pub(super) is_gone: bool,
}

/// Returns whether the feed wants the event.
pub(super) const fn is_wanted(event: &WebhookEvent) -> bool {
    is_pruning(event) || !event.seq.is_multiple_of(UNWANTED)
}

const fn is_pruning(event: &WebhookEvent) -> bool {
    matches!(event.kind, WebhookEventKind::Pruned)
}

/// Returns whether the endpoint wants an entry with the seq.
const fn is_sent(seq: u64) -> bool {
    !seq.is_multiple_of(UNWANTED) && !seq.is_multiple_of(PASSED)
}

impl Receiver {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Takes events of a partition, or does not.
    pub(super) fn receive(&mut self, partition: u32, events: &[WebhookEvent]) -> WebhookOutcome {
        let sent: Vec<_> = events.iter().filter(|event| is_pruning(event) || is_sent(event.seq)).collect();
        if sent.is_empty() {
            return WebhookOutcome::Passed;
        }
        if self.is_gone {
            return WebhookOutcome::Gone;
        }
        if self.is_down {
            return FAILED;
        }
        if sent.iter().any(|event| self.poison.contains(&key(event))) {
            return WebhookOutcome::Refused(400);
        }
        for event in sent {
            self.check_order(event);
            self.taken.insert(key(event));
            self.since.entry(partition).or_default().insert(key(event));
        }
        WebhookOutcome::Taken
    }

    fn check_order(&self, event: &WebhookEvent) {
        let end = event.seq + u64::from(is_pruning(event));
        for seq in (1..end).filter(|seq| is_sent(*seq)) {
            let before = (event.conversation.clone(), seq, false);
            let is_done = self.taken.contains(&before)
                || self.aside.contains(&before)
                || self.skipped.contains(&before);
            assert!(is_done, "TIDEGATE_SEED run {}: {event:?} before {seq}", self.seed);
        }
    }

    /// Begins a replay: everything of the partition has to be taken again.
    pub(super) fn begin_replay(&mut self, partition: u32) {
        self.since.remove(&partition);
    }

    /// Returns whether nothing is left to do for the event.
    pub(super) fn is_done(&self, partition: u32, event: &WebhookEvent) -> bool {
        let (key, nothing) = (key(event), BTreeSet::new());
        let since = self.since.get(&partition).unwrap_or(&nothing);
        if is_pruning(event) {
            // A later pruning includes the former ones.
            let last = (event.conversation.clone(), u64::MAX, true);
            return since.range(key..=last).any(|(_, _, is_pruning)| *is_pruning);
        }
        !is_sent(event.seq) || since.contains(&key) || self.aside.contains(&key)
    }

    /// Adds an entry that the receiver never takes.
    pub(super) fn poison(&mut self, conversation: ConversationId, seq: u64) {
        self.poison.insert((conversation, seq, false));
    }

    /// Returns the wait that it asks for.
    pub(super) const fn busy() -> WebhookOutcome {
        WebhookOutcome::Busy(Duration::from_secs(1))
    }
}
