//! Lists of groups and members in the embedded store.

use std::ops::Bound;

use async_trait::async_trait;
use fjall::Readable as _;
use tidegate_protocol::id::{ConversationId, UserId};

use super::{EmbeddedStore, SnapshotReader};
use crate::{
    embedded::{self, DatabaseError, Pair},
    store::{
        ConversationHead, GroupLists, GroupMember, GroupOfUser, ListPage, MembersRequest, PageBuilder,
        StoreError, rows_visited_max, settings_bytes,
    },
};

/// Beginning of the keys of groups, which no group has as its key.
const GROUPS: &str = "g:";

#[async_trait]
impl GroupLists for EmbeddedStore {
    async fn group_page(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<ConversationHead, ConversationId>, StoreError> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.0.read(move |it| Ok(SnapshotReader::new(it).group_page(&prefix, after.as_ref(), limit)?)).await
    }

    async fn member_page(
        &self,
        request: &MembersRequest,
    ) -> Result<Option<ListPage<GroupMember, UserId>>, StoreError> {
        let request = request.clone();
        self.0.read(move |it| Ok(SnapshotReader::new(it).member_page(&request)?)).await
    }

    async fn groups_of(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<GroupOfUser, ConversationId>, StoreError> {
        let (user, after) = (user.clone(), after.cloned());
        self.0.read(move |it| Ok(SnapshotReader::new(it).groups_of(&user, after.as_ref(), limit)?)).await
    }
}

impl SnapshotReader<'_> {
    fn group_page(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<ConversationHead, ConversationId>, DatabaseError> {
        let mut page = PageBuilder::new(limit, rows_visited_max(limit));
        self.each_head(prefix, after, |it| {
            let (key, bytes) = (it.conversation.clone(), settings_bytes(&it.head));
            page.visit(key, Some(it).filter(|it| it.head.deleted_seq == 0), bytes)
        })?;
        Ok(page.finish())
    }

    fn member_page(
        &self,
        request: &MembersRequest,
    ) -> Result<Option<ListPage<GroupMember, UserId>>, DatabaseError> {
        let id = request.group.as_str();
        if self.head(&request.group)?.is_none_or(|(head, _)| head.deleted_seq > 0) {
            return Ok(None);
        }
        let mut page = PageBuilder::new(request.limit, request.visited_max());
        let start = embedded::pair(Pair::Member, id, request.after.as_ref().map_or("", UserId::as_str));
        for entry in self.view.range(&self.database.state, (Bound::Excluded(start), Bound::Unbounded)) {
            let (key, value) = entry.into_inner()?;
            let Some(user) = embedded::second(&key, Pair::Member, id)? else { break };
            let (user, member) = (embedded::user_id(user)?, embedded::member(&value)?);
            let row = request.lists(&member).then(|| GroupMember { user: user.clone(), member });
            if !page.visit(user, row, 0) {
                break;
            }
        }
        Ok(Some(page.finish()))
    }

    fn groups_of(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<GroupOfUser, ConversationId>, DatabaseError> {
        let mut page = PageBuilder::new(limit, rows_visited_max(limit));
        let start = embedded::pair(Pair::OfUser, user.as_str(), after.map_or(GROUPS, ConversationId::as_str));
        for entry in self.view.range(&self.database.state, (Bound::Excluded(start), Bound::Unbounded)) {
            let key = entry.key()?;
            let second = embedded::second(&key, Pair::OfUser, user.as_str())?;
            let Some(id) = second.filter(|id| id.starts_with(GROUPS)) else { break };
            let id = embedded::conversation_id(id)?;
            let (Some(member), Some((head, members))) = (self.member(&id, user)?, self.head(&id)?) else {
                continue;
            };
            let (is_listed, bytes) = (member.is_in() && head.deleted_seq == 0, settings_bytes(&head));
            let group = ConversationHead { conversation: id.clone(), head, members };
            if !page.visit(id, is_listed.then_some(GroupOfUser { group, member }), bytes) {
                break;
            }
        }
        Ok(page.finish())
    }
}
