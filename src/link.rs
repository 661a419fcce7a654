//! Port `Link`: what nodes say to each other directly; best effort, every call says what became of it.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_protocol::{
    id::{ConversationId, DeviceId, UserId},
    machine::ledger::Outcome,
    record::Hash16,
};

use crate::{
    routes::NodeBoot,
    trace::{Event, Query},
};

mod best_effort;
mod faulty;
mod grpc;
mod local;
mod memory;

pub use self::best_effort::StrayLanes;
pub use grpc::{GrpcLink, Listener, Secret, Settings, Tls};
pub use local::LocalLink;
pub use memory::MemoryLink;

/// The owner's word on one record, for the node that appended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The conn, as the record's origin named it.
    pub conn: u64,
    /// The request, as the record's origin named it.
    pub request: u64,
    /// What the ledger said.
    pub outcome: Outcome,
    /// The W3C trace context of the record; empty where it has none.
    pub traceparent: String,
}

/// One push for some conns of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// An encoded `tidegate.v1.Push`; empty = nothing is pushed, it is only asked who is here.
    pub push: Bytes,
    /// For whom.
    pub to: Vec<Target>,
    /// Whether the node sends it again until it is acked (direct conversations and small groups).
    pub tracked: bool,
    /// The conn that sent it and knows already, whoever it is for; none, if nobody here did.
    pub sent_by: Option<SentBy>,
    /// The W3C trace context of the record; empty where it has none.
    pub traceparent: String,
}

/// The conn that sent a message, as its record's origin names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentBy {
    /// The run of its node: a push may come to another one.
    pub at: NodeBoot,
    /// It, there.
    pub conn: u64,
}

/// Whom a push is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The conn that a route led to.
    Conn(Session),
    /// Whatever conns of that user the node has: how peers are asked while the routes can't be read (DESIGN 7).
    Anywhere(UserId),
}

/// A conn, by the route that led to it; the node addressed is the rest of its token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session {
    /// Whose.
    pub user: UserId,
    /// With which device.
    pub device: DeviceId,
    /// The conn epoch of the route's token.
    pub epoch: u64,
}

/// What became of one push for one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// It is in that conn's outbox, or that conn was told to be `Behind`; or its user has other conns there, and it closed a moment ago: then
    /// its own node takes the route away (ADR 14), and its next login reads what it lacks.
    Delivered,
    /// Its user has no conn here (any more): the route may be removed by its token.
    NotHere,
}

/// A record that this node appended and that nobody has answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its partition.
    pub partition: u32,
    /// An offset that the record does not lie above: that of the last record of its append.
    pub offset: u64,
    /// The conn, as the record's origin names it.
    pub conn: u64,
    /// The request, as the record's origin names it.
    pub request: u64,
    /// How a later owner finds what an earlier one decided; none = it can't.
    pub key: Option<AskKey>,
}

/// The dedup key of a record, and what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskKey {
    /// The key: conversation, sender, device and id; or those of a membership request.
    pub hash: Hash16,
    /// The hash of the content: with another one the key is of something else.
    pub body_hash: Hash16,
}

/// What an owner can say of a record that it is asked about again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// What the ledger said; the same as the first time.
    Said(Outcome),
    /// The owner has not come to that offset: its answer will come, or may be asked for later.
    NotYet,
    /// It was answered, and neither memory nor its dedup key knows how: the client is told *unknown*, and retries by its id.
    Forgotten,
    /// The node asked does not own the partition now: look for the owner again.
    NotOwner,
}

/// Up to where an owner had told when somebody asked: everything below the offset. Owners are numbers of their node's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Which owner.
    pub owner: u64,
    /// Everything below that offset.
    pub to: u64,
}

/// What a node says when it is asked whether its owners have archived what they told (ADR 16).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// They have.
    Level(Level),
    /// Not yet: whoever goes on waiting asks for this again, not for what was told since.
    NotYet(Vec<Told>),
}

/// How far the owners of a node are in their archives, and were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Archived by owners who have archived, too, what the log had when they took over.
    pub archived: Vec<UpTo>,
    /// Told lately by owners who are no more, and not archived by them.
    pub owed: Vec<UpTo>,
}

/// Everything of a partition below an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpTo {
    /// Which partition.
    pub partition: u32,
    /// Below that offset.
    pub offset: u64,
}

