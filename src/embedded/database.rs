//! The keyspaces of the database, and reading them.

use std::path::Path;

use bytes::Bytes;
use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _, Snapshot};

use super::{Kept, OpenError, Standing, Trouble, batch::WriteBatch, codec, directory::Directory};
use crate::bus::TopicId;

/// A memtable goes to a table file at this size: a restart replays no more than a few of them. Commits wait while the
/// database syncs what it notes of a new table (`docs/performance.md`), so tables are not to be made often.
const MEMTABLE_BYTES: u64 = 32 << 20;

/// Journals beyond this make the keyspaces flush that hold them back.
const JOURNAL_BYTES: u64 = 128 << 20;

/// Threads of the database's own, for flushes and compactions.
const WORKERS: usize = 2;

/// For blocks read from the disk.
const CACHE_BYTES: u64 = 32 << 20;

/// The open database. Values are described in [`codec`].
pub(crate) struct Database {
    pub(super) fjall: fjall::Database,
    /// What is small and changes: topic, standings, log, heads, members, stays, marks, devices.
    pub(crate) state: Keyspace,
    /// conversation, seq → row.
    pub(crate) rows: Keyspace,
    /// partition, hash → key.
    pub(crate) keys: Keyspace,
}

impl Database {
    /// Opens the database of a directory, or makes one.
    pub(super) fn open(directory: &Directory) -> Result<Result<(Self, TopicId), OpenError>, Trouble> {
        let path = directory.database();
        let io = |error: std::io::Error| Trouble::Io(error.to_string());
        if let Some(draft) = directory.draft().map_err(io)? {
            let made = Self::open_at(&draft)?;
            let topic: u128 = rand::random();
            made.state.insert(codec::TOPIC, topic.to_be_bytes())?;
            made.fjall.persist(PersistMode::SyncAll)?;
            drop(made);
            directory.made().map_err(io)?;
        }
        if let Err(damage) = directory.check() {
            return Ok(Err(damage));
        }
        let database = Self::open_at(&path)?;
        let topic = database.state.get(codec::TOPIC)?.and_then(|value| value[..].try_into().ok());
        let topic = topic.ok_or_else(|| Trouble::Damaged("the log has no name".to_owned()))?;
        Ok(Ok((database, TopicId(u128::from_be_bytes(topic)))))
    }

    fn open_at(path: &Path) -> Result<Self, Trouble> {
        let fjall = fjall::Database::builder(path)
            .max_journaling_size(JOURNAL_BYTES)
            .cache_size(CACHE_BYTES)
            .worker_threads(WORKERS)
            .open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let keyspace = |name| fjall.keyspace(name, options);
        Ok(Self { state: keyspace("state")?, rows: keyspace("rows")?, keys: keyspace("keys")?, fjall })
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.fjall.snapshot()
    }

    /// Where the partition stands in the snapshot.
    pub(crate) fn standing_in(
        &self,
        snapshot: &Snapshot,
        partition: u32,
    ) -> Result<Option<Standing>, Trouble> {
        snapshot
            .get(&self.state, codec::standing_key(partition))?
            .map(|value| codec::standing(&value))
            .transpose()
    }

    pub(super) fn standing(&self, partition: u32) -> Result<Option<Standing>, Trouble> {
        self.standing_in(&self.snapshot(), partition)
    }

    pub(super) fn put_standing(&self, batch: &mut WriteBatch, partition: u32, it: &Standing) {
        batch.insert(&self.state, codec::standing_key(partition), codec::put_standing(it));
    }

    /// What the log of a partition holds.
    pub(super) fn log(&self, partition: u32) -> Result<Kept, Trouble> {
        let mut kept = Vec::new();
        for entry in self.state.prefix(codec::log_of(partition)) {
            let (key, value) = entry.into_inner()?;
            kept.push((codec::log_offset(&key)?, Bytes::copy_from_slice(&value)));
        }
        Ok(kept)
    }
}
