//! Embedded database: its keyspaces and how they are opened and read.

use std::path::Path;

use bytes::Bytes;
use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _, Snapshot};

use super::{
    DatabaseError, EmbeddedOpenError, LogRecords, PartitionState, batch::WriteBatch, codec,
    directory::Directory,
};
use crate::{bus::TopicId, store::feed::FeedState};

/// Memtable size at which it is flushed to a table file, so that a restart replays only a few of them. Commits wait
/// while the database syncs its record of a new table (`docs/performance.md`), so flushes must be rare.
const MEMTABLE_BYTES_MAX: u64 = 32 << 20;

/// Size of the memtable of the feed, whose batches are small: it fills later than those of the rows all the same.
const FEED_MEMTABLE_BYTES_MAX: u64 = 8 << 20;

/// Total journal size above which the keyspaces that keep old journals alive are flushed.
const JOURNALS_BYTES_MAX: u64 = 128 << 20;

/// Threads of the database for flushes and compactions.
const WORKER_THREADS: usize = 2;

/// Cache for blocks read from the disk.
const CACHE_BYTES: u64 = 32 << 20;

/// Most table files that the database keeps open; [`crate::budget::DESCRIPTORS_RESERVED`] covers them.
const CACHED_FILES_MAX: usize = 64;

/// Open database. [`codec`] describes its keys and values.
pub(crate) struct Database {
    pub(super) fjall: fjall::Database,
    /// Small values that change: topic, partition states, log, heads, members, stays, marks, devices, user settings.
    pub(crate) state: Keyspace,
    /// History: conversation, seq → row.
    pub(crate) rows: Keyspace,
    /// Dedup keys: partition, hash → key.
    pub(crate) keys: Keyspace,
    /// Feed: partition, number of the last entry → batch; also its state, and the cursors of consumers.
    pub(crate) feed: Keyspace,
}

impl Database {
    /// Opens the database of a directory, or creates it.
    pub(super) fn open(
        directory: &Directory,
    ) -> Result<Result<(Self, TopicId), EmbeddedOpenError>, DatabaseError> {
        let path = directory.database();
        let io = |error: std::io::Error| DatabaseError::Io(error.to_string());
        if let Some(draft) = directory.draft().map_err(io)? {
            let database = Self::open_at(&draft)?;
            let topic: u128 = rand::random();
            database.state.insert(codec::TOPIC, topic.to_be_bytes())?;
            database.fjall.persist(PersistMode::SyncAll)?;
            drop(database);
            directory.finish_draft().map_err(io)?;
        }
        if let Err(damage) = directory.check() {
            return Ok(Err(damage));
        }
        let database = Self::open_at(&path)?;
        let topic = database.state.get(codec::TOPIC)?.and_then(|value| value[..].try_into().ok());
        let topic = topic.ok_or_else(|| DatabaseError::Damaged("the log has no topic id".to_owned()))?;
        Ok(Ok((database, TopicId(u128::from_be_bytes(topic)))))
    }

    fn open_at(path: &Path) -> Result<Self, DatabaseError> {
        let fjall = fjall::Database::builder(path)
            .max_journaling_size(JOURNALS_BYTES_MAX)
            .cache_size(CACHE_BYTES)
            .worker_threads(WORKER_THREADS)
            .max_cached_files(Some(CACHED_FILES_MAX))
            .open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES_MAX);
        let keyspace = |name| fjall.keyspace(name, options);
        let feed = || KeyspaceCreateOptions::default().max_memtable_size(FEED_MEMTABLE_BYTES_MAX);
        Ok(Self {
            state: keyspace("state")?,
            rows: keyspace("rows")?,
            keys: keyspace("keys")?,
            feed: fjall.keyspace("feed", feed)?,
            fjall,
        })
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.fjall.snapshot()
    }

    /// Returns the state of the partition in the snapshot.
    pub(crate) fn partition_state_in(
        &self,
        snapshot: &Snapshot,
        partition: u32,
    ) -> Result<Option<PartitionState>, DatabaseError> {
        snapshot
            .get(&self.state, codec::partition_key(partition))?
            .map(|value| codec::partition_state(&value))
            .transpose()
    }

    pub(super) fn partition_state(&self, partition: u32) -> Result<Option<PartitionState>, DatabaseError> {
        self.partition_state_in(&self.snapshot(), partition)
    }

    pub(super) fn put_partition_state(&self, batch: &mut WriteBatch, partition: u32, it: &PartitionState) {
        batch.insert(&self.state, codec::partition_key(partition), codec::put_partition_state(it));
    }

    pub(super) fn put_feed_state(&self, batch: &mut WriteBatch, partition: u32, it: &FeedState) {
        batch.insert(&self.feed, codec::feed_state_key(partition), codec::put_feed_state(it));
    }

    /// Returns the counters of the partition's feed in the snapshot.
    pub(crate) fn feed_state_in(
        &self,
        snapshot: &Snapshot,
        partition: u32,
    ) -> Result<FeedState, DatabaseError> {
        let value = snapshot.get(&self.feed, codec::feed_state_key(partition))?;
        Ok(value.map(|value| codec::feed_state(&value)).transpose()?.unwrap_or_default())
    }

    pub(super) fn feed_state(&self, partition: u32) -> Result<FeedState, DatabaseError> {
        self.feed_state_in(&self.snapshot(), partition)
    }

    /// Returns the log of a partition on the disk.
    pub(super) fn log(&self, partition: u32) -> Result<LogRecords, DatabaseError> {
        let mut records = Vec::new();
        for entry in self.state.prefix(codec::log_prefix(partition)) {
            let (key, value) = entry.into_inner()?;
            records.push((codec::log_offset(&key)?, Bytes::copy_from_slice(&value)));
        }
        Ok(records)
    }
}
