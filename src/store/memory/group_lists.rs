//! Lists of groups and members in memory.

use std::ops::Bound;

use async_trait::async_trait;
use tidegate_protocol::id::{ConversationId, ConversationKind, UserId};

use super::MemoryStore;
use crate::store::{
    ConversationHead, GroupLists, GroupMember, GroupOfUser, ListPage, MembersRequest, PageBuilder,
    StoreError, rows_visited_max, settings_bytes,
};

#[async_trait]
impl GroupLists for MemoryStore {
    async fn group_page(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<ConversationHead, ConversationId>, StoreError> {
        let state = self.lock();
        let is_visited =
            |id: &&ConversationId| id.as_str().starts_with(prefix) && after.is_none_or(|after| *id > after);
        let mut ids: Vec<&ConversationId> = state.conversations.keys().filter(is_visited).collect();
        ids.sort_unstable();
        let mut page = PageBuilder::new(limit, rows_visited_max(limit));
        for found in ids.into_iter().filter_map(|id| state.conversation_head(id)) {
            let (key, bytes) = (found.conversation.clone(), settings_bytes(&found.head));
            if !page.visit(key, Some(found).filter(|it| it.head.deleted_seq == 0), bytes) {
                break;
            }
        }
        Ok(page.finish())
    }

    async fn member_page(
        &self,
        request: &MembersRequest,
    ) -> Result<Option<ListPage<GroupMember, UserId>>, StoreError> {
        let state = self.lock();
        let is_there = state.conversation_head(&request.group).is_some_and(|it| it.head.deleted_seq == 0);
        let kept = state.conversations.get(&request.group).filter(|_| is_there);
        let Some(kept) = kept else { return Ok(None) };
        let range = (request.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut page = PageBuilder::new(request.limit, request.visited_max());
        for (user, member) in kept.members.range::<UserId, _>(range) {
            let row = request.lists(member).then(|| GroupMember { user: user.clone(), member: *member });
            if !page.visit(user.clone(), row, 0) {
                break;
            }
        }
        Ok(Some(page.finish()))
    }

    async fn groups_of(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<GroupOfUser, ConversationId>, StoreError> {
        let state = self.lock();
        let mut page = PageBuilder::new(limit, rows_visited_max(limit));
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let ids = state.of_user.get(user).into_iter().flat_map(|ids| ids.range::<ConversationId, _>(range));
        for id in ids.filter(|id| matches!(id.kind(), ConversationKind::Group(_))) {
            let member = state.conversations.get(id).and_then(|kept| kept.members.get(user).copied());
            let (Some(group), Some(member)) = (state.conversation_head(id), member) else { continue };
            let bytes = settings_bytes(&group.head);
            let is_listed = member.is_in() && group.head.deleted_seq == 0;
            if !page.visit(id.clone(), is_listed.then_some(GroupOfUser { group, member }), bytes) {
                break;
            }
        }
        Ok(page.finish())
    }
}
