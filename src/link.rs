//! Port `Link`: direct calls between nodes. Best effort; every call reports its outcome.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_protocol::{
    id::{ConversationId, DeviceId, UserId},
    machine::{ledger::Outcome, reactions::ReactionExchange},
    record::Hash16,
};

use crate::{
    figures::{FiguresPage, FiguresQuery},
    revocation::Revocation,
    routes::NodeBoot,
    storms::{StormsPage, StormsQuery},
    trace::{TraceEvent, TraceFilter},
};

mod acks;
mod best_effort;
mod connections;
mod faulty;
mod grpc;
mod local;
mod memory;
#[cfg(test)]
pub(crate) mod recording;
mod rooms;

pub use self::{
    acks::{ACK_QUERIES_MAX, AckQuery, DEVICES_PER_QUERY_MAX, DeviceAck},
    best_effort::BestEffortQueues,
    connections::{CloseOrder, ConnectionPage, ConnectionQuery, ConnectionRow, ConnectionSort, Selected},
    rooms::{RoomCount, RoomMember, RoomRemoval, RoomsPage, RoomsQuery},
};
pub use grpc::{GrpcLink, LinkFiles, Listener, Secret, Settings, Tls, TlsMode};
pub use local::LocalLink;
pub use memory::MemoryLink;

/// Owner's answer about one record, for the node that appended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Connection id from the record's origin.
    pub conn: u64,
    /// Request id from the record's origin.
    pub request: u64,
    /// Outcome from the ledger.
    pub outcome: Outcome,
    /// W3C trace context of the record; empty if it has none.
    pub traceparent: String,
}

/// One push for some connections of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerPush {
    /// Encoded `tidegate.v1.Push`; empty to only query which targets are online.
    pub push: Bytes,
    /// Recipients of the push.
    pub to: Vec<Target>,
    /// Whether the node resends the push until it is acked, as in direct conversations and small groups.
    pub tracked: bool,
    /// Connection that sent the message and gets no push, whatever the targets; `None` if it is unknown.
    pub sent_by: Option<SentBy>,
    /// W3C trace context of the record; empty if it has none.
    pub traceparent: String,
}

/// Connection that sent a message, as given by its record's origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentBy {
    /// Run of the sender's node; the push may arrive on another node.
    pub at: NodeBoot,
    /// Connection id on that node.
    pub conn: u64,
}

/// Recipient of a push.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Connection found by its route.
    Conn(RoutedSession),
    /// All connections of the user on the node. Used to query the peers while the routes are unavailable.
    Anywhere(UserId),
}

/// Connection named by its route; the addressed node completes the route's token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoutedSession {
    /// User of the connection.
    pub user: UserId,
    /// Device of the connection.
    pub device: DeviceId,
    /// Connection epoch from the route's token.
    pub epoch: u64,
}

/// Outcome of one push for one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// Push queued in the connection's outbox, or replaced there by `Behind`. Also reported if the connection has just
    /// closed and its user has others on the node: that node removes the route itself (ADR 14), and the next login
    /// reads the missed message.
    Delivered,
    /// No connection of the user on that node, or no longer; the route may be removed by its token.
    NotHere,
}

/// Query for the answer about a record that this node appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Partition of the record.
    pub partition: u32,
    /// Offset of the last record of its append, at or above the record's own.
    pub offset: u64,
    /// Connection id from the record's origin.
    pub conn: u64,
    /// Request id from the record's origin.
    pub request: u64,
    /// Key by which a later owner finds an earlier owner's decision; `None` if the record has none.
    pub key: Option<AskKey>,
}

/// Dedup key of a record, and the content hash that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskKey {
    /// Hash of conversation, sender, device and message id, or of those of a membership request.
    pub hash: Hash16,
    /// Hash of the content; a stored key with another content hash belongs to another record.
    pub body_hash: Hash16,
}

/// Owner's reply to a repeated query about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStatus {
    /// Outcome from the ledger, the same as in the first answer.
    Answered(Outcome),
    /// Offset not reached yet; the answer will arrive, or can be queried again.
    NotYet,
    /// Record answered, but its outcome is neither in memory nor under its dedup key. The client gets *unknown* and
    /// retries with the same id.
    Forgotten,
    /// Partition not owned by the queried node; find the owner and query it.
    NotOwner,
}

/// Reply to the query of a run that can't reach the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// Whether the queried node renews its own lease.
    pub renews: bool,
    /// Whether it lists the calling run as live.
    pub lists_caller: bool,
}

/// End of what one owner had published at the time of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedMark {
    /// Owner's number within the run of its node.
    pub owner: u64,
    /// Offset below which everything was published.
    pub to: u64,
}

/// Reply to the query whether the owners of a node have archived what they published (ADR 16).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveStatus {
    /// Everything queried is archived.
    ArchivedUpTo(ArchivedUpTo),
    /// Not archived yet. To keep waiting, query these marks again rather than everything published since.
    NotYet(Vec<PublishedMark>),
}

