//! Port `Store`: the durable archive of the log, tied to a log position per partition.
//!
//! Only the owner of a partition writes, and only under its fence. Each archive writes its rows and moves the position
//! in one transaction, so no seq is written twice even if two nodes believe to own the partition (ADR 3, ADR 11; flaws
//! S6-S12, S20, S21).

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Edited, Head, Loaded, Member, Need, Row, RowHead, Stay},
    record::{Body, Hash16, Position, Rules},
    settings::UserSettings,
};

use crate::bus::TopicId;

mod blocks;
mod conversation_lists;
pub mod dump;
mod erasure;
mod faulty;
pub(crate) mod feed;
mod group_lists;
pub(crate) mod guard;
pub mod import;
mod memory;
mod message_times;
mod postgres;
mod revocations;
mod user_state;

pub use self::{
    blocks::{AddedBlock, BlockEntry, BlockLists, BlockOutcome, BlocksPage},
    conversation_lists::{ConversationHead, ConversationLists, MembershipsRequest},
    erasure::PersonalErasure,
    feed::{
        CONSUMER_BYTES_MAX, CURSOR_BYTES_MAX, ConsumerName, CursorOutcome, FEED_CONSUMERS_MAX, FEED_PAGE_MAX,
        FEED_TRIM_ROWS, FeedBounds, FeedCursor, FeedEntry, FeedKind, FeedLimits, FeedPage, FeedPosition,
        FeedRead, FeedStore, InvalidCursor,
    },
    group_lists::{
        GROUP_PAGE_BYTES_MAX, GroupLists, GroupMember, GroupOfUser, ListPage, MembersRequest,
        rows_visited_max,
    },
    guard::{
        GUARD_BATCH_MAX, GUARD_ENTRIES_MAX, GUARD_NAME_BYTES_MAX, GUARD_PAGE_MAX, GUARD_VALUE_BYTES_MAX,
        GuardBatch, GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPage, GuardPut, GuardRow, GuardStore,
        InvalidGuard, TOMBSTONE_MS,
    },
    message_times::{MessageTimes, message_rows_max},
    revocations::{RevocationPage, RevocationStore},
    user_state::{Hidden, Mark, Personal, UserState},
};
pub(crate) use group_lists::{PageBuilder, settings_bytes};
pub use memory::{MemoryStore, SavedStore};
pub use postgres::{Importing, PostgresOpenError, PostgresStore};

/// Identifier of one owner's term: 128 fresh random bits per take-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u128);

/// Starting point of a new owner, for `Ledger::resume` after `Position::matches`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// Log position up to which the partition is archived; `Position::START` for a new partition.
    pub position: Position,
    /// Rules in force at that position.
    pub rules: Rules,
}

/// Rows read in one snapshot, with the position of their partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot<T> {
    /// Archived position of the partition in the snapshot.
    pub position: Position,
    /// Rows found.
    pub rows: Vec<T>,
}

/// State of one user in a conversation: membership, earlier stays and personal marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Member row of the user, kept after the user leaves.
    pub member: Member,
    /// Earlier stays of the user, oldest first.
    pub stays: Vec<Stay>,
    /// Read and cleared positions, hidden entries, preference and bound.
    pub level: UserState,
}

/// One conversation of a user: its head and the user's state in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Conversation id.
    pub conversation: ConversationId,
    /// State of the user in it.
    pub member_view: MemberView,
    /// Head of the conversation.
    pub head: Head,
    /// Number of users currently in it.
    pub members: u64,
}

/// Head and size of a conversation, with the state of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Head of the conversation.
    pub head: Head,
    /// Number of users currently in it.
    pub members: u64,
    /// State of the requested user; `None` if the user was never a member.
    pub member_view: Option<MemberView>,
    /// Offset below which the conversation's partition was archived when this was read; `None` if it is unknown. A store
    /// that fell back to an older state shows an older offset.
    pub archived: Option<u64>,
}

/// Row of a conversation's history as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRow {
    /// Row itself; the content of a recalled message is empty.
    pub row: Row,
    /// Seq and time of the recall, if the message was recalled.
    pub recalled: Option<(u64, u64)>,
    /// Seq and time of the newest edit, if the message was edited; the row has its content.
    pub edited: Option<(u64, u64)>,
}

impl StoredRow {
    /// Returns a row as it is first stored.
    pub fn new(row: Row) -> Self {
        Self { row, recalled: None, edited: None }
    }

    /// Gives the message the content of an edit.
    pub(crate) fn edit(&mut self, edited: &Edited) {
        self.edited = Some(edited.at);
        if let Body::Message(message) = &mut self.row.body {
            message.content = edited.content.clone();
        }
    }

    /// Returns what the ledger needs of the row.
    pub(crate) fn head(&self) -> RowHead {
        match &self.row.body {
            Body::Message(message) => RowHead {
                sender: Some(message.sender.clone()),
                recalled: self.recalled,
                is_transient: message.mode.is_transient,
            },
            _ => RowHead { recalled: self.recalled, ..RowHead::default() },
        }
    }
}

