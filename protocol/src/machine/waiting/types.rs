//! Inputs and outputs of the notices that messages wait.

use std::time::Duration;

use crate::{
    Time,
    id::{ConversationId, UserId},
};

/// Settings of the notices of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingSettings {
    /// Shortest time between two notices about a conversation to a user.
    pub repeat: Duration,
    /// Time for which a notice fails while others succeed, until it is dropped, if it is not refused.
    pub failing_max: Duration,
    /// Most notices of a round that have failed before, each of which is a request of its own; at least one.
    pub alone_max: usize,
}

/// Message that may wait for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingMessage {
    /// Number in the feed of its partition.
    pub number: u64,
    /// Conversation.
    pub conversation: ConversationId,
    /// Seq in the conversation.
    pub seq: u64,
    /// Receive time in ms since 1970.
    pub time: u64,
    /// Sender.
    pub sender: UserId,
}

/// Recipient of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRecipient {
    /// User.
    pub user: UserId,
    /// Whether the message mentions the user.
    pub is_mentioned: bool,
}

/// When the feed is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingLook {
    /// At once: more is due.
    Now,
    /// Then: the next entry is due.
    At(Time),
    /// After the next archive: there is no further entry.
    Archived,
}

/// Messages of the feed of a partition that are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPage {
    /// Number behind which the driver has read.
    pub after: u64,
    /// Last number of the page, whether or not its entry is a message with recipients.
    pub end: u64,
    /// Messages by rising number, each with its recipients.
    pub messages: Vec<(WaitingMessage, Vec<WaitingRecipient>)>,
    /// Next read.
    pub next: WaitingLook,
}

/// Seqs of messages that mention a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MentionSeqs {
    /// Lowest seq.
    pub oldest: u64,
    /// Highest seq.
    pub newest: u64,
}

impl MentionSeqs {
    /// Returns those of one message.
    pub(super) const fn of(seq: u64) -> Self {
        Self { oldest: seq, newest: seq }
    }

    /// Returns those of both.
    pub(super) fn with(self, other: Self) -> Self {
        Self { oldest: self.oldest.min(other.oldest), newest: self.newest.max(other.newest) }
    }
}

/// Notice that may be due: messages of a conversation since the last notice to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingNotice {
    /// Recipient.
    pub user: UserId,
    /// Oldest message: those that the user may see although the newest is above a bound of the user begin with it.
    pub oldest: WaitingMessage,
    /// Newest message.
    pub newest: WaitingMessage,
    /// Number of messages.
    pub count: u64,
    /// Seqs of the oldest and the newest of them that mention the user.
    pub mentioned: Option<MentionSeqs>,
    /// Whether it is sent in a request of its own, because it has failed before, or probes a receiver that fails.
    pub is_alone: bool,
    /// Whether it has failed before.
    pub has_failed: bool,
}

/// Notices that are decided together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRound {
    /// Number of the round, for its outcomes.
    pub ticket: u64,
    /// Notices, at most [`super::ROUND_MAX`], each of another user or conversation.
    pub notices: Vec<WaitingNotice>,
}

/// Outcome of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingOutcome {
    /// Nothing waits, or the user wants no notice.
    Settled,
    /// The receiver has taken the notice.
    Noticed,
    /// The receiver has refused the request, with a status from 400 to 499 that has no other meaning.
    Refused,
    /// The request failed otherwise.
    Failed,
    /// The receiver asked to wait for this long.
    Busy(Duration),
    /// The receiver wants no events any more.
    Gone,
    /// The node could not decide it.
    Undecided,
}

/// Notice that is dropped, because the receiver has not taken it for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedNotice {
    /// Recipient.
    pub user: UserId,
    /// Conversation.
    pub conversation: ConversationId,
    /// Seq of the newest message.
    pub seq: u64,
}

/// Number up to which everything of a partition is decided, to be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingSave {
    /// Partition.
    pub partition: u32,
    /// Feed number.
    pub number: u64,
}
