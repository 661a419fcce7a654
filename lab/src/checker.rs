//! The history checker: compares what clients recorded with the log of the store.
//!
//! It is pure, and linear in the events apart from sorted maps. It judges simulations, real processes under
//! `tidegate-lab chaos`, and recorded files. Each violation names its rule; `checker/tests.rs` plants a fault for each.
//!
//! | rule | what is broken |
//! |---|---|
//! | `ack-differs-on-retry` | two acks of one message have different seqs |
//! | `duplicate-seq`, `stored-twice` | the log has a seq, or a message, twice |
//! | `never-sent`, `corrupted`, `misplaced` | a message in the log or in a push was not sent, or not with this content, or not there |
//! | `inconsistent-seq`, `phantom` | a push has a seq at which the log has another entry, or none |
//! | `aborted-read`, `refused-but-stored` | a permanently refused message was pushed, or is in the log |
//! | `time-travel` | a message was received before it was sent |
//! | `lost-acked` | an acked message, edit or change of members is not in the log at that seq |
//! | `kept-lost` | a message that its client had stored was neither answered nor is in the log |
//! | `real-time-inversion` | a message was sent after an ack, and has a smaller seq than the acked one |
//! | `session-order` | messages of one connection, each sent once, changed places in a conversation |
//! | `chain-order` | chained messages of a device changed places in a conversation |
//! | `let-in-late` | the same, and the sender joined between two attempts: the first refusal was forgotten |
//! | `unexplained-gap`, `false-gap` | the log has an undeclared hole, or a row in a declared one |
//! | `non-monotonic`, `duplicate-after-dedup` | seqs fall, or repeat after the client's own dedup |
//! | `silent-skip`, `not-delivered` | a connected member missed a message without notice |
//! | `never-got` | a device that reports that it has everything got it neither by a push nor by a pull |
//! | `leak-after-kick` | a user who was no member at that seq got a push of it |
//! | `shed-untold` | a member of a live room lost messages that no announcement counts |
//! | `number-twice` | two messages of a live room have the same number |
//! | `room-order`, `room-copy` | messages of one connection to a live room, each sent once, changed places for another, or came twice |
//! | `read-went-back` | a read mark is lower than one that was acked or reported before, or is so in the store at the end |
//! | `read-unasked` | a read mark is higher than any that was requested |
//! | `unread-drift` | the unread count of a state differs from the messages of others above its read mark in the log |
//! | `unread-total` | the total of a sync differs from the sum of its states |
//! | `presence-diverged` | at the end a node reports a device as connected that is not, or the other way round |
//! | `slow-recovery` | after a fault ended, or in all the time between faults since the last ack, no client got an ack for longer than the budget, although one waited |
//! | `unpushed` | in a calm history ([`Budget::push_ns`]) a connection got neither a push of a message nor a notice that it was left out |
//! | `edit-misplaced` | an edit in the log names no message before it in its conversation |
//! | `edit-unasked` | the log has an edit that no client asked for, or of another message |
//! | `edit-lost` | a message does not have the content of its newest edit in the log |
//! | `webhook-order`, `stream-order`, `topic-order` | an endpoint, the reader of the stream, or that of the topic of messages, got an event before an earlier one of its conversation |
//! | `webhook-phantom`, `stream-phantom`, `topic-phantom` | it got an event that the log does not have |
//! | `webhook-lost`, `stream-lost`, `topic-lost` | at the end it had not got an entry of the log, although an endpoint had taken all, as a node reports, or the reader had time for it |
//! | `stop-unanswered` | in a calm history a planned stop took a send and closed the connection without its answer |
//!
//! A client pulls what it misses **while it is disconnected**: one that reports at the end that it has everything is
//! held to that, over all its connections and by the ranges in which it was a member (`never-got`). Pushes are judged
//! as well, within one connection: from its first push of a conversation to its last, and for connections that live to
//! the end, everything sent after their login; but not where a push may be lost between nodes. A connection that is cut
//! within [`Budget::excuse_ns`] of a hole may have lost the `behind` that names it, which is counted and not judged.
//!
//! A live room may lose messages if it announces that, by `shed` with their number, or without one where no node could
//! count. Only messages that the speaker's node had not passed on when it was killed may be lost without notice.
//! [`rooms`] describes how soon an announcement has to come, and which faults delay it.

mod availability;
mod calm;
mod closings;
mod delivery;
mod edits;
mod event;
mod history;
mod marks;
mod order;
pub mod planted;
mod presence;
mod rooms;
mod sends;
mod shed;
mod verdict;
mod webhooks;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt};

use foldhash::{HashMap, HashMapExt as _};

pub use self::{
    closings::Closings,
    event::{Change, HistoryEvent, Stamped, Via},
    history::{History, Id, JsonError},
    webhooks::{STREAM, TOPIC},
};
use self::{
    delivery::Sessions,
    edits::Edits,
    rooms::Rooms,
    sends::{Log, Send},
};

