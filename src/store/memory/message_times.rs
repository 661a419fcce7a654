//! Times of messages in memory.

use async_trait::async_trait;
use tidegate_protocol::{machine::storm::PastMessage, record::Body};

use super::MemoryStore;
use crate::store::{ConversationSeq, MessageTimes, StoreError, message_rows_max};

#[async_trait]
impl MessageTimes for MemoryStore {
    async fn message_times(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
    ) -> Result<Vec<Vec<PastMessage>>, StoreError> {
        let state = self.lock();
        let before = |end: &ConversationSeq| {
            let kept = state.conversations.get(&end.conversation);
            let rows =
                kept.into_iter().flat_map(|it| it.rows.range(..end.seq).rev().map(|(_, row)| &row.row));
            let newest = rows.take(message_rows_max(limit));
            let messages = newest.filter(|row| matches!(row.body, Body::Message(_)));
            messages.take(limit).map(|row| PastMessage { seq: row.seq, received_ms: row.time }).collect()
        };
        Ok(ends.iter().map(before).collect())
    }
}
