//! Store with slow archives: a statement that takes too long is cancelled, as by a server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tidegate::{
    bus::TopicId,
    revocation::Revocation,
    store::{
        BlockEntry, BlockLists, BlockOutcome, BlocksPage, ConsumerName, ConversationSeq, CursorOutcome,
        FeedBounds, FeedCursor, FeedLimits, FeedPosition, FeedRead, FeedStore, Fence, GroupMembers,
        GuardBatch, GuardKey, GuardOutcome, GuardPage, GuardRow, GuardStore, Membership, MemoryStore,
        MessageTimes, Page, PageQuery, Personal, ReadClass, RevocationPage, RevocationStore, Scan, Snapshot,
        Store, StoreError, StoredRow, Summary, Takeover,
    },
};
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::{
        ledger::{Delta, Loaded, Member, Need},
        storm::PastMessage,
    },
    settings::UserSettings,
};

/// Limit of a statement (`postgres.statement_ms`).
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of the wait for a free connection (`postgres.connect_ms`).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Store in memory with adjustable speed.
pub(crate) struct SlowStore {
    inner: Arc<MemoryStore>,
    /// Time per member or row.
    row_us: AtomicU64,
    /// Fixed time per archive.
    archive_ms: AtomicU64,
    /// Time per read of an owner.
    read_ms: AtomicU64,
    broken_off: AtomicU64,
    /// Number of archives that get no connection.
    full: AtomicU64,
}

impl SlowStore {
    pub(crate) fn new(inner: Arc<MemoryStore>) -> Self {
        let [row_us, archive_ms, read_ms, broken_off, full] = [(); 5].map(|()| AtomicU64::new(0));
        Self { inner, row_us, archive_ms, read_ms, broken_off, full }
    }

    pub(crate) fn set_read_ms(&self, ms: u64) {
        self.read_ms.store(ms, Ordering::SeqCst);
    }

    /// Waits as long as a read takes.
    async fn round_trip(&self) {
        let takes = self.read_ms.load(Ordering::SeqCst);
        if takes > 0 {
            super::pass(takes).await;
        }
    }

    pub(crate) fn set_archive_ms(&self, ms: u64) {
        self.archive_ms.store(ms, Ordering::SeqCst);
    }

    /// Makes the next `archives` archives wait for a connection until they time out.
    pub(crate) fn fill(&self, archives: u64) {
        self.full.store(archives, Ordering::SeqCst);
    }

    /// Returns how many of those are left.
    pub(crate) fn full(&self) -> u64 {
        self.full.load(Ordering::SeqCst)
    }

    pub(crate) fn set_row_us(&self, us: u64) {
        self.row_us.store(us, Ordering::SeqCst);
    }