/// Violations of one rule that are described; the rest are counted.
const TOLD_MAX: usize = 20;

/// Tolerances of the checker.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Longest time from the end of a fault to the next ack of any client, and longest wait between two acks in which nothing
    /// was broken.
    pub recovery_ns: u64,
    /// A hole seen this shortly before the connection broke is counted, not judged.
    pub excuse_ns: u64,
    /// Time after a fault between two nodes until the other one's losses are announced.
    pub settle_ns: u64,
    /// Longest time from a message to its push, in a history in which no push may be lost; `None` for any other.
    pub push_ns: Option<u64>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            recovery_ns: 30_000_000_000,
            excuse_ns: 2_000_000_000,
            settle_ns: 8_000_000_000,
            push_ns: None,
        }
    }
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the rule, as in the table above.
    pub rule: &'static str,
    /// Index of the event that shows it.
    pub event: usize,
    /// Description.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at event {}: {}", self.rule, self.event, self.text)
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The first violations of each rule.
    pub violations: Vec<Violation>,
    /// Number of violations, by rule.
    pub broken: BTreeMap<&'static str, u64>,
    /// Messages sent, without retries.
    pub sent: u64,
    /// Messages acked.
    pub acked: u64,
    /// Messages refused permanently.
    pub refused: u64,
    /// Rows of the log.
    pub rows: u64,
    /// Pushes compared with the log.
    pub pushes: u64,
    /// Entries that were pulled.
    pub pulled: u64,
    /// Pushes after a later one of their conversation, to a device that pulls: its hole filled without a pull.
    pub late: u64,
    /// Pushes of entries that the connection had already: they are allowed, and the client drops them.
    pub repeated: u64,
    /// Holes that the broker announced.
    pub told_gaps: u64,
    /// Holes so shortly before a disconnect that the announcement may have been lost.
    pub excused: u64,
    /// Frames of live rooms that were announced as shed.
    pub shed: u64,
    /// Messages of live rooms that were due to others. `talks_uncounted` of them were lost and announced without their
    /// number, and `talks_lost` were lost with the node of their speaker.
    pub talks: u64,
    /// See [`Self::talks`].
    pub talks_uncounted: u64,
    /// See [`Self::talks`].
    pub talks_lost: u64,
    /// Members that left a live room by themselves and were judged by that: a message was due by then, and no later one that
    /// came shows it.
    pub leavers: u64,
    /// Read marks that were acked, and states compared with the log.
    pub reads: u64,
    /// See [`Self::reads`].
    pub states: u64,
    /// Reports of nodes on devices, compared with the open connections.
    pub presences: u64,
    /// Faults that ended, and the longest time from such an end to the next ack.
    pub faults: u64,
    /// Events that consumers of the feed took, and those of them that they had taken before.
    pub delivered: u64,
    /// See [`Self::delivered`].
    pub delivered_again: u64,
    /// Those of [`Self::delivered`], by kind of the consumer: `webhook`, `stream` and `topic`.
    pub delivered_by: BTreeMap<&'static str, u64>,
    /// Pushes that a calm history owed.
    pub calm_pushes: u64,
    /// See [`Self::faults`]; in nanoseconds.
    pub longest_recovery_ns: u64,
}

impl CheckReport {
    /// Returns whether every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.broken.is_empty()
    }
}

/// Checks a history. Its log rows are the truth: they were read from the store itself.
pub fn check(history: &History, budget: Budget) -> CheckReport {
    let mut checker = Checker::new(history, budget);
    checker.index();
    checker.check_sends();
    checker.check_logs();
    checker.check_edits();
    checker.check_order();
    checker.check_deliveries();
    checker.check_rooms();
    checker.check_marks();
    checker.check_presence();
    checker.check_availability();
    checker.check_calm();
    checker.check_webhooks();
    checker.report
}

struct Checker<'a> {
    history: &'a History,
    budget: Budget,
    /// Messages by id.
    sends: HashMap<Id, Send>,
    /// Logs by conversation.
    logs: HashMap<Id, Log>,
    rooms: Rooms,
    sessions: Sessions,
    edits: Edits,
    report: CheckReport,
}

impl<'a> Checker<'a> {
    fn new(history: &'a History, budget: Budget) -> Self {
        Self {
            history,
            budget,
            sends: HashMap::new(),
            logs: HashMap::new(),
            rooms: Rooms::default(),
            sessions: Sessions::default(),
            edits: Edits::default(),
            report: CheckReport::default(),
        }
    }

    fn broken(&mut self, rule: &'static str, event: usize, text: impl FnOnce(&History) -> String) {
        let count = self.report.broken.entry(rule).or_default();
        *count += 1;
        if *count <= TOLD_MAX as u64 {
            let text = text(self.history);
            self.report.violations.push(Violation { rule, event, text });
        }
    }
}
