//! What goes to the database at once, with a note on what is not synced before it.
//!
//! Marks, wishes and swept keys are written without a sync; the next sync takes them along, and confirms them. A power cut before that may
//! keep any part of what was not synced, a later part without an earlier one too. So a batch that was begun on
//! top of such bytes notes how many they are, for the start's check ([`super::journal`]) to tell what was lost with the
//! power from what the disk damaged later. The note is the removal of a key that never is: it stays in the journal.

use fjall::{Keyspace, OwnedWriteBatch, PersistMode, Slice};

use super::Database;

/// First byte of the key that a note removes; the count follows as eight bytes, big end first. No other key of `state`
/// begins so.
pub(super) const NOTE: u8 = b'~';

/// Bytes of a batch without its items, and of an item without key and value, in fjall's journal.
const FRAME_BYTES: usize = 26;
const ITEM_BYTES: usize = 21;

/// Some changes: all of them or none.
pub(super) struct WriteBatch {
    inner: OwnedWriteBatch,
    /// What it takes in the journal. Exact unless a value is compressed, which only those of synced batches are.
    bytes: u64,
    is_empty: bool,
}

impl WriteBatch {
    /// An empty one, to be written `how`, behind so many bytes that are not synced.
    pub(super) fn new(database: &Database, how: PersistMode, unsynced: u64) -> Self {
        let inner = database.fjall.batch().durability(Some(how));
        let mut batch = Self { inner, bytes: FRAME_BYTES as u64, is_empty: true };
        if unsynced > 0 {
            batch.remove(&database.state, [&[NOTE][..], &unsynced.to_be_bytes()].concat());
            batch.is_empty = true;
        }
        batch
    }

    pub(super) fn insert<K: Into<Slice>, V: Into<Slice>>(&mut self, keyspace: &Keyspace, key: K, value: V) {
        let (key, value) = (key.into(), value.into());
        self.count(key.len() + value.len());
        self.inner.insert(keyspace, key, value);
    }

    pub(super) fn remove<K: Into<Slice>>(&mut self, keyspace: &Keyspace, key: K) {
        let key = key.into();
        self.count(key.len());
        self.inner.remove(keyspace, key);
    }

    /// Writes it; the bytes that it takes in the journal. Nothing is written, nor synced, for an empty one.
    pub(super) fn commit(self) -> fjall::Result<u64> {
        if self.is_empty {
            return Ok(0);
        }
        self.inner.commit().map(|()| self.bytes)
    }

    fn count(&mut self, bytes: usize) {
        self.bytes += (ITEM_BYTES + bytes) as u64;
        self.is_empty = false;
    }
}