/// Archive positions of the current and recently ended owners of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchivedUpTo {
    /// Archived offsets of owners that have archived everything the log held when they took over.
    pub archived: Vec<PartitionOffset>,
    /// Offsets that recently ended owners had published but not archived.
    pub unarchived: Vec<PartitionOffset>,
}

/// Range of a partition, from its start to below an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionOffset {
    /// Partition number.
    pub partition: u32,
    /// Offset that ends the range, exclusive.
    pub offset: u64,
}

/// Numbers of a live room at one node, since it learned of the room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoomTallyReport {
    /// Random number of the node's stay in the room.
    pub run: u64,
    /// Connections in the room; `None` if they are not counted.
    pub members: Option<u64>,
    /// Reactions that its clients have sent.
    pub reactions: ReactionExchange,
}

/// Message that may be lost on its way to a peer; the peer reports no recipients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BestEffortMessage {
    /// Message of a live room, for the members on the peer.
    RoomMessage {
        /// Room of the message.
        room: ConversationId,
        /// Encoded `tidegate.v1.Push`; empty if there is only a number to report.
        push: Bytes,
        /// Class of its sender, 0 to 3.
        class: u8,
        /// Messages of the room that were left out since the last report.
        left_out: u64,
    },
    /// Members and reactions of a live room at the sender, for the peer's members.
    RoomTally {
        /// Room of the numbers.
        room: ConversationId,
        /// Numbers.
        tally: Box<RoomTallyReport>,
    },
    /// Loss of messages of a live room on their way to the peer, to be reported to the members there.
    RoomLoss {
        /// Room of the lost messages.
        room: ConversationId,
        /// Number of messages that are lost or in doubt; 0 if it is unknown.
        count: u64,
    },
    /// Volatile frame, for the users that are online on the peer. In a group, the peer omits users that are not members
    /// by its own index.
    Signal {
        /// Conversation of the signal.
        conversation: ConversationId,
        /// Recipients of the signal.
        users: Vec<UserId>,
        /// Encoded `tidegate.v1.ServerFrame`.
        frame: Bytes,
    },
    /// Notice about a conversation, for the users that are online on the peer.
    Notice {
        /// Conversation of the notice.
        conversation: ConversationId,
        /// Recipients of the notice.
        users: Vec<UserId>,
        /// Encoded `tidegate.v1.ServerFrame`.
        frame: Bytes,
    },
    /// Change of a user's mark, for the user's devices on the peer.
    Mark {
        /// Conversation of the mark.
        conversation: ConversationId,
        /// User whose devices get the frame.
        user: UserId,
        /// Seq up to which the conversation changed.
        seq: u64,
        /// Encoded `tidegate.v1.ServerFrame`.
        frame: Bytes,
    },
    /// Change of a block list of one of the two users of a direct conversation.
    BlocksChanged {
        /// Conversation of the two users.
        conversation: ConversationId,
    },
    /// Change of an entry of the guard, which the peer finds in the store.
    GuardChanged,
    /// Large-group record that the peer's node topic did not accept, for the members on the peer.
    FanOut {
        /// Group of the record.
        group: ConversationId,
        /// Encoded `tidegate.v1.FanOut`.
        record: Bytes,
    },
}

/// Failed or unconfirmed call to a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Run of the node not reachable: the call had no effect and never will. The next run of the node is found by its
    /// routes.
    #[error("no such node")]
    NotHere,
    /// Call without effect; the same call may succeed later. The peer is not connected, its queue is full, or it is
    /// shutting down.
    #[error("peer unavailable: {0}")]
    Unavailable(String),
    /// Call in doubt. A delivery counts as not delivered; answers are repeated on request.
    #[error("no reply from the peer: {0}")]
    Unknown(String),
}

/// Calls from node to node; each call is one batch for one peer.
///
/// Both ends implement this trait: the client that callers use, and the handler that serves a node's peers. The adapter
/// calls the handler with that node as `to`. Answers and deliveries to one node are handled in the order of the calls,
/// one after the other, as long as they succeed; best-effort messages likewise among themselves. Other calls have no
/// order. A batch is not atomic: an error covers all of its items, although their effects may differ. Every item is
/// idempotent, so every call may be repeated. Calls end within a time set by the adapter; dropping one earlier is
/// equivalent to [`LinkError::Unknown`]. An empty batch does nothing and does not show whether the peer is reachable.
/// The queue to each peer is bounded: when it is full, calls return [`LinkError::Unavailable`] at once, and no peer
/// delays calls to another.
#[async_trait]
pub trait Link: Send + Sync {
    /// Sends answers to the node that appended the records. `Ok` means that its connections got them or are closed.
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError>;

