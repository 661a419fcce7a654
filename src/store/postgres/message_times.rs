//! Times of messages in Postgres.

use async_trait::async_trait;
use tidegate_protocol::machine::storm::PastMessage;

use super::{
    PostgresStore,
    codec::{Reader, bound, limit},
    error::{PostgresError, damaged},
    session::{Session, call},
};
use crate::store::{ConversationSeq, MessageTimes, StoreError, message_rows_max};

/// Records of the newest messages before each place, without their content. The inner limit bounds what is read of a group
/// whose newest rows are membership changes.
const MESSAGE_RECORDS: &str = "
SELECT n.place, m.seq, m.record FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS n(conversation, below, place)
CROSS JOIN LATERAL (
    SELECT seq, record FROM (
        SELECT seq, record, sender FROM messages
        WHERE conversation = n.conversation AND seq < n.below ORDER BY seq DESC LIMIT $4
    ) newest
    WHERE sender IS NOT NULL ORDER BY seq DESC LIMIT $3
) m ORDER BY n.place, m.seq DESC";

async fn message_times(
    session: &mut Session,
    ends: &[ConversationSeq],
    rows_max: usize,
) -> Result<Vec<Vec<PastMessage>>, PostgresError> {
    let ids: Vec<&str> = ends.iter().map(|it| it.conversation.as_str()).collect();
    let seqs: Vec<i64> = ends.iter().map(|it| bound(it.seq)).collect();
    let (most, read) = (limit(rows_max), limit(message_rows_max(rows_max)));
    let mut messages: Vec<Vec<PastMessage>> = ends.iter().map(|_| Vec::new()).collect();
    for row in session.read(&[call(MESSAGE_RECORDS, &[&ids, &seqs, &most, &read])]).await?.iter().flatten() {
        let mut reader = Reader::new(row);
        let index = reader.index()?;
        let (seq, received_ms) = (reader.big()?, reader.record_time()?);
        messages.get_mut(index).ok_or_else(damaged)?.push(PastMessage { seq, received_ms });
    }
    Ok(messages)
}

#[async_trait]
impl MessageTimes for PostgresStore {
    /// Shares the connections of reads of clients, so that it delays no archive.
    async fn message_times(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
    ) -> Result<Vec<Vec<PastMessage>>, StoreError> {
        let (core, reads) = (&*self.core, self.reads);
        core.run(
            move || async move { message_times(&mut core.client_reads(reads).await?, ends, limit).await },
        )
        .await
    }
}
