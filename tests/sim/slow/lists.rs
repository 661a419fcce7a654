//! Lists of conversations of the slow store, at the speed of memory: no node of the simulation reads them.

use async_trait::async_trait;
use tidegate::store::{ConversationHead, ConversationLists, Membership, MembershipsRequest, StoreError};
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
