//! Embedded engine: the durable log and store of a single machine, in one fjall database behind `Bus` and `Store`.
//!
//! An appended record waits in memory, where its owner reads it at once. The owner's archive writes it to the disk:
//! rows, heads, members, devices, keys, position and the last log record in **one batch with one `fdatasync`**, which
//! confirms every pending append below the new position (ADR 5). A record that is not archived within [`SPILL_AFTER`]
//! is written to the log separately. One thread writes; any thread reads, from snapshots.

mod archive;
mod batch;
mod blocks;
mod bus;
mod codec;
mod commit_error;
mod database;
mod directory;
mod faulty_disk;
mod journal;
mod key_filter;
mod log_tail;
mod offline;
mod pending_confirms;
mod personal;
mod state_key;
mod store;
mod sweep;
mod writer;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Need},
    record::{Body, Position, Record},
    settings::UserSettings,
};
use tokio::sync::{oneshot, watch};

use self::{
    archive::FeedJob, directory::Directory, key_filter::KeyFilter, log_tail::LogTail, writer::Writer,
};
pub(crate) use self::{codec::*, database::Database};
use crate::{
    bus::{AppendError, Appended, TopicId},
    store::{BlockOutcome, Fence, GuardOutcome, Personal, StoreError, Takeover, guard::GuardEdit},
    supervised,
};

pub use self::{
    bus::EmbeddedBus,
    directory::FORMAT,
    faulty_disk::BrokenDisk,
    offline::{Findings, Offline, OfflineError, PartitionStats, Stats},
    store::EmbeddedStore,
};

/// Approximate time after which an append that no archive has confirmed is written separately.
pub const SPILL_AFTER: Duration = Duration::from_millis(40);

/// Capacity of the writer's job queue; further jobs fail as unavailable. An owner has one job at a time.
const JOBS_MAX: usize = 1_024;

/// Disk operations of the engine outside the database, and hooks for injected faults.
pub trait Disk: Send + Sync {
    /// Returns the free bytes of the file system of `path`.
    ///
    /// # Errors
    /// The system call failed.
    fn free(&self, path: &Path) -> io::Result<u64>;

    /// Runs before each commit; an error counts as the commit's own.
    ///
    /// # Errors
    /// Only injected faults.
    fn before_commit(&self) -> io::Result<()> {
        Ok(())
    }

    /// Runs after each synced commit; an error counts as the sync's own, with the batch already written.
    ///
    /// # Errors
    /// Only injected faults.
    fn after_sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Disk of the machine, without injected faults.
pub struct RealDisk;

impl Disk for RealDisk {
    fn free(&self, path: &Path) -> io::Result<u64> {
        let it = rustix::fs::statvfs(path)?;
        Ok(it.f_bavail.saturating_mul(it.f_frsize))
    }
}

/// Configuration of an [`Engine`].
#[derive(Clone)]
pub struct EngineConfig {
    /// Directory of the store, created if missing.
    pub path: PathBuf,
    /// Number of log partitions.
    pub partitions: u32,
    /// Free space below which appends are refused.
    pub free_bytes_min: u64,
    /// Disk, real or with injected faults.
    pub disk: Arc<dyn Disk>,
}

/// Error of opening a store; each text names the cure.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedOpenError {
    /// The directory contains something else.
    #[error("{0} is not a store of Tidegate; set node.data to an empty directory, or to that of a node")]
    Foreign(PathBuf),
    /// The store was written by a newer version.
    #[error(
        "{path} has store format {found}, this program reads up to {FORMAT}; start the newer tidegate that wrote it"
    )]
    Newer {
        /// Directory of the store.
        path: PathBuf,
        /// Format of the store.
        found: u32,
    },
    /// The store was written by an older version whose format is no longer supported.
    #[error(
        "{path} has store format {found}, this program reads {FORMAT}; export it with the tidegate that wrote it \
         (`tidegate store export`), and import it here"
    )]
    Older {
        /// Directory of the store.
        path: PathBuf,
        /// Format of the store.
        found: u32,
    },
    /// There is no store, and none may be created.
    #[error("{0} contains no store; name the data directory of a node with --data, as in its node.data")]
    Missing(PathBuf),
    /// Another process has the store open.
    #[error("{0} is in use by another node; stop that one first, or set node.data to another directory")]
    Locked(PathBuf),
    /// The stored data can't be trusted.
    #[error(
        "{path} is damaged: {what}. Nothing was changed. Restore the directory from a backup, or move it away to \
         start with an empty store; the disk may be failing"
    )]
    Damaged {
        /// Directory of the store.
        path: PathBuf,
        /// Description of the damage.
        what: String,
    },
    /// A file operation failed.
    #[error(
        "{path} can't be used: {error}; check its owner, mode and file system, or set node.data to another directory"
    )]
    Io {
        /// Directory of the store.
        path: PathBuf,
        /// Error of the operation.
        error: io::Error,
    },
}

/// Error of a database operation.
#[derive(Debug)]
pub(crate) enum DatabaseError {
    /// An operation failed, possibly only for a while.
    Io(String),
    /// Stored data does not read back as it was written.
    Damaged(String),
}

