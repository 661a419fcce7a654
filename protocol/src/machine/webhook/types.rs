//! Inputs and outputs of the delivery machine.

use std::{fmt, time::Duration};

use crate::id::ConversationId;

/// Settings of an endpoint that the machine needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// Lanes, and so requests at a time on a node; at most [`super::LANES_MAX`].
    pub parallel: usize,
    /// Most events of a request, at least 1.
    pub batch_max: usize,
    /// Time that an event waits for others of its request.
    pub batch_wait: Duration,
    /// Time for which a parked event has to fail until it is set aside, if the receiver does not refuse it.
    pub aside_after: Duration,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WebhookEventKind {
    /// Entry of the history of unknown kind: a parked conversation only knows the seqs of what follows.
    Entry,
    /// Removal of the history up to the seq.
    Pruned,
    /// Message.
    Message,
    /// Change of the group or its members.
    Change,
    /// Recall of a message.
    Recall,
    /// Edit of a message.
    Edit,
}

impl WebhookEventKind {
    /// Returns the number in cursors, which never changes.
    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Entry => 0,
            Self::Pruned => 1,
            Self::Message => 2,
            Self::Change => 3,
            Self::Recall => 4,
            Self::Edit => 5,
        }
    }

    pub(super) const fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Entry,
            1 => Self::Pruned,
            2 => Self::Message,
            3 => Self::Change,
            4 => Self::Recall,
            5 => Self::Edit,
            _ => return None,
        })
    }
}

/// Event to be delivered: a reference, without content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WebhookEvent {
    /// Conversation.
    pub conversation: ConversationId,
    /// Seq of the entry, or up to which the history was removed.
    pub seq: u64,
    /// Kind.
    pub kind: WebhookEventKind,
}

/// Entry of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookItem {
    /// Number in the feed of the partition.
    pub number: u64,
    /// Event.
    pub event: WebhookEvent,
    /// Whether the endpoint wants it, as far as the reference tells.
    pub is_wanted: bool,
}

/// Part of a feed: everything above `after`, up to `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookPage {
    /// Number before the first entry.
    pub after: u64,
    /// Number of the last entry that was read; `after` if there is none.
    pub end: u64,
    /// Newest number of the feed.
    pub newest: u64,
    /// Entries in order.
    pub items: Vec<WebhookItem>,
}

/// Feed to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookRead {
    /// Partition.
    pub partition: u32,
    /// Number after which to read.
    pub after: u64,
}

/// Request to be sent. Events of one conversation are in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookBatch {
    /// Number by which the outcome is reported.
    pub ticket: u64,
    /// Partition.
    pub partition: u32,
    /// Number of the try, from 1.
    pub attempt: u32,
    /// Events, at least one.
    pub events: Vec<WebhookEvent>,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookOutcome {
    /// The receiver has taken all events.
    Taken,
    /// The receiver wants none of the events, and was not asked: that says nothing about its health.
    Passed,
    /// The receiver refused the request with this status from 400 to 499 that has no other meaning.
    Refused(u16),
    /// The receiver asked to wait for this long.
    Busy(Duration),
    /// The receiver does not want any events any more.
    Gone,
    /// Anything else: no answer, or another status.
    Failed(WebhookFailure),
    /// Nothing was sent, for a reason of the node.
    Unsent,
}

/// Reason for which a request failed, without anything of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookFailure {
    /// Status of the answer.
    Status(u16),
    /// No answer in time.
    Timeout,
    /// No connection, or it ended without an answer.
    Unreachable,
}

impl WebhookFailure {
    /// Returns the number in cursors: the status, or one below all statuses.
    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Status(status) => status as u64,
            Self::Timeout => 1,
            Self::Unreachable => 2,
        }
    }

    pub(super) fn from_number(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Timeout),
            2 => Some(Self::Unreachable),
            status => u16::try_from(status).ok().filter(|it| *it >= 100).map(Self::Status),
        }
    }
}

impl fmt::Display for WebhookFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::Timeout => f.write_str("no answer in time"),
            Self::Unreachable => f.write_str("no connection"),
        }
    }
}

/// Cursor to be saved under the fence of its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSave {
    /// Partition.
    pub partition: u32,
    /// Encoded [`super::WebhookCursor`].
    pub bytes: Vec<u8>,
    /// Whether the partition is handed over once it is saved.
    pub is_final: bool,
    /// Whether it has to be durable once it is saved: it has the effect of an order, which must not be repeated.
    pub is_durable: bool,
}

/// Order of an operator, for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookStep {
    /// Number; only those above that of the cursor are carried out.
    pub number: u64,
    /// Change.
    pub change: WebhookChange,
}

/// Change that an operator orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookChange {
    /// Delivers everything after this feed number, also what was taken before, and nothing up to it.
    Replay {
        /// Feed number.
        after: u64,
    },
    /// Removes an event from those set aside.
    Drop {
        /// Conversation of the event.
        conversation: ConversationId,
        /// Seq of the event.
        seq: u64,
    },
    /// Sends again after the receiver had answered that it does not want any events any more.
    Resume,
}

/// Event that an operator should learn of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookNotice {
    /// Nothing succeeds; one request at a time probes the endpoint.
    Failing,
    /// A request succeeded again.
    Recovered,
    /// The receiver answered that it does not want any events any more.
    Disabled,
    /// A conversation is delivered apart from the others, because its next event keeps failing.
    Parked(WebhookEvent),
    /// An event is no longer sent.
    Aside(WebhookEvent),
    /// The feed no longer has these events.
    Gap {
        /// Partition.
        partition: u32,
        /// First number that is missing.
        first: u64,
        /// Last number that is missing.
        last: u64,
    },
    /// The final cursor of a partition is saved: its next owner may begin.
    Released(u32),
}

/// State of an endpoint on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebhookState {
    /// Events are sent.
    #[default]
    Active,
    /// Nothing succeeds.
    Failing,
    /// An operator stopped it.
    Paused,
    /// The receiver answered that it does not want any events any more.
    Disabled,
}
