//! Lists of conversations in the embedded store.

use std::ops::Bound;

use async_trait::async_trait;
use fjall::Readable as _;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    settings::UserSettings,
};

use super::{EmbeddedStore, SnapshotReader};
use crate::{
    embedded::{self, Database, DatabaseError},
    store::{ConversationHead, ConversationLists, Membership, MembershipsRequest, StoreError},
};

#[async_trait]
impl ConversationLists for EmbeddedStore {
    async fn memberships_of(
        &self,
        requests: &[MembershipsRequest],
    ) -> Result<Vec<Vec<Membership>>, StoreError> {
        let requests = requests.to_vec();
        let read = move |database: &Database| {
            let reader = SnapshotReader::new(database);
            let page = |it: &MembershipsRequest| reader.memberships(&it.user, it.after.as_ref(), it.limit);
            let all: Result<_, DatabaseError> = requests.iter().map(page).collect();
            Ok(all?)
        };
        self.0.read(read).await
    }

    async fn settings_of(&self, users: &[UserId]) -> Result<Vec<UserSettings>, StoreError> {
        let users = users.to_vec();
        let read = move |database: &Database| {
            let reader = SnapshotReader::new(database);
            let all: Result<_, DatabaseError> = users.iter().map(|user| reader.settings(user)).collect();
            Ok(all?)
        };
        self.0.read(read).await
    }

    async fn heads_of(
        &self,
        conversations: &[ConversationId],
    ) -> Result<Vec<Option<ConversationHead>>, StoreError> {
        let ids = conversations.to_vec();
        let read = move |database: &Database| {
            let reader = SnapshotReader::new(database);
            let head = |id: &ConversationId| {
                let found = reader.head(id)?;
                let conversation = id.clone();
                Ok(found.map(|(head, members)| ConversationHead { conversation, head, members }))
            };
            let all: Result<_, DatabaseError> = ids.iter().map(head).collect();
            Ok(all?)
        };
        self.0.read(read).await
    }

    async fn heads(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<ConversationHead>, StoreError> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        let read = move |database: &Database| {
            Ok(heads(&SnapshotReader::new(database), &prefix, after.as_ref(), limit)?)
        };
        self.0.read(read).await
    }
}

fn heads(
    reader: &SnapshotReader<'_>,
    prefix: &str,
    after: Option<&ConversationId>,
    limit: usize,
) -> Result<Vec<ConversationHead>, DatabaseError> {
    let mut found = Vec::new();
    if limit > 0 {
        reader.each_head(prefix, after, |head| {
            found.push(head);
            found.len() < limit
        })?;
    }
    Ok(found)
}

impl SnapshotReader<'_> {
    /// Visits the conversations whose keys begin with `prefix`, sorted by key, above `after`, for as long as `visit` returns
    /// true.
    pub(super) fn each_head(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        mut visit: impl FnMut(ConversationHead) -> bool,
    ) -> Result<(), DatabaseError> {
        let begin = [b"h", prefix.as_bytes()].concat();
        let start = match after.map(embedded::head_key).filter(|after| *after >= begin) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(begin.clone()),
        };
        for entry in self.view.range(&self.database.state, (start, Bound::Unbounded)) {
            let (key, value) = entry.into_inner()?;
            if !key.starts_with(&begin) {
                break;
            }
            let id =
                key.get(1..).and_then(|id| std::str::from_utf8(id).ok()).ok_or_else(embedded::damaged)?;
            let (head, members) = embedded::head(&value)?;
            let conversation = embedded::conversation_id(id)?;
            if !visit(ConversationHead { conversation, head, members }) {
                break;
            }
        }
        Ok(())
    }
}