/// What may be lost on its way to a peer; nobody asks whom it reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stray {
    /// A message of a live room, for its members there.
    Talk {
        /// Which room.
        room: ConversationId,
        /// An encoded `tidegate.v1.Push`.
        push: Bytes,
    },
    /// Messages of a live room were lost on their way there: its members are told (DESIGN 1.6).
    Missed {
        /// Which room.
        room: ConversationId,
        /// How many; those of which nobody knows are among them. 0 = nobody knows how many.
        count: u64,
    },
    /// Something volatile, for those of the users who are there; in a group, who is no member by that node's indexes
    /// is left out.
    Signal {
        /// Which conversation.
        conversation: ConversationId,
        /// For whom.
        users: Vec<UserId>,
        /// An encoded `tidegate.v1.ServerFrame`.
        frame: Bytes,
    },
    /// What a user's devices there hear of a change of what the user keeps of a conversation.
    Mark {
        /// Which conversation.
        conversation: ConversationId,
        /// Whose devices.
        user: UserId,
        /// Up to where it changed.
        seq: u64,
        /// An encoded `tidegate.v1.ServerFrame`.
        frame: Bytes,
    },
    /// What the peer's node topic did not take, for the members of a large group there.
    FanOut {
        /// Which group.
        group: ConversationId,
        /// An encoded `tidegate.v1.FanOut`.
        record: Bytes,
    },
}

/// Why a call did not come through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// No such run of a node can be reached: it did nothing and never will. What was for it is for its successor to
    /// find in the routes.
    #[error("no such node here")]
    NotHere,
    /// It did nothing; the same call may succeed later (no connection, the queue to that peer is full, it is leaving).
    #[error("the peer takes nothing now: {0}")]
    Unavailable(String),
    /// It may have happened: for deliveries this counts as not delivered, answers are given again when asked.
    #[error("the peer did not answer: {0}")]
    Unknown(String),
}

/// Node to node; each call is one batch for one peer.
///
/// Both ends are a `Link`: what callers hold, and what a node does for its peers, which the adapter calls there with
/// `to` = that node. Answers and deliveries to one node begin there in the order in which they were called, one after
/// the other, as long as they succeed, and so do strays among themselves; other calls have no order. A batch is not atomic: an error says it of all
/// its items at once, and they may differ. Every item is idempotent by what it names, so every call may be repeated.
/// Calls end within a time that the adapter sets; one that is dropped before that is [`LinkError::Unknown`]. An empty
/// batch does nothing, and does not say whether the peer is there. What waits for one peer is bounded: full is
/// [`LinkError::Unavailable`] at once, and no peer's state delays a call to another.
#[async_trait]
pub trait Link: Send + Sync {
    /// Hands answers to the node whose records they are about; Ok means that its conns have been told, or are gone.
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError>;

    /// Delivers pushes; one landing for each target, in order. An error leaves every target in doubt.
    async fn deliver(&self, to: &NodeBoot, deliveries: Vec<Delivery>)
    -> Result<Vec<Vec<Landing>>, LinkError>;

    /// Stops sessions that newer conns have replaced, closing each `REPLACED` once. Ok says that no record of those
    /// conns will be appended after this point: true if it was stopped by this call, false if it was gone already, in
    /// order. [`LinkError::NotHere`] says the same of a whole node run only once its lease is over. Ends within 1 s.
    async fn stop_sessions(&self, to: &NodeBoot, sessions: Vec<Session>) -> Result<Vec<bool>, LinkError>;

    /// Whether everything is archived that the owners there had told anybody: `told`, or by now, when that is empty. The peer
    /// waits so long for it and says then that it is not yet: so who says nothing is frozen, or cut off.
    async fn settled(&self, to: &NodeBoot, told: Vec<Told>, patience: Duration)
    -> Result<Settled, LinkError>;

    /// Asks an owner for answers that have not come (every 300 ms, DESIGN 6.1); one word for each, in order. Both the
    /// answer and the word may reach the origin, in any order: they say the same. `from` is the run that asks, whose
    /// records these are: conns and requests are numbers of its own.
    async fn answers_again(
        &self,
        from: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<Word>, LinkError>;

    /// Hands over what may be lost, in order; Ok means that the peer has it and has done with it what it could. In the way
    /// of no other call: neither waits for the other, and each has a bound of its own.
    async fn strays(&self, to: &NodeBoot, strays: Vec<Stray>) -> Result<(), LinkError>;

    /// The steps there of the traces that somebody looks for, as many as one answer has; unless the query is passive, the message and the
    /// user are watched there from now on. An end that notes no steps takes no such question.
    async fn traces(&self, _to: &NodeBoot, _query: Query) -> Result<Vec<Event>, LinkError> {
        Err(LinkError::Unavailable("it notes no steps".to_owned()))
    }
}