impl From<fjall::Error> for DatabaseError {
    fn from(error: fjall::Error) -> Self {
        match error {
            fjall::Error::Io(error) => Self::Io(error.to_string()),
            fjall::Error::Storage(fjall::LsmError::Io(error)) => Self::Io(error.to_string()),
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<DatabaseError> for StoreError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Io(why) => Self::Unavailable(why),
            DatabaseError::Damaged(why) => Self::Broken(why),
        }
    }
}

/// Free space on the disk, as a limit on what is accepted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Space {
    Enough,
    /// Only records that free space are accepted.
    Short,
    Nothing,
}

/// Job for the writer thread.
enum Job {
    TakeOver {
        partition: u32,
        fence: Fence,
        topic: TopicId,
        reply: Reply<Takeover>,
    },
    Archive {
        partition: u32,
        fence: Fence,
        delta: Box<Delta>,
        reply: Reply<()>,
    },
    Marks {
        marks: Vec<(UserId, ConversationId, Personal)>,
        reply: Reply<()>,
    },
    Settings {
        user: UserId,
        now: UserSettings,
        reply: Reply<UserSettings>,
    },
    Revoke(Box<crate::revocation::Revocation>, u64, Reply<bool>),
    Blocks(blocks::BlockEdit, Reply<BlockOutcome>),
    Forget(Vec<Vec<u8>>, Reply<()>),
    Guard(Vec<GuardEdit>, Reply<GuardOutcome>),
    Feed(FeedJob),
    /// Writes all pending appends and replies when they are on the disk.
    Spill(oneshot::Sender<()>),
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Opened log and store of a node.
pub struct Engine {
    core: Arc<Core>,
    jobs: Option<mpsc::SyncSender<Job>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    topic: TopicId,
}

/// State shared between the writer thread and all others.
struct Core {
    /// Open database; `None` only while it is reopened after a full disk.
    database: RwLock<Option<Database>>,
    tails: Vec<Mutex<LogTail>>,
    key_filters: Vec<Mutex<KeyFilter>>,
    /// Counter that rises when a log tail has become durable or failed.
    moved: watch::Sender<u64>,
    fatal: watch::Sender<Option<String>>,
    /// Whether archives write the feed.
    writes_feed: AtomicBool,
    /// Current [`Space`].
    space: AtomicU8,
    // After the database, because fields are dropped in order: the directory is unlocked last.
    directory: Directory,
    config: EngineConfig,
}

/// Offsets and records of a partition's log on the disk; offsets rise by one.
pub(crate) type LogRecords = Vec<(u64, Bytes)>;

impl Engine {
    /// Opens the store, or creates it.
    ///
    /// # Errors
    /// See [`EmbeddedOpenError`].
    pub fn open(config: EngineConfig) -> Result<Self, EmbeddedOpenError> {
        let directory = Directory::enter(&config.path)?;
        let (database, topic) = Database::open(&directory).map_err(|error| open_error(&config, error))??;
        let mut tails = Vec::new();
        for partition in 0..config.partitions {
            let records = database.log(partition).map_err(|error| open_error(&config, error))?;
            let state = database.partition_state(partition).map_err(|error| open_error(&config, error))?;
            let position = state.map_or(0, |state| state.position.offset);
            let tail = LogTail::resume(position, records).ok_or_else(|| {
                open_error(
                    &config,
                    DatabaseError::Damaged(format!("the log of partition {partition} has a hole")),
                )
            })?;
            tails.push(Mutex::new(tail));
        }
        let bytes_max = key_filter::FILTER_BYTES_MAX / config.partitions.max(1) as usize;
        let key_filters = (0..config.partitions).map(|_| Mutex::new(KeyFilter::new(bytes_max))).collect();
        let core = Arc::new(Core {
            config,
            directory,
            database: RwLock::new(Some(database)),
            tails,
            key_filters,
            moved: watch::Sender::new(0),
            fatal: watch::Sender::new(None),
            writes_feed: AtomicBool::new(true),
            space: AtomicU8::new(Space::Enough as u8),
        });
        let (jobs, inbox) = mpsc::sync_channel(JOBS_MAX);
        let writer = Writer::new(Arc::clone(&core)).map_err(|error| open_error(&core.config, error))?;
        let spawned = supervised::spawn_thread("tidegate-store", || writer.run(inbox));
        let thread =
            spawned.map_err(|error| EmbeddedOpenError::Io { path: core.config.path.clone(), error })?;
        Ok(Self { core, jobs: Some(jobs), thread: Mutex::new(Some(thread)), topic })
    }

    /// Returns the topic id of the log.
    pub fn topic(&self) -> TopicId {
        self.topic
    }

    /// Returns a channel that receives the reason once the store is broken; the process must then end and report it.
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.core.fatal.subscribe()
    }

    /// Returns whether appends of messages are refused for lack of disk space.
    pub(crate) fn is_full(&self) -> bool {
        self.core.space() != Space::Enough
    }

