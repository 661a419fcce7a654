//! The history checker: what clients recorded, held against the log that the store kept.
//!
//! Pure and linear in the events (beside sorted maps): the same checker judges simulations, real processes under
//! `tidegate-lab chaos`, and recorded files. Each violation names its rule; `checker/tests.rs` plants a fault for each.
//!
//! | rule | says |
//! |---|---|
//! | `ack-differs-on-retry` | two acks of one message have different seqs |
//! | `duplicate-seq`, `stored-twice` | the log has a seq, or a message, twice |
//! | `never-sent`, `corrupted`, `misplaced` | what is in the log or was pushed is not what somebody sent, or not there |
//! | `inconsistent-seq`, `phantom` | a push has a seq that is another's in the log, or nobody's |
//! | `aborted-read`, `refused-but-stored` | what was refused for good was pushed, or is in the log |
//! | `time-travel` | received before it was sent |
//! | `lost-acked` | acked, and not in the log at that seq |
//! | `real-time-inversion` | sent after an ack, with a smaller seq than the acked one |
//! | `session-order` | one connection's messages, each sent once, changed places in a conversation |
//! | `chain-order` | a device's chained messages changed places in a conversation |
//! | `let-in-late` | so did one whose sender came in between its attempts: its refusal was forgotten |
//! | `unexplained-gap`, `false-gap` | the log has a hole nobody declared, or a declared hole has a row |
//! | `non-monotonic`, `duplicate-after-dedup` | seqs fall, or repeat behind the client's own dedup |
//! | `silent-skip`, `not-delivered` | a member missed it while connected, and was not told |
//! | `never-got` | a device that says it has everything was neither pushed nor given it when it pulled |
//! | `leak-after-kick` | pushed to somebody who was no member at that seq |
//! | `shed-untold` | a live room lost more than it said |
//! | `number-twice` | two messages of a live room have the same number |
//! | `room-order`, `room-copy` | one connection's messages to a live room, each sent once, changed places for another, or came twice |
//! | `read-went-back` | a read mark that was acked, or told, was lower afterwards, or is in the store at the end |
//! | `read-unasked` | a read mark is higher than anybody asked |
//! | `unread-drift` | what a state calls unread is not what the log has of others above its read mark |
//! | `unread-total` | nor is the sum of all states |
//! | `presence-diverged` | at the end a node says of a device that it is connected, or not, and it is the other way round |
//! | `slow-recovery` | after a fault ended, no ack came within the budget |
//!
//! What a client misses **while it is not connected** it pulls: one that says at the end that it has everything is held to
//! that, over all its connections and by the ranges in which it was a member (`never-got`). What was to be pushed is judged
//! as well, within one connection: from its first push of a conversation to its last, and for
//! connections that live to the end, everything sent after their login; but not where a push may be lost between nodes. Whoever
//! is cut off within [`Budget::excuse_ns`] of seeing a hole may have lost the `behind` that names it: that is counted, not judged.
//!
//! A live room may lose what is said, but not without a word: `shed` by number, or without one where nobody could count.
//! One thing may be lost in silence: what the speaker's node had not passed on when it was killed. How soon the word has
//! come, and which faults delay it, says [`rooms`].

mod availability;
mod delivery;
mod event;
mod history;
mod marks;
mod order;
pub mod planted;
mod presence;
mod rooms;
mod sends;
mod verdict;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt};

use foldhash::{HashMap, HashMapExt as _};

use self::{
    delivery::Sessions,
    rooms::Rooms,
    sends::{Log, Send},
};
pub use self::{
    event::{Change, Event, Stamped, Via},
    history::{History, Id, JsonError},
};

/// Violations of one rule that are told in words; the rest is counted.
const TOLD_MAX: usize = 20;

/// What is still allowed.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// From the end of a fault to the next ack.
    pub recovery_ns: u64,
    /// A hole seen this shortly before the connection broke is counted, not judged.
    pub excuse_ns: u64,
    /// How long after a fault between two nodes one may hear from the other what was lost.
    pub settle_ns: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { recovery_ns: 30_000_000_000, excuse_ns: 2_000_000_000, settle_ns: 8_000_000_000 }
    }
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its name, as in the table above.
    pub rule: &'static str,
    /// The event that shows it, by its place in the history.
    pub event: usize,
    /// In words.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at event {}: {}", self.rule, self.event, self.text)
    }
}

/// What a history amounts to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The first ones of each rule.
    pub violations: Vec<Violation>,
    /// How often each rule was broken.
    pub broken: BTreeMap<&'static str, u64>,
    /// Messages sent, retries not counted.
    pub sent: u64,
    /// Messages acked.
    pub acked: u64,
    /// Messages refused for good.
    pub refused: u64,
    /// Rows of the log.
    pub rows: u64,
    /// Pushes held against the log.
    pub pushes: u64,
    /// Entries that were pulled.
    pub pulled: u64,
    /// Pushes behind a later one of their conversation, to a device that pulls: its hole filled by itself.
    pub late: u64,
    /// Pushes that a connection had before: allowed, the client drops them.
    pub repeated: u64,
    /// Holes that the broker told of.
    pub told_gaps: u64,
    /// Holes seen so shortly before a connection broke that the word may have been lost.
    pub excused: u64,
    /// Frames of live rooms that were shed, and told.
    pub shed: u64,
    /// What was said in live rooms to others and judged; what of it was lost without number, but told, and what was lost with
    /// the node of its speaker.
    pub talks: u64,
    /// See [`Self::talks`].
    pub talks_uncounted: u64,
    /// See [`Self::talks`].
    pub talks_lost: u64,
    /// Read marks that were acked, and states held against the log.
    pub reads: u64,
    /// See [`Self::reads`].
    pub states: u64,
    /// What nodes said of devices, held against who was there.
    pub presences: u64,
    /// Faults that ended, and the longest time from such an end to the next ack.
    pub faults: u64,
    /// In nanoseconds.
    pub longest_recovery_ns: u64,
}

impl Report {
    /// Whether every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.broken.is_empty()
    }
}

/// Checks a history. What the log rows say is the truth: they were read from the store itself.
pub fn check(history: &History, budget: Budget) -> Report {
    let mut checker = Checker {
        history,
        budget,
        sends: HashMap::new(),
        logs: HashMap::new(),
        rooms: Rooms::default(),
        sessions: Sessions::default(),
        report: Report::default(),
    };
    checker.index();
    checker.check_sends();
    checker.check_logs();
    checker.check_order();
    checker.check_deliveries();
    checker.check_marks();
    checker.check_presence();
    checker.check_availability();
    checker.report
}

struct Checker<'a> {
    history: &'a History,
    budget: Budget,
    /// By message id.
    sends: HashMap<Id, Send>,
    /// By conversation.
    logs: HashMap<Id, Log>,
    rooms: Rooms,
    sessions: Sessions,
    report: Report,
}

impl Checker<'_> {
    fn broken(&mut self, rule: &'static str, event: usize, text: impl FnOnce(&History) -> String) {
        let count = self.report.broken.entry(rule).or_default();
        *count += 1;
        if *count <= TOLD_MAX as u64 {
            let text = text(self.history);
            self.report.violations.push(Violation { rule, event, text });
        }
    }
}
