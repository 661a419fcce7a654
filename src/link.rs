//! Port `Link`: what nodes say to each other directly; best effort, every call says what became of it.

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_protocol::{
    id::{ConversationId, DeviceId, UserId},
    machine::ledger::Outcome,
};

use crate::routes::{NodeBoot, Token};

mod faulty;
mod local;

pub use local::LocalLink;

/// The owner's word on one record, for the node that appended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The conn, as the record's origin named it.
    pub conn: u64,
    /// The request, as the record's origin named it.
    pub request: u64,
    /// What the ledger said.
    pub outcome: Outcome,
}

/// One push for some conns of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// An encoded `tidegate.v1.Push`.
    pub push: Bytes,
    /// For whom.
    pub to: Vec<Target>,
}

/// A conn, by the route that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whose.
    pub user: UserId,
    /// With which device.
    pub device: DeviceId,
    /// The conn epoch of the route's token; the rest of the token is the node addressed.
    pub epoch: u64,
}

/// What became of one push for one conn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// It is in that conn's outbox, or that conn was told to be `Behind`.
    Delivered,
    /// That conn is not here (any more): the route may be removed by its token.
    NotHere,
}

/// What a node asks the owner of a partition: what is not archived yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailQuery {
    /// The partition.
    pub partition: u32,
    /// For whom; messages of conversations that the user may not see are not told.
    pub user: UserId,
    /// Conversations asked about, with the seq above which messages are wanted.
    pub above: Vec<(ConversationId, u64)>,
    /// The most messages wanted in all; 0 asks for the heads only.
    pub limit: usize,
}

/// What an owner knows above the archived position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The log offset up to which (exclusive) this answer and the store together are complete.
    pub complete_to: u64,
    /// Conversations asked about that it has a newer max seq of.
    pub heads: Vec<(ConversationId, u64)>,
    /// Encoded `tidegate.v1.Push`es, each conversation in order of seq.
    pub messages: Vec<Bytes>,
    /// Conversations that the user has come into.
    pub joined: Vec<ConversationId>,
}

/// Why a call did not come through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// No such run of a node can be reached: it did nothing and never will. What was for it is for its successor to
    /// find in the routes.
    #[error("no such node here")]
    NotHere,
    /// It did nothing; the same call may succeed later (the queue to that peer is full, it is not the owner now).
    #[error("the peer takes nothing now: {0}")]
    Unavailable(String),
    /// It may have happened: for deliveries this counts as not delivered, answers are given again when asked.
    #[error("the peer did not answer: {0}")]
    Unknown(String),
}

/// Node to node. Calls to one node keep their order as long as they succeed. Every call is idempotent by what it
/// names, and bounded in time by the adapter.
#[async_trait]
pub trait Link: Send + Sync {
    /// Hands answers to the node whose records they are about; Ok means that its conns have been told, or are gone.
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError>;

    /// Delivers pushes; one landing for each target, in order. An error leaves every target in doubt.
    async fn deliver(&self, to: &NodeBoot, deliveries: Vec<Delivery>)
    -> Result<Vec<Vec<Landing>>, LinkError>;

    /// Stops the session that a newer conn has replaced, closing it `REPLACED` once. Ok says that no record of that
    /// conn will be appended after this point: true if it was stopped by this call, false if it was gone already.
    /// [`LinkError::NotHere`] says the same of a whole node run only once its lease is over.
    async fn stop_session(&self, user: &UserId, device: &DeviceId, token: &Token) -> Result<bool, LinkError>;

    /// Asks an owner for tails, one for each query, in order; none where it does not own the partition now.
    async fn tails(&self, to: &NodeBoot, queries: Vec<TailQuery>) -> Result<Vec<Option<Tail>>, LinkError>;
}