    /// Returns the number of cancelled archives.
    pub(crate) fn broken_off(&self) -> u64 {
        self.broken_off.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl RevocationStore for SlowStore {
    async fn revoke(&self, revocation: &Revocation, now_ms: u64) -> Result<bool, StoreError> {
        self.inner.revoke(revocation, now_ms).await
    }

    async fn revocations(&self, above: u64, limit: usize) -> Result<RevocationPage, StoreError> {
        self.inner.revocations(above, limit).await
    }
}

#[async_trait]
impl FeedStore for SlowStore {
    async fn read_feed(
        &self,
        partition: u32,
        after: u64,
        limits: FeedLimits,
    ) -> Result<FeedRead, StoreError> {
        self.inner.read_feed(partition, after, limits).await
    }

    async fn feed_positions(&self) -> Result<Vec<FeedPosition>, StoreError> {
        self.inner.feed_positions().await
    }

    async fn trim_feed(&self, partition: u32, fence: Fence, bounds: FeedBounds) -> Result<u64, StoreError> {
        self.inner.trim_feed(partition, fence, bounds).await
    }

    async fn save_cursor(&self, fence: Fence, cursor: &FeedCursor) -> Result<CursorOutcome, StoreError> {
        self.inner.save_cursor(fence, cursor).await
    }

    async fn save_cursor_durably(
        &self,
        fence: Fence,
        cursor: &FeedCursor,
    ) -> Result<CursorOutcome, StoreError> {
        self.inner.save_cursor_durably(fence, cursor).await
    }

    async fn cursors(&self, consumer: &ConsumerName) -> Result<Vec<FeedCursor>, StoreError> {
        self.inner.cursors(consumer).await
    }

    async fn consumers(&self) -> Result<Vec<ConsumerName>, StoreError> {
        self.inner.consumers().await
    }

    async fn forget_consumer(&self, consumer: &ConsumerName) -> Result<(), StoreError> {
        self.inner.forget_consumer(consumer).await
    }
}

#[async_trait]
impl GuardStore for SlowStore {
    async fn put_guard(&self, batch: &GuardBatch) -> Result<GuardOutcome, StoreError> {
        self.inner.put_guard(batch).await
    }

    async fn remove_guard(&self, key: &GuardKey, expected: Option<u64>) -> Result<GuardOutcome, StoreError> {
        self.inner.remove_guard(key, expected).await
    }

    async fn guard_since(&self, after: u64, limit: usize) -> Result<GuardPage, StoreError> {
        self.inner.guard_since(after, limit).await
    }

    async fn guard_get(&self, key: &GuardKey) -> Result<Option<GuardRow>, StoreError> {
        self.inner.guard_get(key).await
    }
}

#[async_trait]
impl Store for SlowStore {
    async fn archive(&self, partition: u32, fence: Fence, delta: &Delta) -> Result<(), StoreError> {
        let is_full = |left: u64| left.checked_sub(1);
        if self.full.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_full).is_ok() {
            super::pass(CONNECT_TIMEOUT.as_millis() as u64).await;
            return Err(StoreError::NoConnection("all are in use".to_owned()));
        }
        let rows = (delta.rows.len() + delta.members.len()) as u64;
        let takes = Duration::from_micros(rows * self.row_us.load(Ordering::SeqCst))
            + Duration::from_millis(self.archive_ms.load(Ordering::SeqCst));
        if !takes.is_zero() {
            super::pass(takes.min(STATEMENT_TIMEOUT).as_millis() as u64).await;
        }
        if takes > STATEMENT_TIMEOUT {
            self.broken_off.fetch_add(1, Ordering::SeqCst);
            return Err(StoreError::Unavailable("canceling statement due to statement timeout".to_owned()));
        }
        self.inner.archive(partition, fence, delta).await
    }

    async fn take_over(&self, partition: u32, fence: Fence, topic: TopicId) -> Result<Takeover, StoreError> {
        self.inner.take_over(partition, fence, topic).await
    }

    async fn load(
        &self,
        partition: u32,
        fence: Fence,
        needs: &[Need],
    ) -> Result<Snapshot<Loaded>, StoreError> {
        self.round_trip().await;
        self.inner.load(partition, fence, needs).await
    }

    async fn scan(&self, partition: u32, fence: Fence, scan: &Scan) -> Result<Snapshot<Loaded>, StoreError> {
        self.inner.scan(partition, fence, scan).await
    }

    async fn memberships(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<Membership>, StoreError> {
        self.inner.memberships(user, after, limit).await
    }

    async fn members(
        &self,
        conversation: &ConversationId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>, StoreError> {
        self.round_trip().await;
        self.inner.members(conversation, after, limit).await
    }

    async fn summary(
        &self,
        conversation: &ConversationId,
        of: Option<&UserId>,
    ) -> Result<Option<Summary>, StoreError> {
        self.round_trip().await;
        self.inner.summary(conversation, of).await
    }

    async fn archived_without(
        &self,
        partition: u32,
        conversation: &ConversationId,
    ) -> Result<Option<u64>, StoreError> {
        self.round_trip().await;
        self.inner.archived_without(partition, conversation).await
    }

    async fn save_marks(&self, changes: &[(UserId, ConversationId, Personal)]) -> Result<(), StoreError> {
        self.inner.save_marks(changes).await
    }

    async fn merge_settings(&self, user: &UserId, now: UserSettings) -> Result<UserSettings, StoreError> {
        self.inner.merge_settings(user, now).await
    }

    async fn page(&self, conversation: &ConversationId, query: PageQuery) -> Result<Page, StoreError> {
        self.inner.page(conversation, query).await
    }

    async fn rows_at(
        &self,
        conversation: &ConversationId,
        seqs: &[u64],
        max_bytes: usize,
    ) -> Result<Page, StoreError> {
        self.inner.rows_at(conversation, seqs, max_bytes).await
    }

    async fn newest(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Vec<StoredRow>>, StoreError> {
        self.inner.newest(ends, limit, max_bytes).await
    }

    async fn times(&self, rows: &[ConversationSeq]) -> Result<Vec<Option<u64>>, StoreError> {
        self.inner.times(rows).await
    }

    async fn summaries(
        &self,
        conversations: &[ConversationId],
        of: &UserId,
    ) -> Result<Vec<Option<Summary>>, StoreError> {
        self.inner.summaries(conversations, of).await
    }

    async fn group_members(
        &self,
        groups: &[ConversationId],
        listed_max: usize,
        class: ReadClass,
    ) -> Result<Vec<Option<GroupMembers>>, StoreError> {
        self.round_trip().await;
        self.inner.group_members(groups, listed_max, class).await
    }
}

#[path = "slow/lists.rs"]
mod lists;

#[async_trait]
impl MessageTimes for SlowStore {
    async fn message_times(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
    ) -> Result<Vec<Vec<PastMessage>>, StoreError> {
        self.inner.message_times(ends, limit).await
    }
}

#[async_trait]
impl BlockLists for SlowStore {
    async fn block(
        &self,
        user: &UserId,
        other: &UserId,
        time: u64,
        list_max: u64,
    ) -> Result<BlockOutcome, StoreError> {
        self.inner.block(user, other, time, list_max).await
    }

    async fn unblock(&self, user: &UserId, other: &UserId) -> Result<BlockOutcome, StoreError> {
        self.inner.unblock(user, other).await
    }

    async fn blocks(
        &self,
        user: &UserId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<BlockEntry>, StoreError> {
        self.inner.blocks(user, after, limit).await
    }

    async fn is_blocked(&self, user: &UserId, other: &UserId) -> Result<bool, StoreError> {
        self.inner.is_blocked(user, other).await
    }

    async fn blocks_since(&self, after: u64, limit: usize) -> Result<BlocksPage, StoreError> {
        self.inner.blocks_since(after, limit).await
    }
}
