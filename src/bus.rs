//! Port `Bus`: the durable log in partitions, and the node topics.
//!
//! The log is the only source of order: whatever it says once, in this order, is what every owner computes from
//! (DESIGN 6.1). Records are opaque bytes here; offsets rise within a partition and start at 0.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use tidegate_protocol::id::UserId;

use crate::routes::{NodeBoot, TopicLag};

mod faulty;
mod kafka;
mod local;

pub use kafka::{
    KafkaBus, KafkaEvents, KafkaRefusal, TopicPlan, TopicState, compare_log, ensure_topics, topic_plans,
};
pub use local::{LocalBus, LocalBusConfig};

/// Names one incarnation of the log: a log that was deleted and made again has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopicId(pub u128);

/// One record where it lies. The position behind it is `Position::behind(offset, &bytes)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Its place in the partition.
    pub offset: u64,
    /// What was appended, byte for byte.
    pub bytes: Bytes,
}

/// Where an appended batch lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of its first record.
    pub first: u64,
    /// The offset of its last record. Records of other appenders may lie between.
    pub last: u64,
}

/// What a partition holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The log that this is.
    pub topic: TopicId,
    /// The offset of the oldest record kept; equals `next` when there is none.
    pub first: u64,
    /// The offset that the next record will have, at the least: everything committed lies below.
    pub next: u64,
}

/// How a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusState {
    /// Whether an appended record outlives the process; never changes during a run. False: messages live in memory only,
    /// and `serve` says so.
    pub durable: bool,
    /// Whether it takes no append for now ([`AppendError::Unavailable`]), or soon will not: what has no place anywhere
    /// yet is better refused at once. False says nothing.
    pub refuses_all: bool,
}

/// Some records in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// What the partition held, as far as the reader has heard: another topic than the caller's means that the log was
    /// replaced, `bounds.next` says how far behind the caller is and is at least behind the last record.
    pub bounds: Bounds,
    /// At least one; offsets rise strictly, and no committed record between two of them is left out.
    pub records: Vec<LogRecord>,
}

/// What happens to this node's partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnershipEvent {
    /// The partition is this node's: take over in the store, then read.
    Assigned(u32),
    /// It is to go to another node: stop reading, archive, flush the answers, then [`Ownership::release`].
    /// Until then nobody else gets it, for a bounded time.
    Revoked(u32),
    /// It is already another node's: stop and answer nothing; the store's fence holds.
    Lost(u32),
}

/// What a node topic says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// Records for this run of the node, in the order of each publisher; at least one.
    Records(Vec<Bytes>),
    /// An unknown number of records was lost here (bounded retention, an offset reset): the affected local members
    /// get `Behind`.
    Gap,
}

/// Why nothing sure was appended or published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// None of it is in the log nor ever will be; the same append may succeed later (`BUS_UNAVAILABLE`).
    #[error("the log takes nothing now: {0}")]
    Unavailable(String),
    /// Each record is in the log once or not at all, and those that are there are in order. The owner's answers
    /// tell; an appender may append again, the ledger drops what is there twice.
    #[error("the log did not confirm: {0}")]
    Unknown(String),
    /// None of it is in the log, and it never will be in this form; the text names the cure.
    #[error("the log refuses this: {0}")]
    Rejected(String),
}

/// Why nothing was read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The same read may succeed later.
    #[error("the log can't be read now: {0}")]
    Unavailable(String),
    /// The partition is not assigned to this node (any more), or was released: stop, answer nothing.
    #[error("this node does not own the partition")]
    NotOwner,
    /// `from` lies outside `first ..= next`: records are missing between the caller and the log. The caller stops
    /// the partition (`LOG_REPLACED`); nothing is ever skipped by itself.
    #[error("the log holds {} to {}, not the offset asked for", .0.first, .0.next)]
    OutOfRange(Bounds),
}

/// The durable, ordered log, and one lossy topic a node.
///
/// Futures are cancel-safe except [`Bus::append`], [`Bus::publish_node`] and [`Bus::close`]: to drop one of those
/// before it is ready is the same as [`AppendError::Unknown`].
#[async_trait]
pub trait Bus: Send + Sync {
    /// How many partitions the log has, from 0; never changes during a run.
    fn partitions(&self) -> u32;

    /// How the log is now; looked at for every send.
    fn state(&self) -> BusState;

