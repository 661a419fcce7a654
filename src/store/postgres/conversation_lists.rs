//! Lists of conversations in Postgres. They share the connections of reads of clients, so that they delay no archive.

use std::collections::HashMap;

use async_trait::async_trait;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    settings::UserSettings,
};

use super::{
    PostgresStore,
    codec::{Reader, limit},
    error::{PostgresError, damaged},
    marks,
    queries::memberships,
    session::{Session, call},
};
use crate::store::{ConversationHead, ConversationLists, Membership, MembershipsRequest, StoreError};

mod groups;

const HEADS_OF: &str = "
SELECT n.place, h.conversation, h.last_seq, h.messages, h.pruned_to, h.deleted_seq, h.settings, h.members
FROM unnest($1::text[]) WITH ORDINALITY AS n(conversation, place)
CROSS JOIN LATERAL (SELECT * FROM heads h WHERE h.conversation = n.conversation LIMIT 1) h";

/// Heads of a range of keys. No character of a key is above `~`.
const HEADS: &str = "
SELECT conversation, last_seq, messages, pruned_to, deleted_seq, settings, members FROM heads
WHERE conversation >= $1 AND conversation < $1 || '~' AND conversation > $2 ORDER BY conversation LIMIT $3";

const ARCHIVED: &str = "SELECT partition, log_offset FROM partitions";

fn conversation_head(reader: &mut Reader<'_>) -> Result<ConversationHead, PostgresError> {
    Ok(ConversationHead {
        conversation: reader.conversation()?,
        head: reader.head()?,
        members: reader.big()?,
    })
}

async fn heads_of(
    session: &mut Session,
    conversations: &[ConversationId],
) -> Result<Vec<Option<ConversationHead>>, PostgresError> {
    let ids: Vec<&str> = conversations.iter().map(ConversationId::as_str).collect();
    let mut all: Vec<Option<ConversationHead>> = conversations.iter().map(|_| None).collect();
    for row in session.read(&[call(HEADS_OF, &[&ids])]).await?.iter().flatten() {
        let mut reader = Reader::new(row);
        let index = reader.index()?;
        *all.get_mut(index).ok_or_else(damaged)? = Some(conversation_head(&mut reader)?);
    }
    Ok(all)
}

async fn heads(
    session: &mut Session,
    prefix: &str,
    after: Option<&ConversationId>,
    most: usize,
) -> Result<Vec<ConversationHead>, PostgresError> {
    let (after, most) = (after.map_or("", |id| id.as_str()), limit(most));
    let found = session.read(&[call(HEADS, &[&prefix, &after, &most])]).await?;
    found.iter().flatten().map(|row| conversation_head(&mut Reader::new(row))).collect()
}

async fn archived_offsets(session: &mut Session) -> Result<HashMap<u32, u64>, PostgresError> {
    let found = session.read(&[call(ARCHIVED, &[])]).await?;
    let offset = |row| {
        let mut reader = Reader::new(row);
        let partition: i32 = reader.get()?;
        Ok((u32::try_from(partition).map_err(|_| damaged())?, reader.big()?))
    };
    found.iter().flatten().map(offset).collect()
}

#[async_trait]
impl ConversationLists for PostgresStore {
    async fn memberships_of(
        &self,
        requests: &[MembershipsRequest],
    ) -> Result<Vec<Vec<Membership>>, StoreError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let (core, reads, requests) = (&*self.core, self.reads, &requests.iter().collect::<Vec<_>>()[..]);
        core.run(move || async move { memberships(&mut core.client_reads(reads).await?, requests).await })
            .await
    }

    async fn settings_of(&self, users: &[UserId]) -> Result<Vec<UserSettings>, StoreError> {
        let (core, reads) = (&*self.core, self.reads);
        core.run(move || async move { marks::settings(&mut core.client_reads(reads).await?, users).await })
            .await
    }

    async fn heads_of(
        &self,
        conversations: &[ConversationId],
    ) -> Result<Vec<Option<ConversationHead>>, StoreError> {
        let (core, reads) = (&*self.core, self.reads);
        core.run(move || async move { heads_of(&mut core.client_reads(reads).await?, conversations).await })
            .await
    }

    async fn heads(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<ConversationHead>, StoreError> {
        let (core, reads) = (&*self.core, self.reads);
        core.run(
            move || async move { heads(&mut core.client_reads(reads).await?, prefix, after, limit).await },
        )
        .await
    }

    async fn archived_offsets(&self) -> Result<Option<HashMap<u32, u64>>, StoreError> {
        let (core, reads) = (&*self.core, self.reads);
        core.run(
            move || async move { archived_offsets(&mut core.client_reads(reads).await?).await.map(Some) },
        )
        .await
    }
}
