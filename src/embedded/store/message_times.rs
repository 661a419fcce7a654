//! Times of messages in the embedded store.

use async_trait::async_trait;
use fjall::Readable as _;
use tidegate_protocol::{machine::storm::PastMessage, record::Body};

use super::{EmbeddedStore, SnapshotReader};
use crate::{
    embedded::{self, Database, DatabaseError},
    store::{ConversationSeq, MessageTimes, StoreError, message_rows_max},
};

#[async_trait]
impl MessageTimes for EmbeddedStore {
    async fn message_times(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
    ) -> Result<Vec<Vec<PastMessage>>, StoreError> {
        let ends = ends.to_vec();
        let read = move |database: &Database| {
            let reader = SnapshotReader::new(database);
            let all: Result<_, DatabaseError> = ends.iter().map(|end| before(&reader, end, limit)).collect();
            Ok(all?)
        };
        self.0.read(read).await
    }
}

fn before(
    reader: &SnapshotReader<'_>,
    end: &ConversationSeq,
    limit: usize,
) -> Result<Vec<PastMessage>, DatabaseError> {
    let id = &end.conversation;
    // Start above the pruned rows: a scan visits the tombstones of removed rows one by one.
    let first = reader.head(id)?.map_or(0, |(head, _)| head.pruned_to) + 1;
    let key = |seq: u64| embedded::row_key(id, seq.max(first));
    let mut messages = Vec::new();
    for entry in
        reader.view.range(&reader.database.rows, key(0)..key(end.seq)).rev().take(message_rows_max(limit))
    {
        if messages.len() == limit {
            break;
        }
        let (key, value) = entry.into_inner()?;
        let row = embedded::row(embedded::row_seq(&key)?, &value)?.row;
        if matches!(row.body, Body::Message(_)) {
            messages.push(PastMessage { seq: row.seq, received_ms: row.time });
        }
    }
    Ok(messages)
}
