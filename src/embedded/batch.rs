//! Write batch, with a note of how many bytes before it in the journal are not synced.
//!
//! Marks, user settings and swept keys are written without a sync, and confirmed by the next one. A power cut before it
//! may keep a later part of the unsynced bytes without an earlier one. So a batch that follows unsynced bytes notes
//! their number, and the check at the start ([`super::journal`]) can tell a loss by the power cut from later damage of
//! the disk. The note is the removal of a key that never exists: it stays in the journal.

use fjall::{Keyspace, OwnedWriteBatch, PersistMode, Slice};

use super::Database;

/// First byte of the key that a note removes, followed by the number of unsynced bytes as eight bytes, big-endian. No
/// other key of `state` begins with it.
pub(super) const UNSYNCED_NOTE: u8 = b'~';

/// Bytes of a batch in fjall's journal, without its items.
const FRAME_BYTES: usize = 26;
/// Bytes of an item in fjall's journal, without key and value.
const ITEM_BYTES: usize = 21;

/// Changes that are written as a whole or not at all.
pub(super) struct WriteBatch {
    inner: OwnedWriteBatch,
    /// Size in the journal. Exact unless a value is compressed, which happens only in synced batches.
    bytes: u64,
    is_empty: bool,
}

impl WriteBatch {
    /// Creates an empty batch to be written with `mode`, after `unsynced` bytes in the journal.
    pub(super) fn new(database: &Database, mode: PersistMode, unsynced: u64) -> Self {
        let inner = database.fjall.batch().durability(Some(mode));
        let mut batch = Self { inner, bytes: FRAME_BYTES as u64, is_empty: true };
        if unsynced > 0 {
            batch.remove(&database.state, [&[UNSYNCED_NOTE][..], &unsynced.to_be_bytes()].concat());
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

    /// Writes the batch and returns its bytes in the journal. An empty batch is neither written nor synced.
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
