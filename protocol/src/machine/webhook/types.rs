//! Inputs and outputs of the delivery machine.

use std::time::Duration;

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

/// Kind of an event, as far as its order needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WebhookEventKind {
    /// Entry of the history: a message, a change of the group, a recall.
    Entry,
    /// Removal of the history up to the seq.
    Pruned,
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
    /// The receiver has taken all events, or wants none of them.
    Taken,
    /// The receiver refused the request: a status from 400 to 499 that is none of the others.
    Refused,
    /// The receiver asked to wait, for this long if it said so.
    Busy(Option<Duration>),
    /// The receiver does not want any events any more.
    Gone,
    /// Anything else: no answer, or another status.
    Failed,
    /// Nothing was sent, for a reason of the node.
    Unsent,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookState {
    /// Events are sent.
    Active,
    /// Nothing succeeds.
    Failing,
    /// An operator stopped it.
    Paused,
    /// The receiver answered that it does not want any events any more.
    Disabled,
}