/// Direction in which a page is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Towards newer rows, by rising seq.
    Forward,
    /// Towards older rows, by falling seq.
    Backward,
}

/// Request for one page of a conversation's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageQuery {
    /// Exclusive start: a seq that the caller has. 0 forward and `u64::MAX` backward read from either end.
    pub cursor: u64,
    /// Direction of the page.
    pub direction: Direction,
    /// Maximum number of rows.
    pub limit: usize,
    /// Approximate maximum of content bytes; the first row is returned whatever its size.
    pub max_bytes: usize,
}

/// One page of a conversation's history, with the head from the same snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Head of the conversation; `None` if it is not archived. Rows exist above `pruned_to` and up to `last_seq`.
    pub head: Option<Head>,
    /// Rows in the requested direction, without holes between `head.pruned_to` and `head.last_seq`.
    pub rows: Vec<StoredRow>,
}

/// Place in the history of one of several conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationSeq {
    /// Conversation id.
    pub conversation: ConversationId,
    /// Seq in the conversation.
    pub seq: u64,
}

/// Origin of a read, by which a store that has few connections shares them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadClass {
    /// Owner of a partition: reads of clients never delay it.
    Owner,
    /// Client.
    Client,
}

/// Members of a group, with its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMembers {
    /// Number of users currently in the group.
    pub members: u64,
    /// Last seq of the group.
    pub last_seq: u64,
    /// These users, sorted; empty if there are more than requested.
    pub users: Vec<UserId>,
}

/// Request of an owner to page through one kind of row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Dedup keys of records at or above the offset `from`, possibly with keys that the rules have expired.
    Keys {
        /// Lowest offset, inclusive.
        from: u64,
        /// Last key of the previous page, exclusive.
        after: Option<Hash16>,
        /// Maximum number of keys.
        limit: usize,
    },
    /// Heads of conversations. A store may return heads of other partitions too; the caller filters them.
    Heads {
        /// Last conversation of the previous page, exclusive.
        after: Option<ConversationId>,
        /// Maximum number of heads.
        limit: usize,
        /// Whether to return only groups with settings.
        with_settings: bool,
    },
}

/// Error of a store call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store is unavailable. Nothing happened; the same call may succeed later.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// No connection was free in time, or could be opened, so the call was not even sent: the call itself is not at
    /// fault.
    #[error("no connection to the store: {0}")]
    NoConnection(String),
    /// The outcome is unknown. Repeat the call: a take-over with the same fence and an archive of the same delta detect
    /// whether the first attempt succeeded.
    #[error("no reply from the store: {0}")]
    Unknown(String),
    /// Another owner has taken over: stop without replying to anyone. Nothing happened.
    #[error("another owner has taken the partition over")]
    Fenced,
    /// The fence is the caller's, but the position is not where the caller left it: the store was restored to another
    /// point in time. Stop the partition and report it. Nothing happened.
    #[error("store is at {0:?}, a position this owner did not write")]
    PositionMismatch(Position),
    /// A row of the delta already exists: the log or the store has changed. Stop the partition and report it.
    /// Nothing happened.
    #[error("{0} already has a row {1}")]
    Conflict(ConversationId, u64),
    /// The partition was archived from another log: `LOG_REPLACED`. Stop it. Nothing happened; the fence is unchanged.
    #[error("the partition was archived from another log, {0:?}")]
    LogReplaced(TopicId),
    /// A stored value of this call is not one that this version writes; other values stay readable. An owner stops its
    /// partition and reports it, a reader fails. Nothing happened.
    #[error("a stored value can't be read: {0}")]
    Damaged(String),
    /// The stored data can't be trusted: a sync failed, or written data does not read back. Every later archive fails;
    /// the process must end and report it.
    #[error("the store is broken: {0}")]
    Broken(String),
}

