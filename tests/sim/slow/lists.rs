//! Lists and erasures of the slow store, at the speed of memory: no node of the simulation calls them.

use async_trait::async_trait;
use tidegate::store::{
    ConversationHead, ConversationLists, GroupLists, GroupMember, GroupOfUser, ListPage, MembersRequest,
    Membership, MembershipsRequest, PersonalErasure, StoreError,
};
use tidegate_protocol::{
    id::{ConversationId, UserId},
    settings::UserSettings,
};

use super::SlowStore;

#[async_trait]
impl ConversationLists for SlowStore {
    async fn memberships_of(
        &self,
        requests: &[MembershipsRequest],
    ) -> Result<Vec<Vec<Membership>>, StoreError> {
        self.inner.memberships_of(requests).await
    }

    async fn settings_of(&self, users: &[UserId]) -> Result<Vec<UserSettings>, StoreError> {
        self.inner.settings_of(users).await
    }

    async fn heads_of(
        &self,
        conversations: &[ConversationId],
    ) -> Result<Vec<Option<ConversationHead>>, StoreError> {
        self.inner.heads_of(conversations).await
    }

    async fn heads(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<ConversationHead>, StoreError> {
        self.inner.heads(prefix, after, limit).await
    }
}

#[async_trait]
impl GroupLists for SlowStore {
    async fn group_page(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<ConversationHead, ConversationId>, StoreError> {
        self.inner.group_page(prefix, after, limit).await
    }

    async fn member_page(
        &self,
        request: &MembersRequest,
    ) -> Result<Option<ListPage<GroupMember, UserId>>, StoreError> {
        self.inner.member_page(request).await
    }

    async fn groups_of(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<GroupOfUser, ConversationId>, StoreError> {
        self.inner.groups_of(user, after, limit).await
    }
}

#[async_trait]
impl PersonalErasure for SlowStore {
    async fn forget_marks(&self, user: &UserId, conversations: &[ConversationId]) -> Result<(), StoreError> {
        self.inner.forget_marks(user, conversations).await
    }

    async fn forget_settings(&self, user: &UserId) -> Result<(), StoreError> {
        self.inner.forget_settings(user).await
    }
}
