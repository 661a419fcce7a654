//! Port `Store`: what was archived from the log, tied to a position in it; durable.
//!
//! Only the owner of a partition writes, and only under its fence: each archive moves rows and position together,
//! or nothing. So whoever believes to be in charge, no seq is written twice (DESIGN 6.1; flaws S6-S12, S20, S21).

use async_trait::async_trait;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Head, Loaded, Member, Need, Row, Stay},
    record::{Hash16, Position, Rules},
    settings::UserSettings,
};

use crate::bus::TopicId;

pub mod dump;
mod faulty;
pub mod import;
mod memory;
mod postgres;
mod user_state;

pub use self::user_state::{Hidden, Level, Mark, Personal};
pub use memory::MemoryStore;
pub use postgres::{Importing, OpenError, PostgresStore};

/// Names one term of one owner: 128 fresh random bits for each take-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u128);

/// Where a new owner starts: with `Ledger::resume`, after `Position::matches`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenOver {
    /// The place up to which the log is archived; the start, for a new partition.
    pub position: Position,
    /// The rules in force there.
    pub rules: Rules,
}

/// Rows as they were at one position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot<T> {
    /// Where the partition was archived to then.
    pub position: Position,
    /// What was asked for.
    pub rows: Vec<T>,
}

/// How a user stands in a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The user's row; of one who has left, too.
    pub member: Member,
    /// The times the user was in before, oldest first.
    pub stays: Vec<Stay>,
    /// What the user keeps of it: read, cleared, hidden.
    pub level: Level,
}

/// A user's standing in a conversation, with the head of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Which conversation.
    pub conversation: ConversationId,
    /// How the user stands there.
    pub standing: Standing,
    /// Where the conversation stands.
    pub head: Head,
    /// How many users are in it now.
    pub members: u64,
}

/// What a conversation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Where it stands.
    pub head: Head,
    /// How many users are in it now.
    pub members: u64,
    /// How the user who was asked for stands there; none = was never in.
    pub standing: Option<Standing>,
}

/// A row of history as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRow {
    /// The row; a recalled message has no content any more.
    pub row: Row,
    /// The seq and time of its recall.
    pub recalled: Option<(u64, u64)>,
}

/// Which way a page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To newer rows: seqs rise.
    Forward,
    /// To older rows: seqs fall.
    Backward,
}

/// What to read of a conversation's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageQuery {
    /// Exclusive: the seq that the caller has. 0 forward and `u64::MAX` backward are the ends.
    pub cursor: u64,
    /// Which way.
    pub direction: Direction,
    /// The most rows.
    pub limit: usize,
    /// About the most bytes of content; one row comes however large.
    pub max_bytes: usize,
}

/// A part of a conversation's history, and its head in the same snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// None: no such conversation is archived. `last_seq` says how far the page can know, `pruned_to` what is gone.
    pub head: Option<Head>,
    /// Without holes between `head.pruned_to` and `head.last_seq`, in the direction asked.
    pub rows: Vec<StoredRow>,
}

/// What an owner looks through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The dedup keys of records at or above the offset `from`. Those that the rules forget may be among them.
    Keys {
        /// The lowest offset.
        from: u64,
        /// Exclusive: the last key of the page before.
        after: Option<Hash16>,
        /// The most keys.
        limit: usize,
    },
    /// Where conversations stand. A store may keep those of several partitions together: which are in this one, the
    /// caller knows.
    Heads {
        /// Exclusive: the last conversation of the page before.
        after: Option<ConversationId>,
        /// The most heads.
        limit: usize,
        /// Only of groups with settings.
        with_settings: bool,
    },
}

