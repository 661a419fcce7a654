//! Part of the port `Store` that lists conversations: of many users, by name, and of none in particular. No call of it delays an
//! owner.

use std::collections::HashMap;

use async_trait::async_trait;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::Head,
    settings::UserSettings,
};

use super::{Membership, Store, StoreError};
use crate::fault::Faulty;

/// Request for a page of one user's conversations, as one of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipsRequest {
    /// User who is or was a member.
    pub user: UserId,
    /// Last conversation of the previous page, exclusive.
    pub after: Option<ConversationId>,
    /// Most conversations.
    pub limit: usize,
}

/// Conversation without the state of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationHead {
    /// Conversation id.
    pub conversation: ConversationId,
    /// Head of the conversation.
    pub head: Head,
    /// Number of users currently in it.
    pub members: u64,
}

/// Lists of conversations, for administrators.
#[async_trait]
pub trait ConversationLists: Send + Sync {
    /// Returns a page for each request, in order; each is what [`Store::memberships`] returns.
    async fn memberships_of(
        &self,
        requests: &[MembershipsRequest],
    ) -> Result<Vec<Vec<Membership>>, StoreError>;

    /// Returns the stored settings of each user, in order.
    async fn settings_of(&self, users: &[UserId]) -> Result<Vec<UserSettings>, StoreError>;

    /// Returns the heads of these conversations, in order; `None` for one that is not archived.
    async fn heads_of(
        &self,
        conversations: &[ConversationId],
    ) -> Result<Vec<Option<ConversationHead>>, StoreError>;

    /// Returns up to `limit` conversations whose keys begin with `prefix`, sorted by key, above `after`.
    ///
    /// Each page is a snapshot of its own: a conversation that exists throughout the listing is on exactly one page.
    async fn heads(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<ConversationHead>, StoreError>;

    /// Returns the offset below which each partition is archived, by partition; `None` if the store never falls back, so
    /// that owners' own offsets say the same.
    async fn archived_offsets(&self) -> Result<Option<HashMap<u32, u64>>, StoreError> {
        Ok(None)
    }
}

#[async_trait]
impl ConversationLists for Faulty<dyn Store> {
    async fn memberships_of(
        &self,
        requests: &[MembershipsRequest],
    ) -> Result<Vec<Vec<Membership>>, StoreError> {
        self.call("memberships_of", self.inner.memberships_of(requests)).await
    }

    async fn settings_of(&self, users: &[UserId]) -> Result<Vec<UserSettings>, StoreError> {
        self.call("settings_of", self.inner.settings_of(users)).await
    }

    async fn heads_of(
        &self,
        conversations: &[ConversationId],
    ) -> Result<Vec<Option<ConversationHead>>, StoreError> {
        self.call("heads_of", self.inner.heads_of(conversations)).await
    }

    async fn heads(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<ConversationHead>, StoreError> {
        self.call("heads", self.inner.heads(prefix, after, limit)).await
    }

    async fn archived_offsets(&self) -> Result<Option<HashMap<u32, u64>>, StoreError> {
        self.call("archived_offsets", self.inner.archived_offsets()).await
    }
}
