//! Port `Bus`: the durable, partitioned log, and the node topics.
//!
//! The log is the only source of order: every owner computes seqs from its records, in log order alone
//! (`docs/internals/adr/0003-what-the-ledger-decides.md`). Records are opaque bytes; offsets rise within a partition, from 0.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use tidegate_protocol::{id::ConversationId, record::body_hash};

use crate::routes::{NodeBoot, TopicLag};

mod faulty;
mod kafka;
mod local;

pub use kafka::{
    KafkaBus, KafkaEvents, KafkaRefusal, TopicPlan, TopicState, compare_log, ensure_topics, topic_plans,
};
pub use local::{LocalBus, LocalBusConfig};

/// Id of one incarnation of the log: a log that was deleted and recreated has a new id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopicId(pub u128);

/// One record of the log with its offset. The position after it is `Position::behind(offset, &bytes)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Offset in the partition.
    pub offset: u64,
    /// Appended bytes, unchanged.
    pub bytes: Bytes,
}

/// Offsets of an appended batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub first: u64,
    /// Offset of the last record. Records of other appenders may lie in between.
    pub last: u64,
}

/// Range of offsets that a partition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Incarnation of the log.
    pub topic: TopicId,
    /// Offset of the oldest retained record; equals `next` if there is none.
    pub first: u64,
    /// Lower bound of the next record's offset: every committed record lies below it.
    pub next: u64,
}

/// Durability and availability of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusState {
    /// Whether an appended record survives the process; constant during a run. If not, messages live in memory only and
    /// `serve` warns about it.
    pub durable: bool,
    /// Whether the log rejects appends now or soon will ([`AppendError::Unavailable`]), so that callers refuse new
    /// sends at once. `false` promises nothing.
    pub refuses_all: bool,
}

/// Consecutive records of one partition, as returned by a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Range of the partition as the reader last knew it. A topic id other than the caller's means that the log was
    /// replaced. `bounds.next` lies after the last record and shows the caller's lag.
    pub bounds: Bounds,
    /// At least one record; offsets rise strictly, and no committed record in between is left out.
    pub records: Vec<LogRecord>,
}

/// Change of the partitions that this node owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnershipEvent {
    /// Partition assigned to this node: take over in the store, then read.
    Assigned(u32),
    /// Partition to be moved to another node: stop reading, archive, flush the answers, then [`Ownership::release`].
    /// Until then no other node is assigned it, for a bounded time.
    Revoked(u32),
    /// Partition already assigned to another node: stop and answer nothing; the store's fence rejects later writes.
    Lost(u32),
}

/// Item read from a node topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// Records addressed to this run of the node, in the order of each publisher; at least one.
    Records(Vec<Bytes>),
    /// Unknown number of records lost at this point, by retention or an offset reset; the affected local members get
    /// `Behind`.
    Gap,
}

/// Failed or unconfirmed append or publish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Batch not in the log, now or later; the same append may succeed later (`BUS_UNAVAILABLE`).
    #[error("log unavailable for appends: {0}")]
    Unavailable(String),
    /// Batch in doubt: each record is in the log once or not at all, and the appended ones are in order. The owner's
    /// answers show which. The caller may append again, since the ledger drops duplicates.
    #[error("append not confirmed: {0}")]
    Unknown(String),
    /// Batch permanently refused in this form, and not in the log; the text names the cure.
    #[error("append rejected: {0}")]
    Rejected(String),
}

/// Failed read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Log temporarily unreadable; the same read may succeed later.
    #[error("log unavailable for reads: {0}")]
    Unavailable(String),
    /// Partition not assigned to this node, no longer assigned, or released: stop and answer nothing.
    #[error("this node does not own the partition")]
    NotOwner,
    /// `from` outside `first ..= next`: records are missing between the caller's position and the log. The caller stops
    /// the partition (`LOG_REPLACED`); nothing is skipped automatically.
    #[error("requested offset is outside the log, which holds {} to {}", .0.first, .0.next)]
    OutOfRange(Bounds),
}

/// Durable, ordered log, and one lossy topic per node.
///
/// Futures are cancel-safe except those of [`Bus::append`], [`Bus::publish_node`] and [`Bus::close`]: dropping one of
/// these early is equivalent to [`AppendError::Unknown`].
#[async_trait]
pub trait Bus: Send + Sync {
    /// Returns the number of partitions, which are numbered from 0; constant during a run.
    fn partitions(&self) -> u32;

    /// Returns the current state of the log. Called for every send, so it must be cheap.
    fn state(&self) -> BusState;

    /// Appends the records to one partition, in this order.
    ///
    /// `Ok` means that all of them are committed: as durable as [`BusState::durable`] states, readable by the owner,
    /// and removed by retention only. [`AppendError::Unavailable`] and [`AppendError::Rejected`] append nothing;
    /// [`AppendError::Unknown`] leaves the result in doubt. Two calls for one partition keep their order if the second
    /// begins after the first has returned. They also keep it if one caller polls both in turn, the first one first,
    /// and the first succeeds. A failed call does not stop its successors (flaw S29), hence the chain numbers in the
    /// records. An empty batch is rejected. A full log is `Unavailable`: unarchived records are never discarded to make
    /// space.
    async fn append(&self, partition: u32, records: Vec<Bytes>) -> Result<Appended, AppendError>;