    /// Appends the records to one partition, in this order.
    ///
    /// Ok: all of them are committed (durable as [`BusState::durable`] says, readable by the owner, never to vanish but
    /// by retention). An error says which part of that is in doubt; [`AppendError::Unavailable`] and
    /// [`AppendError::Rejected`] leave nothing behind. Two calls for one partition keep their order if the second
    /// begins after the first has returned, and also if one caller polls both in turn, the first one first, and the
    /// first succeeds; a failed one does not stop its successors (flaw S29), which is what the chain numbers are for.
    /// An empty batch is rejected. A full log is `Unavailable`: nothing that is not archived is thrown away for it.
    async fn append(&self, partition: u32, records: Vec<Bytes>) -> Result<Appended, AppendError>;

    /// Waits until there is a record at or above `from`, then returns records from there on: at most `max_records`
    /// and about `max_bytes` (at least one record, however large).
    ///
    /// Only for partitions assigned to this node by [`Ownership`]; a waiting read ends with [`ReadError::NotOwner`]
    /// when the partition is lost or released. Returns committed records only; what was returned once is returned
    /// again, the same, by every owner.
    async fn read(
        &self,
        partition: u32,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Batch, ReadError>;

    /// What the partition holds now, owned or not; a record whose append was confirmed before lies below `next`.
    async fn bounds(&self, partition: u32) -> Result<Bounds, ReadError>;

    /// Allows the log to forget the records below `archived`, except the last of them, by which a take-over knows
    /// the log again. A hint: a log with a retention of its own forgets by that alone, later or (`ARCHIVE_BEHIND`)
    /// sooner. Where `first` is the archived offset of the same topic, nothing is missing.
    async fn trim(&self, partition: u32, archived: u64) -> Result<(), ReadError>;

    /// Joins those who own partitions, again after it has left; the events of a first call end when a second comes.
    async fn join(&self, me: &NodeBoot) -> Result<Box<dyn Ownership>, ReadError>;

    /// Publishes to the topic of one run of one node, in order; best effort.
    ///
    /// Ok means handed over: a node that is gone hears nothing, and another run of the node never gets it.
    async fn publish_node(&self, to: &NodeBoot, records: Vec<Bytes>) -> Result<(), AppendError>;

    /// Opens the node's own topic at its end (flaws S26, S28): once this is ready, everything published from then on
    /// arrives, in order or as a [`NodeEvent::Gap`]; nothing published before ever does. Only then may the node
    /// register interest or become ready. A second call ends the first one's feed.
    async fn consume_node(&self, me: &NodeBoot) -> Result<Box<dyn NodeFeed>, ReadError>;

    /// How far this node is behind in its own topic, as far as it is known now: an event that was given out counts until
    /// the next one is asked for. Never waits. None on a bus that has no such topic, or does not measure.
    fn node_lag(&self) -> Option<TopicLag> {
        None
    }

    /// Waits until everything handed over is confirmed or failed, at most `within`, and ends all feeds and reads.
    /// Every later append is [`AppendError::Rejected`]. Unknown: something was still in doubt (flaw S30).
    async fn close(&self, within: Duration) -> Result<(), AppendError>;
}

/// A node's membership in those who own partitions. Dropping it is a crash: the partitions are lost.
#[async_trait]
pub trait Ownership: Send {
    /// The next event; none after [`Ownership::leave`] when every partition was released, or when the bus closed.
    ///
    /// Cancel-safe. Between `Assigned(p)` and `Revoked(p)` or `Lost(p)` no other node is assigned p, as long as this
    /// one is heard of: one that was frozen hears `Lost` late, and the store's fence is what protects. After
    /// `Revoked(p)` none is before the release, or before the time that the group allows is over (then `Lost(p)`).
    async fn next(&mut self) -> Option<OwnershipEvent>;

    /// Gives one partition up: the confirmation of `Revoked`, or by the node's own will (it can't follow the rules,
    /// its archive stands still). From now on reads of it fail. What was not asked back goes to others at the latest
    /// when this node leaves. Releasing what is not owned is nothing.
    async fn release(&mut self, partition: u32);

    /// Leaves: every owned partition is `Revoked`, nothing is assigned any more.
    async fn leave(&mut self);
}

/// The topic of events, beside the log: a projection, which nothing in Tidegate reads.
#[async_trait]
pub trait EventSink: Send + Sync {
    /// Puts events there; those of one user keep their order.
    ///
    /// Ok: all of them are there, on all copies in step. An error: some may be, and publishing all of them again is right,
    /// since each carries an id; after [`AppendError::Rejected`] it is of no use.
    async fn publish(&self, events: Vec<(UserId, Vec<u8>)>) -> Result<(), AppendError>;
}

/// A node's own topic.
#[async_trait]
pub trait NodeFeed: Send {
    /// The next event; none when the bus closed or another feed was opened. Cancel-safe.
    async fn next(&mut self) -> Option<NodeEvent>;
}