/// Why the store did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing happened; the same call may succeed later.
    #[error("the store is away: {0}")]
    Unavailable(String),
    /// The same, and it was not even begun: no connection was free in time, or could be made. It says nothing of the call.
    #[error("no connection to the store: {0}")]
    NoConnection(String),
    /// It may have happened. Do the same again: a take-over with the same fence and an archive of the same delta
    /// find out by themselves.
    #[error("the store did not answer: {0}")]
    Unknown(String),
    /// Another owner has taken over: stop, answer nothing. Nothing happened.
    #[error("another owner has taken the partition over")]
    Fenced,
    /// The fence is the caller's, but the store is at another position than it left it: it was restored to another
    /// time. Stop the partition, loudly. Nothing happened.
    #[error("the store is at {0:?}, where this owner did not put it")]
    PositionMismatch(Position),
    /// A row of the delta is there already: the log or the store is not what it was. Stop the partition, loudly.
    /// Nothing happened.
    #[error("{0} has a row {1} already")]
    Conflict(ConversationId, u64),
    /// The partition was archived from another log: `LOG_REPLACED`. Stop it; nothing happened, the fence too.
    #[error("the partition was archived from another log, {0:?}")]
    LogReplaced(TopicId),
    /// A stored value of this call is not what this version writes: others can be read. An owner stops its partition, loudly;
    /// a reader has no answer. Nothing happened.
    #[error("a stored value can't be read: {0}")]
    Damaged(String),
    /// What is stored can't be trusted: a sync failed, or something that was written does not come back. No later
    /// archive succeeds; the process is to end, loudly.
    #[error("the store is broken: {0}")]
    Broken(String),
}

/// What is archived. All reads see only what a successful archive wrote, whole, and once seen it stays.
#[async_trait]
pub trait Store: Send + Sync {
    /// Makes `fence` the fence of the partition, whoever had it, in one transaction with reading where it stands.
    /// After Ok no archive or load under an earlier fence succeeds. A partition that was never archived takes
    /// `topic` as its log; one of another log fails with [`StoreError::LogReplaced`] and keeps its fence. Who may
    /// take over is the bus's say.
    async fn take_over(&self, partition: u32, fence: Fence, topic: TopicId) -> Result<TakenOver, StoreError>;

    /// Writes the delta and moves the position from `delta.from` to `delta.to` in one durable transaction, only if
    /// the fence is the caller's and the position is `delta.from`: all of it or nothing.
    ///
    /// At `delta.to` already, under the caller's fence, it is Ok and nothing is written: only the same delta can
    /// have gone there. So after [`StoreError::Unknown`] the same call says what became of it. The order of checks is
    /// fence, position, conflict.
    async fn archive(&self, partition: u32, fence: Fence, delta: &Delta) -> Result<(), StoreError>;

    /// Looks the rows up in one snapshot that includes the fence and the position; one answer for each need, in
    /// order, "not there" included. [`StoreError::Fenced`] when the partition is another owner's.
    async fn load(
        &self,
        partition: u32,
        fence: Fence,
        needs: &[Need],
    ) -> Result<Snapshot<Loaded>, StoreError>;

    /// A page of what an owner looks through, in one such snapshot: [`Loaded::Key`]s or [`Loaded::Head`]s that are
    /// there, in the order of their names; a page shorter than the limit is the last. Pages are snapshots each for
    /// itself: what is there during all of them is in exactly one.
    async fn scan(&self, partition: u32, fence: Fence, scan: &Scan) -> Result<Snapshot<Loaded>, StoreError>;

    /// The conversations in which the user is or was, in the order of their keys, above `after`, at most `limit`; an
    /// empty page is the end.
    async fn memberships(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<Membership>, StoreError>;

    /// The users who are in the conversation now, in order, above `after`, at most `limit`; an empty page is the end.
    /// Pages are snapshots each for itself: who is in during all of them is in exactly one.
    async fn members(
        &self,
        conversation: &ConversationId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>, StoreError>;

    /// What the conversation is, how many are in it, and how `of` stands in it, in one snapshot; none if it is not
    /// archived. Its cost does not grow with the members.
    async fn summary(
        &self,
        conversation: &ConversationId,
        of: Option<&UserId>,
    ) -> Result<Option<Summary>, StoreError>;

    /// Changes what users keep of conversations ([`Level::apply`]): marks move forward only. When this returns, every
    /// read sees it; it outlives the process, and that of the store's server, as what is archived does. Reads may see it a little
    /// before: without a change it returns once all that could be seen before is as durable.
    async fn save_marks(&self, changes: &[(UserId, ConversationId, Personal)]) -> Result<(), StoreError>;

    /// Puts what the user wishes now over what was wished before, if it wishes anything, and gives the result. As
    /// durable as marks are; of two calls at once neither loses what only it says.
    async fn wishes(&self, user: &UserId, now: UserSettings) -> Result<UserSettings, StoreError>;

    /// A part of the history, by exclusive cursor (flaw S17), in one snapshot.
    async fn page(&self, conversation: &ConversationId, query: PageQuery) -> Result<Page, StoreError>;
}