    /// Waits for a record at or above `from`, then returns records from there. The limits are `max_records` and
    /// approximately `max_bytes`, but at least one record is returned, however large.
    ///
    /// Works only for partitions assigned to this node by [`Ownership`]; a waiting read ends with
    /// [`ReadError::NotOwner`] when the partition is lost or released. Returns committed records only. Every owner
    /// reads the same records at the same offsets.
    async fn read(
        &self,
        partition: u32,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Batch, ReadError>;

    /// Returns the range that the partition holds, owned or not. A record confirmed before the call lies below `next`.
    async fn bounds(&self, partition: u32) -> Result<Bounds, ReadError>;

    /// Allows the log to drop the records below `archived`, except the last one, by which a take-over verifies the log.
    /// This is a hint: a log with its own retention drops records by that alone, later or (`ARCHIVE_BEHIND`) sooner. If
    /// `first` is the archived offset of the same topic, nothing is missing.
    async fn trim(&self, partition: u32, archived: u64) -> Result<(), ReadError>;

    /// Joins the owners group; may be called again after leaving. A second call ends the events of the first.
    async fn join(&self, me: &NodeBoot) -> Result<Box<dyn Ownership>, ReadError>;

    /// Publishes to the topic of one run of one node, in order; best effort.
    ///
    /// `Ok` means accepted for delivery: a stopped node receives nothing, and another run of the node never gets the
    /// records.
    async fn publish_node(&self, to: &NodeBoot, records: Vec<Bytes>) -> Result<(), AppendError>;

    /// Opens the node's own topic at its end (flaws S26, S28). Once it returns, everything published later arrives in
    /// order or as a [`NodeEvent::Gap`], and nothing published earlier ever does. Only then may the node register
    /// interest or become ready. A second call ends the feed of the first.
    async fn consume_node(&self, me: &NodeBoot) -> Result<Box<dyn NodeFeed>, ReadError>;

    /// Returns this node's lag in its own topic, as last known, without waiting. A returned event counts until the next
    /// one is requested. `None` if the bus has no such topic or does not measure the lag.
    fn node_lag(&self) -> Option<TopicLag> {
        None
    }

    /// Waits at most `within` until every pending append is confirmed or failed, and ends all feeds and reads. Every
    /// later append is [`AppendError::Rejected`]. Returns [`AppendError::Unknown`] if an append is still in doubt
    /// (flaw S30).
    async fn close(&self, within: Duration) -> Result<(), AppendError>;
}

/// Node's membership in the owners group. Dropping it amounts to a crash: the partitions are lost.
#[async_trait]
pub trait Ownership: Send {
    /// Returns the next event. `None` once every partition was released after [`Ownership::leave`], or if the bus
    /// closed.
    ///
    /// Cancel-safe. Between `Assigned(p)` and `Revoked(p)` or `Lost(p)` no other node is assigned p while this node's
    /// heartbeats arrive. A frozen node receives `Lost` late; the store's fence protects against its writes. After
    /// `Revoked(p)` no other node is assigned p before the release or the group's time limit (then `Lost(p)`).
    async fn next(&mut self) -> Option<OwnershipEvent>;

    /// Releases one partition: confirms `Revoked`, or is the node's own decision, for unknown rules or a stalled
    /// archive. Later reads of it fail. A partition that was not revoked moves to other nodes at the latest when this
    /// node leaves. Releasing a partition that is not owned has no effect.
    async fn release(&mut self, partition: u32);

    /// Leaves the group: every owned partition is `Revoked`, and no more are assigned.
    async fn leave(&mut self);
}

/// CloudEvent for a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Key of the record.
    pub key: String,
    /// Partition of the topic; `None` for that of the key, as Kafka's clients choose it.
    pub partition: Option<u32>,
    /// Event as JSON.
    pub json: Vec<u8>,
}

/// Topic of CloudEvents, separate from the log. It is an output only: Tidegate itself never reads it.
#[async_trait]
pub trait EventSink: Send + Sync {
    /// Publishes events; those of one key keep their order, unless an error separates them.
    ///
    /// `Ok` means that all in-sync replicas have all of them. After an error some may be published, and publishing all
    /// of them again is correct, since each carries an id; after [`AppendError::Rejected`] it is useless.
    async fn publish(&self, events: Vec<EventRecord>) -> Result<(), AppendError>;
}

/// Consumer of the node's own topic.
#[async_trait]
pub trait NodeFeed: Send {
    /// Returns the next event; `None` once the bus closes or another feed is opened. Cancel-safe.
    async fn next(&mut self) -> Option<NodeEvent>;
}

/// Returns the partition of a conversation, which is the same on every node and never changes. Hence SHA-256: a table
/// hash may change with the next version of its library.
pub fn partition_of(conversation: &ConversationId, partitions: u32) -> u32 {
    if partitions <= 1 {
        return 0;
    }
    let hash = u128::from_be_bytes(body_hash(conversation.as_str().as_bytes()));
    (hash % u128::from(partitions)) as u32
}