    /// Takes the records that were on the disk at the start, with the offset of the first.
    pub(crate) fn initial_records(&self, partition: u32) -> (u64, Vec<Bytes>) {
        self.core.tail(partition).map_or_else(|| (0, Vec::new()), |mut tail| tail.take_initial())
    }

    /// Assigns offsets to the records by `append`, then waits until they are on the disk.
    pub(crate) async fn append(
        &self,
        partition: u32,
        records: Vec<Bytes>,
        append: impl FnOnce(Vec<Bytes>) -> Result<Appended, AppendError> + Send,
    ) -> Result<Appended, AppendError> {
        let mut moved = self.core.moved.subscribe();
        let (appended, failures) = {
            if let Some(why) = self.core.fatal.borrow().clone() {
                return Err(AppendError::Rejected(why));
            }
            let space = self.core.space();
            // Retention continues on a full disk, since it frees space.
            if space == Space::Nothing || space == Space::Short && !records.iter().all(frees_space) {
                let why = "disk full; free some space, and appends resume automatically";
                return Err(AppendError::Unavailable(why.to_owned()));
            }
            let Some(mut tail) = self.core.tail(partition) else {
                return Err(AppendError::Rejected("there is no such partition".to_owned()));
            };
            let appended = append(records.clone())?;
            tail.push(records);
            (appended, tail.failures())
        };
        loop {
            match self.core.tail(partition).map(|tail| (tail.durable_to(), tail.failures())) {
                Some((to, _)) if to > appended.last => return Ok(appended),
                Some((_, now)) if now == failures => {}
                _ => return Err(AppendError::Unknown("writing the records failed".to_owned())),
            }
            if moved.changed().await.is_err() {
                return Err(AppendError::Unknown("the store was closed".to_owned()));
            }
        }
    }

    /// Writes all pending appends; returns false if that failed or took longer than `within`.
    pub(crate) async fn spill(&self, within: Duration) -> bool {
        let (reply, done) = oneshot::channel();
        self.send(Job::Spill(reply)).is_ok() && matches!(tokio::time::timeout(within, done).await, Ok(Ok(())))
    }

    pub(crate) async fn take_over(
        &self,
        partition: u32,
        fence: Fence,
        topic: TopicId,
    ) -> Result<Takeover, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::TakeOver { partition, fence, topic, reply })?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }

    pub(crate) async fn archive(&self, partition: u32, fence: Fence, delta: Delta) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Archive { partition, fence, delta: Box::new(delta), reply })?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }

    /// Returns, for each need, whether it is a key that is certainly not stored, and the position at which that was
    /// true.
    ///
    /// `None` if another owner has the partition.
    pub(crate) fn surely_new(
        &self,
        partition: u32,
        fence: Fence,
        needs: &[Need],
    ) -> Option<(Position, Vec<bool>)> {
        let filter = self.core.key_filter(partition)?;
        let is_new = |need: &Need| matches!(need, Need::Key(hash) if !filter.may_hold(hash));
        Some((filter.position(fence)?, needs.iter().map(is_new).collect()))
    }

    /// Runs `read` on a thread that may block on the disk. A panic goes on in the caller.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let core = Arc::clone(&self.core);
        let call = supervised::run_blocking(move || {
            let database = core.database.read();
            match &*database {
                Some(database) => read(database),
                None => Err(StoreError::Unavailable("the database is being reopened".to_owned())),
            }
        });
        call.await.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        let busy = || StoreError::Unavailable("the writer is busy".to_owned());
        self.jobs.as_ref().and_then(|jobs| jobs.try_send(job).ok()).ok_or_else(busy)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Closing the job queue ends the writer, after it has written all pending appends.
        self.jobs = None;
        let thread = self.thread.get_mut().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("store writer panicked; pending appends may be lost");
        }
    }
}

impl Core {
    fn tail(&self, partition: u32) -> Option<MutexGuard<'_, LogTail>> {
        let tail = self.tails.get(partition as usize)?;
        Some(tail.lock())
    }

    fn key_filter(&self, partition: u32) -> Option<MutexGuard<'_, KeyFilter>> {
        let filter = self.key_filters.get(partition as usize)?;
        Some(filter.lock())
    }

    fn space(&self) -> Space {
        match self.space.load(Ordering::Relaxed) {
            0 => Space::Enough,
            1 => Space::Short,
            _ => Space::Nothing,
        }
    }

    fn set_space(&self, space: Space) {
        self.space.store(space as u8, Ordering::Relaxed);
    }

    fn notify_moved(&self) {
        self.moved.send_modify(|count| *count += 1);
    }
}

/// Returns whether a record frees more space than it takes, by expiring rows or keys.
fn frees_space(record: &Bytes) -> bool {
    Record::decode(record.clone()).is_ok_and(|record| matches!(record.body, Body::Prune(_) | Body::Rules(_)))
}

fn open_error(config: &EngineConfig, error: DatabaseError) -> EmbeddedOpenError {
    let path = config.path.clone();
    match error {
        DatabaseError::Io(why) => EmbeddedOpenError::Io { path, error: io::Error::other(why) },
        DatabaseError::Damaged(what) => EmbeddedOpenError::Damaged { path, what },
    }
}

#[cfg(test)]
mod tests;
