//! Reads what events are about from the store, at the time of their delivery: what was taken back is not sent late.

use std::collections::BTreeMap;

use tidegate_protocol::{
    id::ConversationId,
    machine::webhook::{WebhookEvent, WebhookEventKind},
};

use super::event::Found;
use crate::store::{Store, StoreError, StoredRow};

/// Approximate limit on the content of one request, in bytes. A single event may exceed it.
pub(super) const REQUEST_BYTES_MAX: usize = 512 * 1024;

/// Reads what the first of the events are about, up to [`REQUEST_BYTES_MAX`] of content, at least one. `None` if the store
/// lacks a conversation: it fell back to an older state.
pub(crate) async fn read(
    store: &dyn Store,
    events: &[WebhookEvent],
) -> Result<Option<Vec<Found>>, StoreError> {
    let mut seqs: BTreeMap<&ConversationId, Vec<u64>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.kind == WebhookEventKind::Entry) {
        seqs.entry(&event.conversation).or_default().push(event.seq);
    }
    let mut pages = BTreeMap::new();
    for (conversation, mut seqs) in seqs {
        seqs.sort_unstable();
        seqs.dedup();
        let page = store.rows_at(conversation, &seqs, REQUEST_BYTES_MAX).await?;
        let Some(head) = page.head else { return Ok(None) };
        // Rows behind the last one may have been left out.
        let end = page.rows.last().map_or(head.pruned_to, |row| row.row.seq);
        let rows: BTreeMap<u64, StoredRow> = page.rows.into_iter().map(|row| (row.row.seq, row)).collect();
        pages.insert(conversation, (head, end, rows));
    }
    let (mut found, mut bytes) = (Vec::with_capacity(events.len()), 0);
    for event in events {
        let entry = match event.kind {
            WebhookEventKind::Pruned => Found::Pruned,
            WebhookEventKind::Entry => {
                let Some((head, end, rows)) = pages.get_mut(&event.conversation) else { return Ok(None) };
                match rows.remove(&event.seq) {
                    Some(row) => Found::Row(Box::new(row)),
                    None if event.seq <= head.pruned_to => Found::Pruned,
                    // Left out, for its size.
                    None if event.seq > *end && event.seq <= head.last_seq && !found.is_empty() => break,
                    None => return Ok(None),
                }
            }
        };
        bytes += content_bytes(&entry);
        if bytes > REQUEST_BYTES_MAX && !found.is_empty() {
            break;
        }
        found.push(entry);
    }
    Ok(Some(found))
}

fn content_bytes(found: &Found) -> usize {
    match found {
        Found::Row(row) => match &row.row.body {
            tidegate_protocol::record::Body::Message(message) => message.content.len(),
            _ => 0,
        },
        Found::Pruned => 0,
    }
}
