//! Store of the model: the feed of a partition with its cursor, which both fall back to an older state together.

use std::collections::BTreeMap;
use tidegate_protocol::{
    id::ConversationId,
    machine::webhook::{WebhookCursor, WebhookEvent, WebhookEventKind, WebhookItem, WebhookPage},
};

/// Entry of a conversation, or its removal: conversation, seq, and whether it is a removal.
pub(super) type Key = (ConversationId, u64, bool);

pub(super) fn key(event: &WebhookEvent) -> Key {
    (event.conversation.clone(), event.seq, event.kind == WebhookEventKind::Pruned)
}

/// State to which a store may fall back.
struct Snapshot {
    archived: usize,
    cursor: Vec<u8>,
}

/// Feed of a partition. The log has everything; the store what is archived of it.
pub(super) struct Feed {
    pub(super) log: Vec<WebhookItem>,
    numbers: BTreeMap<Key, u64>,
    archived: usize,
    pub(super) cursor: Vec<u8>,
    snapshots: Vec<Snapshot>,
    /// Number after which everything has to be taken since the last replay.
    pub(super) begins_after: u64,
    pub(super) has_fallen_back: bool,
}

impl Feed {
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            log: Vec::new(),
            numbers: BTreeMap::new(),
            archived: 0,
            cursor: WebhookCursor::at(0, lanes).encode(),
            snapshots: Vec::new(),
            begins_after: 0,
            has_fallen_back: false,
        }
    }

    pub(super) fn append(&mut self, event: WebhookEvent, is_wanted: bool) {
        let number = self.log.len() as u64 + 1;
        self.numbers.insert(key(&event), number);
        self.log.push(WebhookItem { number, event, is_wanted });
    }

    /// Archives so much of the log.
    pub(super) fn archive(&mut self, count: usize) {
        self.archived = self.log.len().min(self.archived.saturating_add(count));
    }

    pub(super) const fn newest(&self) -> u64 {
        self.archived as u64
    }

    pub(super) fn number(&self, key: &Key) -> u64 {
        self.numbers[key]
    }

    /// Returns whether the store has the event.
    pub(super) fn has(&self, event: &WebhookEvent) -> bool {
        self.number(&key(event)) <= self.newest()
    }

    pub(super) fn cursor(&self) -> WebhookCursor {
        WebhookCursor::decode(&self.cursor).unwrap()
    }

    /// Returns at most `limit` entries after the number, or the newest number if the reader is ahead.
    pub(super) fn read(&self, after: u64, limit: usize) -> Result<WebhookPage, u64> {
        if after > self.newest() {
            return Err(self.newest());
        }
        let first = usize::try_from(after).unwrap();
        let end = self.archived.min(first + limit);
        let items = self.log[first..end].to_vec();
        Ok(WebhookPage { after, end: end as u64, newest: self.newest(), items })
    }

    pub(super) fn snapshot(&mut self) {
        self.snapshots.push(Snapshot { archived: self.archived, cursor: self.cursor.clone() });
    }

    /// Falls back to the newest snapshot, which may be old.
    pub(super) fn fall_back(&mut self) {
        if let Some(Snapshot { archived, cursor }) = self.snapshots.pop() {
            (self.archived, self.cursor, self.has_fallen_back) = (archived, cursor, true);
        }
    }
}
