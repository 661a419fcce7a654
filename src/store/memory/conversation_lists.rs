//! Lists of conversations in memory.

use std::{collections::HashMap, ops::Bound};

use async_trait::async_trait;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    settings::UserSettings,
};

use super::{MemoryStore, State};
use crate::store::{ConversationHead, ConversationLists, Membership, MembershipsRequest, StoreError};

impl State {
    /// Returns up to `limit` conversations in which the user is or was a member, sorted by key, above `after`.
    pub(super) fn memberships(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Vec<Membership> {
        let Some(conversations) = self.of_user.get(user) else { return Vec::new() };
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let membership = |id: &ConversationId| {
            let kept = self.conversations.get(id)?;
            Some(Membership {
                conversation: id.clone(),
                member_view: kept.view(user)?,
                head: kept.head.clone()?,
                members: kept.members_in,
            })
        };
        let page = conversations.range::<ConversationId, _>(range).filter_map(membership);
        page.take(limit).collect()
    }

    pub(super) fn conversation_head(&self, id: &ConversationId) -> Option<ConversationHead> {
        let kept = self.conversations.get(id)?;
        let head = kept.head.clone()?;
        Some(ConversationHead { conversation: id.clone(), head, members: kept.members_in })
    }
}

#[async_trait]
impl ConversationLists for MemoryStore {
    async fn memberships_of(
        &self,
        requests: &[MembershipsRequest],
    ) -> Result<Vec<Vec<Membership>>, StoreError> {
        let state = self.lock();
        let page = |it: &MembershipsRequest| state.memberships(&it.user, it.after.as_ref(), it.limit);
        Ok(requests.iter().map(page).collect())
    }

    async fn settings_of(&self, users: &[UserId]) -> Result<Vec<UserSettings>, StoreError> {
        let state = self.lock();
        Ok(users.iter().map(|user| state.settings.get(user).copied().unwrap_or_default()).collect())
    }

    async fn heads_of(
        &self,
        conversations: &[ConversationId],
    ) -> Result<Vec<Option<ConversationHead>>, StoreError> {
        let state = self.lock();
        Ok(conversations.iter().map(|id| state.conversation_head(id)).collect())
    }

    async fn heads(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<ConversationHead>, StoreError> {
        let state = self.lock();
        let is_listed =
            |id: &&ConversationId| id.as_str().starts_with(prefix) && after.is_none_or(|after| *id > after);
        let mut ids: Vec<&ConversationId> = state.conversations.keys().filter(is_listed).collect();
        ids.sort_unstable();
        Ok(ids.into_iter().filter_map(|id| state.conversation_head(id)).take(limit).collect())
    }

    async fn archived_offsets(&self) -> Result<Option<HashMap<u32, u64>>, StoreError> {
        let state = self.lock();
        let offsets = state.partitions.iter().map(|(partition, it)| (*partition, it.position.offset));
        Ok(Some(offsets.collect()))
    }
}