/// Archive of the log. Reads see only complete, successful archives, and what they have seen never disappears.
#[async_trait]
pub trait Store:
    BlockLists
    + ConversationLists
    + FeedStore
    + GroupLists
    + GuardStore
    + MessageTimes
    + PersonalErasure
    + RevocationStore
    + Send
    + Sync
{
    /// Returns whether the store may fall back to an older state while nodes use it, as one that promotes a standby.
    fn may_fall_back(&self) -> bool {
        true
    }

    /// Returns this store with a bound of its own on reads, so that those of back ends leave connections to clients and
    /// logins; `None` if reads do not wait for each other.
    fn for_back_ends(&self) -> Option<Arc<dyn Store>> {
        None
    }

    /// Returns the wall clock of the store, in ms since 1970; `None` if it has none of its own.
    async fn now_ms(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Replaces the partition's fence with `fence` and reads its position, in one transaction.
    ///
    /// After `Ok`, no archive or load under an earlier fence succeeds. A partition that was never archived takes
    /// `topic` as its log; one archived from another log fails with [`StoreError::LogReplaced`] and keeps its fence.
    /// The bus decides which node may take over.
    async fn take_over(&self, partition: u32, fence: Fence, topic: TopicId) -> Result<Takeover, StoreError>;

    /// Writes the delta and moves the position from `delta.from` to `delta.to`, in one durable transaction.
    ///
    /// Succeeds only if the fence is the caller's and the position is `delta.from`, and then as a whole. A position
    /// that is already `delta.to` under the caller's fence is `Ok` without a write: only the same delta can have
    /// moved it there. So after [`StoreError::Unknown`] the same call returns the outcome. The order of checks is
    /// fence, position, conflict.
    async fn archive(&self, partition: u32, fence: Fence, delta: &Delta) -> Result<(), StoreError>;

    /// Looks up rows in one snapshot that includes the fence and the position.
    ///
    /// Returns one result per need, in order, also for absent rows. Fails with [`StoreError::Fenced`] if another owner
    /// has the partition.
    async fn load(
        &self,
        partition: u32,
        fence: Fence,
        needs: &[Need],
    ) -> Result<Snapshot<Loaded>, StoreError>;

    /// Returns one page of existing [`Loaded::Key`]s or [`Loaded::Head`]s, sorted by name, in a snapshot like that of
    /// [`Self::load`].
    ///
    /// A page shorter than the limit is the last. Each page is a snapshot of its own: a row that exists throughout the
    /// scan is on exactly one page.
    async fn scan(&self, partition: u32, fence: Fence, scan: &Scan) -> Result<Snapshot<Loaded>, StoreError>;

    /// Returns up to `limit` conversations in which the user is or was a member, sorted by key, above `after`; an empty
    /// page is the end.
    async fn memberships(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<Membership>, StoreError>;

    /// Returns up to `limit` current members of the conversation, sorted by user, above `after`; an empty page is the
    /// end.
    ///
    /// Each page is a snapshot of its own: a user who is a member throughout the listing is on exactly one page.
    async fn members(
        &self,
        conversation: &ConversationId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>, StoreError>;

    /// Returns head, member count and the state of user `of`, in one snapshot; `None` if the conversation is not
    /// archived.
    ///
    /// The cost does not grow with the number of members.
    async fn summary(
        &self,
        conversation: &ConversationId,
        of: Option<&UserId>,
    ) -> Result<Option<Summary>, StoreError>;

    /// Returns the offset below which the partition is archived, in a snapshot that lacks the conversation; `None` if the
    /// snapshot has it.
    async fn archived_without(
        &self,
        partition: u32,
        conversation: &ConversationId,
    ) -> Result<Option<u64>, StoreError>;

    /// Applies changes to users' personal states ([`UserState::apply`]); marks only move forward, bounds both ways.
    ///
    /// On return the changes are visible to every read and as durable as an archive. Reads may see them slightly
    /// earlier, so a call that changes nothing returns only when everything already visible is durable.
    ///
    /// A dropped call takes effect before every change of the same state by a call that begins later, or not at all.
    async fn save_marks(&self, changes: &[(UserId, ConversationId, Personal)]) -> Result<(), StoreError>;

    /// Merges the settings in `now` over the user's stored settings and returns the result; empty `now` only reads.
    ///
    /// Settings are as durable as marks. Of two concurrent calls, neither loses a setting that only it contains. A dropped
    /// call takes effect before every change by a call that begins later, or not at all. A call that sets neither `push` nor
    /// `presence`, and changes nothing, only reads, and does not wait for a change that is being committed.
    async fn merge_settings(&self, user: &UserId, now: UserSettings) -> Result<UserSettings, StoreError>;

    /// Returns one page of history by exclusive cursor, in one snapshot (flaw S17).
    async fn page(&self, conversation: &ConversationId, query: PageQuery) -> Result<Page, StoreError>;

    /// Returns the rows at these seqs, which ascend, with the head from the same snapshot.
    ///
    /// The content of all rows but the first fits into `max_bytes`; the rows after it are left out. So a missing seq
    /// above `head.pruned_to` and below the last row's does not exist.
    async fn rows_at(
        &self,
        conversation: &ConversationId,
        seqs: &[u64],
        max_bytes: usize,
    ) -> Result<Page, StoreError>;

    /// Returns the rows before each of these places, newest first, in the order of `ends`.
    ///
    /// At most `limit` rows of a conversation are returned, and none from the first on that exceeds `max_bytes` of its
    /// content: even the newest row may be left out.
    async fn newest(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Vec<StoredRow>>, StoreError>;

    /// Returns the time of each of these rows, in order; `None` for a row that does not exist.
    async fn times(&self, rows: &[ConversationSeq]) -> Result<Vec<Option<u64>>, StoreError>;

    /// Returns what [`Self::summary`] returns, for each of these conversations, in order.
    async fn summaries(
        &self,
        conversations: &[ConversationId],
        of: &UserId,
    ) -> Result<Vec<Option<Summary>>, StoreError>;

    /// Returns the members of each of these groups, in order; `None` for a group that is not archived. Lists the users
    /// of a group with at most `listed_max` members, in the snapshot of its size.
    async fn group_members(
        &self,
        groups: &[ConversationId],
        listed_max: usize,
        class: ReadClass,
    ) -> Result<Vec<Option<GroupMembers>>, StoreError>;
}
