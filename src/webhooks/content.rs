//! Reads what events are about from the store, at the time of their delivery: what was taken back is not sent late.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_protocol::{
    id::ConversationId,
    machine::{
        ledger::Head,
        webhook::{WebhookEvent, WebhookEventKind},
    },
    record::Body,
};

use crate::store::{Store, StoreError, StoredRow};

/// Approximate limit on the content of one request, and on its JSON, in bytes. A single event may exceed it.
pub const REQUEST_BYTES_MAX: usize = 512 * 1024;

/// What the store has about an event.
pub(crate) enum Found {
    /// Its row; with the row of the message that a recall or an edit names, unless that was removed from the history.
    Row(Box<StoredRow>, Option<Box<StoredRow>>),
    /// None: it was removed from the history.
    Pruned,
}

/// Rows of one conversation, of one snapshot.
struct Loaded {
    head: Head,
    /// Last seq that was read; rows after it may have been left out.
    end: u64,
    rows: BTreeMap<u64, StoredRow>,
}

impl Loaded {
    /// Reads rows, whose content except that of the first fits into `bytes`; `None` if the store lacks the conversation.
    async fn read(
        store: &dyn Store,
        conversation: &ConversationId,
        seqs: &BTreeSet<u64>,
        bytes: usize,
    ) -> Result<Option<Self>, StoreError> {
        let seqs: Vec<u64> = seqs.iter().copied().collect();
        let page = store.rows_at(conversation, &seqs, bytes).await?;
        let Some(head) = page.head else { return Ok(None) };
        let end = page.rows.last().map_or(head.pruned_to, |row| row.row.seq);
        let rows = page.rows.into_iter().map(|row| (row.row.seq, row)).collect();
        Ok(Some(Self { head, end, rows }))
    }

    fn bytes(&self) -> usize {
        self.rows.values().map(content_bytes).sum()
    }

    /// Returns the messages that recalls and edits of these rows name, and that are not among them.
    fn named(&self) -> BTreeSet<u64> {
        self.rows.values().filter_map(named).filter(|seq| !self.rows.contains_key(seq)).collect()
    }
}

/// Reads what the first of the events are about, up to [`REQUEST_BYTES_MAX`] of content, at least one. `None` if the store
/// lacks a conversation or an entry: it fell back to an older state.
pub(crate) async fn read(
    store: &dyn Store,
    events: &[WebhookEvent],
) -> Result<Option<Vec<Found>>, StoreError> {
    let mut loaded = BTreeMap::new();
    let (mut found, mut left) = (Vec::with_capacity(events.len()), REQUEST_BYTES_MAX);
    for event in events {
        if event.kind == WebhookEventKind::Pruned {
            found.push(Found::Pruned);
            continue;
        }
        let key = &event.conversation;
        if !loaded.contains_key(key) {
            if left == 0 && !found.is_empty() {
                break;
            }
            let entries = events.iter().filter(|it| it.kind != WebhookEventKind::Pruned);
            let seqs = entries.filter(|it| it.conversation == *key).map(|it| it.seq).collect();
            let Some(rows) = Loaded::read(store, key, &seqs, left).await? else { return Ok(None) };
            left = left.saturating_sub(rows.bytes());
            let messages = match rows.named() {
                none if none.is_empty() => None,
                seqs => Loaded::read(store, key, &seqs, left).await?,
            };
            left = left.saturating_sub(messages.as_ref().map_or(0, Loaded::bytes));
            loaded.insert(key, (rows, messages));
        }
        let Some((rows, messages)) = loaded.get(key) else { return Ok(None) };
        let Some(row) = rows.rows.get(&event.seq) else {
            match event.seq {
                seq if seq <= rows.head.pruned_to => found.push(Found::Pruned),
                // Left out, for its size.
                seq if seq > rows.end && seq <= rows.head.last_seq && !found.is_empty() => break,
                _ => return Ok(None),
            }
            continue;
        };
        let message = match named(row).map(|seq| (seq, rows.rows.get(&seq))) {
            None => None,
            Some((_, Some(message))) => Some(message.clone()),
            Some((seq, None)) => match named_message(messages.as_ref(), seq) {
                Some(message) => message,
                None if !found.is_empty() => break,
                None => {
                    let alone = Loaded::read(store, key, &BTreeSet::from([seq]), 0).await?;
                    alone.and_then(|mut it| it.rows.remove(&seq))
                }
            },
        };
        found.push(Found::Row(Box::new(row.clone()), message.map(Box::new)));
    }
    Ok(Some(found))
}

/// Returns the message that was read for a recall or an edit, or that it was removed; `None` if it was left out for its size.
fn named_message(messages: Option<&Loaded>, seq: u64) -> Option<Option<StoredRow>> {
    let messages = messages?;
    match messages.rows.get(&seq) {
        Some(row) => Some(Some(row.clone())),
        None => (seq <= messages.head.pruned_to).then_some(None),
    }
}

/// Returns the message that a recall or an edit names.
fn named(row: &StoredRow) -> Option<u64> {
    match &row.row.body {
        Body::Recall(recall) => Some(recall.seq),
        Body::Edit(edit) => Some(edit.seq),
        _ => None,
    }
}

fn content_bytes(row: &StoredRow) -> usize {
    match &row.row.body {
        Body::Message(message) => message.content.len(),
        _ => 0,
    }
}