    /// Delivers pushes and returns one landing per target, in order. An error leaves every target in doubt.
    async fn deliver(&self, to: &NodeBoot, deliveries: Vec<PeerPush>)
    -> Result<Vec<Vec<Landing>>, LinkError>;

    /// Stops sessions that newer connections have replaced, closing each one once, with `REPLACED`.
    ///
    /// `Ok` means that those connections append no more records. In order, it is true for a session stopped by this
    /// call and false for one that had ended. [`LinkError::NotHere`] guarantees the same for a whole run, but only once
    /// its lease has expired. Ends within 1 s.
    async fn stop_sessions(
        &self,
        to: &NodeBoot,
        sessions: Vec<RoutedSession>,
    ) -> Result<Vec<bool>, LinkError>;

    /// Queries whether the peer's owners have archived everything up to `marks`, or everything published so far if
    /// `marks` is empty.
    ///
    /// The peer waits up to `within` and then replies that it is not archived yet, so a peer without a reply is frozen
    /// or disconnected.
    async fn archive_status(
        &self,
        to: &NodeBoot,
        marks: Vec<PublishedMark>,
        within: Duration,
    ) -> Result<ArchiveStatus, LinkError>;

    /// Queries an owner for answers that have not arrived; returns one status for each, in order.
    ///
    /// The origin repeats the query every 300 ms. It may get both the answer and the status, in either order; they
    /// agree. `from` is the run that appended the records, and that the connection and request ids belong to.
    async fn answers_again(
        &self,
        from: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError>;

    /// Queries whether the peer renews its lease, and whether it lists the run `from` as live. A handler without a list
    /// of nodes returns an error.
    async fn lease_status(&self, _from: &NodeBoot, _to: &NodeBoot) -> Result<LeaseStatus, LinkError> {
        Err(LinkError::Unavailable("the node keeps no list of nodes".to_owned()))
    }

    /// Sends best-effort messages, in order. `Ok` means that the peer has handled them as far as it could. These calls
    /// and all others neither delay each other nor share a limit.
    async fn send_best_effort(
        &self,
        to: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError>;

    /// Returns the peer's steps of the queried traces, as many as fit into one reply. Unless the query is passive, the
    /// peer records the message and the user from now on. A handler that records no steps returns an error.
    async fn traces(&self, _to: &NodeBoot, _query: TraceFilter) -> Result<Vec<TraceEvent>, LinkError> {
        Err(LinkError::Unavailable("no trace steps are recorded".to_owned()))
    }

    /// Returns the peer's figures, the newest of them if they do not fit into one reply. A handler that keeps none, and
    /// a node of an older version, return an error.
    async fn figures(&self, _to: &NodeBoot, _query: FiguresQuery) -> Result<FiguresPage, LinkError> {
        Err(LinkError::Unavailable("no figures are kept".to_owned()))
    }

    /// Returns the storms of groups whose partitions the peer owns. A handler that finds none, and a node of an older
    /// version, return an error.
    async fn storms(&self, _to: &NodeBoot, _query: StormsQuery) -> Result<StormsPage, LinkError> {
        Err(LinkError::Unavailable("no storms are looked for".to_owned()))
    }

    /// Returns connections of the peer: the first of the order that the query names, and their number. A handler without
    /// connections, and a node of an older version, return an error; so it is with the next five calls.
    async fn connections(
        &self,
        _to: &NodeBoot,
        _query: ConnectionQuery,
    ) -> Result<ConnectionPage, LinkError> {
        Err(no_connections())
    }

    /// Returns live rooms that have members on the peer, or the members of one.
    async fn rooms(&self, _to: &NodeBoot, _query: RoomsQuery) -> Result<RoomsPage, LinkError> {
        Err(no_connections())
    }

    /// Returns for each query, in order, the devices of its user that are connected to the peer. At most
    /// [`ACK_QUERIES_MAX`] queries.
    async fn acks(&self, _to: &NodeBoot, _queries: Vec<AckQuery>) -> Result<Vec<Vec<DeviceAck>>, LinkError> {
        Err(no_connections())
    }

    /// Closes connections of the peer, each one once; returns how many this call has closed.
    async fn close_connections(&self, _to: &NodeBoot, _order: CloseOrder) -> Result<u64, LinkError> {
        Err(no_connections())
    }

    /// Removes connections of the peer from a live room; returns how many this call has removed.
    async fn remove_from_room(&self, _to: &NodeBoot, _removal: RoomRemoval) -> Result<u64, LinkError> {
        Err(no_connections())
    }

    /// Puts a revocation in force on the peer, which the store has; returns how many connections this call has closed.
    async fn revoke(&self, _to: &NodeBoot, _revocation: Revocation) -> Result<u64, LinkError> {
        Err(no_connections())
    }
}

fn no_connections() -> LinkError {
    LinkError::Unavailable("the node has no connections".to_owned())
}
