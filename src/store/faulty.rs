//! `Store` wrapper that injects planned faults, for tests.

use async_trait::async_trait;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Loaded, Member, Need},
    settings::UserSettings,
};

use super::{
    BlockEntry, BlockLists, BlockOutcome, BlocksPage, ConversationSeq, Fence, GroupMembers, Membership, Page,
    PageQuery, Personal, ReadClass, Scan, Snapshot, Store, StoreError, StoredRow, Summary, Takeover,
};
use crate::{
    bus::TopicId,
    fault::{Breaks, Faulty},
};

impl Breaks for StoreError {
    fn unavailable(why: String) -> Self {
        Self::Unavailable(why)
    }
    fn unknown(why: String) -> Self {
        Self::Unknown(why)
    }
}

#[async_trait]
impl Store for Faulty<dyn Store> {
    fn may_fall_back(&self) -> bool {
        self.inner.may_fall_back()
    }

    async fn now_ms(&self) -> Result<Option<u64>, StoreError> {
        self.call("now_ms", self.inner.now_ms()).await
    }

    async fn take_over(&self, partition: u32, fence: Fence, topic: TopicId) -> Result<Takeover, StoreError> {
        self.call("take_over", self.inner.take_over(partition, fence, topic)).await
    }

    async fn archive(&self, partition: u32, fence: Fence, delta: &Delta) -> Result<(), StoreError> {
        self.call("archive", self.inner.archive(partition, fence, delta)).await
    }

    async fn load(
        &self,
        partition: u32,
        fence: Fence,
        needs: &[Need],
    ) -> Result<Snapshot<Loaded>, StoreError> {
        self.call("load", self.inner.load(partition, fence, needs)).await
    }

    async fn scan(&self, partition: u32, fence: Fence, scan: &Scan) -> Result<Snapshot<Loaded>, StoreError> {
        self.call("scan", self.inner.scan(partition, fence, scan)).await
    }

    async fn memberships(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<Membership>, StoreError> {
        self.call("memberships", self.inner.memberships(user, after, limit)).await
    }

    async fn members(
        &self,
        conversation: &ConversationId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>, StoreError> {
        self.call("members", self.inner.members(conversation, after, limit)).await
    }

    async fn summary(
        &self,
        conversation: &ConversationId,
        of: Option<&UserId>,
    ) -> Result<Option<Summary>, StoreError> {
        self.call("summary", self.inner.summary(conversation, of)).await
    }

    async fn archived_without(
        &self,
        partition: u32,
        conversation: &ConversationId,
    ) -> Result<Option<u64>, StoreError> {
        self.call("archived_without", self.inner.archived_without(partition, conversation)).await
    }

    async fn save_marks(&self, changes: &[(UserId, ConversationId, Personal)]) -> Result<(), StoreError> {
        self.call("save_marks", self.inner.save_marks(changes)).await
    }

    async fn merge_settings(&self, user: &UserId, now: UserSettings) -> Result<UserSettings, StoreError> {
        self.call("merge_settings", self.inner.merge_settings(user, now)).await
    }

    async fn page(&self, conversation: &ConversationId, query: PageQuery) -> Result<Page, StoreError> {
        self.call("page", self.inner.page(conversation, query)).await
    }

    async fn rows_at(
        &self,
        conversation: &ConversationId,
        seqs: &[u64],
        max_bytes: usize,
    ) -> Result<Page, StoreError> {
        self.call("rows_at", self.inner.rows_at(conversation, seqs, max_bytes)).await
    }

    async fn newest(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Vec<StoredRow>>, StoreError> {
        self.call("newest", self.inner.newest(ends, limit, max_bytes)).await
    }

    async fn times(&self, rows: &[ConversationSeq]) -> Result<Vec<Option<u64>>, StoreError> {
        self.call("times", self.inner.times(rows)).await
    }

    async fn summaries(
        &self,
        conversations: &[ConversationId],
        of: &UserId,
    ) -> Result<Vec<Option<Summary>>, StoreError> {
        self.call("summaries", self.inner.summaries(conversations, of)).await
    }

    async fn group_members(
        &self,
        groups: &[ConversationId],
        listed_max: usize,
        class: ReadClass,
    ) -> Result<Vec<Option<GroupMembers>>, StoreError> {
        self.call("group_members", self.inner.group_members(groups, listed_max, class)).await
    }
}

#[async_trait]
impl BlockLists for Faulty<dyn Store> {
    async fn block(
        &self,
        user: &UserId,
        other: &UserId,
        time: u64,
        list_max: u64,
    ) -> Result<BlockOutcome, StoreError> {
        self.call("block", self.inner.block(user, other, time, list_max)).await
    }

    async fn unblock(&self, user: &UserId, other: &UserId) -> Result<BlockOutcome, StoreError> {
        self.call("unblock", self.inner.unblock(user, other)).await
    }

    async fn blocks(
        &self,
        user: &UserId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<BlockEntry>, StoreError> {
        self.call("blocks", self.inner.blocks(user, after, limit)).await
    }

    async fn is_blocked(&self, user: &UserId, other: &UserId) -> Result<bool, StoreError> {
        self.call("is_blocked", self.inner.is_blocked(user, other)).await
    }

    async fn blocks_since(&self, after: u64, limit: usize) -> Result<BlocksPage, StoreError> {
        self.call("blocks_since", self.inner.blocks_since(after, limit)).await
    }
}
