//! The durable log and store of one machine: one fjall database that [`crate::bus`] and [`crate::store`] share.
//!
//! An appended record waits in memory, where its owner reads it at once. The owner's archive takes it to the disk:
//! rows, heads, members, devices, keys, position and the last log record in **one batch with one `fdatasync`**, by
//! which everything that waited is confirmed at once (`docs/adr/0005-embedded-store.md`). A record that no archive
//! takes within [`SPILL_AFTER`] goes to the disk by itself. One thread writes; reads are snapshots of any thread.

mod archive;
mod batch;
mod bus;
mod codec;
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
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, atomic::AtomicU8, atomic::Ordering, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Need},
    record::{Body, Position, Record},
    settings::UserSettings,
};
use tokio::sync::{oneshot, watch};

pub(crate) use self::{codec::*, database::Database};
use self::{directory::Directory, key_filter::Seen, log_tail::Tail, writer::Writer};
use crate::{
    bus::{AppendError, Appended, TopicId},
    store::{Fence, Personal, StoreError, TakenOver},
};

pub use self::{
    bus::EmbeddedBus,
    directory::FORMAT,
    faulty_disk::BrokenDisk,
    offline::{Findings, Offline, OfflineError, PartitionStats, Stats},
    store::EmbeddedStore,
};

/// An append that no archive confirms within about this time is written by itself.
pub const SPILL_AFTER: Duration = Duration::from_millis(40);

/// Jobs that may wait for the writer; an owner has one at a time.
const JOBS_MAX: usize = 1_024;

/// What the engine asks of the disk beside the database; tests put faults here.
pub trait Disk: Send + Sync {
    /// Bytes that may still be written to the file system of `path`.
    ///
    /// # Errors
    /// Those of the system.
    fn free(&self, path: &Path) -> io::Result<u64>;

    /// Asked before each commit; an error is taken for the commit's own.
    ///
    /// # Errors
    /// None, but in tests.
    fn before_commit(&self) -> io::Result<()> {
        Ok(())
    }

    /// Asked after each commit that was synced; an error is taken for the sync's own, which tells it of a batch that is
    /// written.
    ///
    /// # Errors
    /// None, but in tests.
    fn after_sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The machine's own disk.
pub struct RealDisk;

impl Disk for RealDisk {
    fn free(&self, path: &Path) -> io::Result<u64> {
        let it = rustix::fs::statvfs(path)?;
        Ok(it.f_bavail.saturating_mul(it.f_frsize))
    }
}

/// How an [`Engine`] works.
#[derive(Clone)]
pub struct EngineConfig {
    /// The store's directory; made if there is none.
    pub path: PathBuf,
    /// How many partitions the log has.
    pub partitions: u32,
    /// With less than this free, appends are refused until there is more again.
    pub free_bytes_min: u64,
    /// Where the faults of tests come in.
    pub disk: Arc<dyn Disk>,
}

/// Why a store can't be opened; each text names the cure.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Something else lives there.
    #[error("{0} is no store of Tidegate; set node.data to an empty directory, or to the one of a node")]
    Foreign(PathBuf),
    /// Made by a newer program.
    #[error(
        "{path} has store format {found}, this program reads up to {FORMAT}; start the newer tidegate that wrote it"
    )]
    Newer {
        /// Where.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Made by a program whose layout is not read any more.
    #[error(
        "{path} has store format {found}, this program reads {FORMAT}; export it with the tidegate that wrote it \
         (`tidegate store export`), and import it here"
    )]
    Older {
        /// Where.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// There is none, and none is to be made.
    #[error(
        "{0} holds no store; name the data directory of a node (--data), the one that its node.data says"
    )]
    Missing(PathBuf),
    /// Another process is in it.
    #[error("{0} is in use by another node; stop that one first, or set node.data to another directory")]
    Locked(PathBuf),
    /// What was stored can't be trusted any more.
    #[error(
        "{path} is damaged: {what}. Nothing was changed. Put the directory back from a backup, or move it away to \
         start with an empty store; the disk may be failing"
    )]
    Damaged {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The system refused.
    #[error("{path} can't be used: {error}; check its owner, mode and file system")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// What goes wrong below.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// May pass.
    Io(String),
    /// What was written does not come back.
    Damaged(String),
}

impl From<fjall::Error> for Trouble {
    fn from(error: fjall::Error) -> Self {
        match error {
            fjall::Error::Io(error) => Self::Io(error.to_string()),
            fjall::Error::Storage(fjall::LsmError::Io(error)) => Self::Io(error.to_string()),
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Io(why) => Self::Unavailable(why),
            Trouble::Damaged(why) => Self::Broken(why),
        }
    }
}

/// What the disk still takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Space {
    Enough,
    /// Only what makes room.
    Short,
    Nothing,
}

/// What the writer is asked.
enum Job {
    TakeOver {
        partition: u32,
        fence: Fence,
        topic: TopicId,
        reply: Reply<TakenOver>,
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
    Wishes {
        user: UserId,
        now: UserSettings,
        reply: Reply<UserSettings>,
    },
    /// Write what waits now, and say when it is there.
    Spill(oneshot::Sender<()>),
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// The opened store of a node.
pub struct Engine {
    core: Arc<Core>,
    jobs: Option<mpsc::SyncSender<Job>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    topic: TopicId,
}

/// What the writer and everybody else share.
struct Core {
    /// None only while it is closed and opened again after the disk was full.
    database: RwLock<Option<Database>>,
    tails: Vec<Mutex<Tail>>,
    seen: Vec<Mutex<Seen>>,
    /// Rises whenever a tail has moved or failed.
    moved: watch::Sender<u64>,
    fatal: watch::Sender<Option<String>>,
    /// A [`Space`].
    space: AtomicU8,
    // Below the database, because fields are dropped in order: the lock and the disk go last.
    directory: Directory,
    config: EngineConfig,
}

/// What lies in the log of a partition: offsets rise by one.
pub(crate) type Kept = Vec<(u64, Bytes)>;

impl Engine {
    /// Opens or makes the store.
    ///
    /// # Errors
    /// [`OpenError`] says what to do.
    pub fn open(config: EngineConfig) -> Result<Self, OpenError> {
        let directory = Directory::enter(&config.path)?;
        let (database, topic) =
            Database::open(&directory).map_err(|trouble| open_error(&config, trouble))??;
        let mut tails = Vec::new();
        for partition in 0..config.partitions {
            let kept = database.log(partition).map_err(|trouble| open_error(&config, trouble))?;
            let standing = database.standing(partition).map_err(|trouble| open_error(&config, trouble))?;
            let position = standing.map_or(0, |standing| standing.position.offset);
            let tail = Tail::resume(position, kept).ok_or_else(|| {
                open_error(&config, Trouble::Damaged(format!("the log of partition {partition} has a hole")))
            })?;
            tails.push(Mutex::new(tail));
        }
        let bytes_max = key_filter::BYTES_MAX / config.partitions.max(1) as usize;
        let seen = (0..config.partitions).map(|_| Mutex::new(Seen::new(bytes_max))).collect();
        let core = Arc::new(Core {
            config,
            directory,
            database: RwLock::new(Some(database)),
            tails,
            seen,
            moved: watch::Sender::new(0),
            fatal: watch::Sender::new(None),
            space: AtomicU8::new(Space::Enough as u8),
        });
        let (jobs, inbox) = mpsc::sync_channel(JOBS_MAX);
        let writer = Writer::new(Arc::clone(&core)).map_err(|trouble| open_error(&core.config, trouble))?;
        let spawned = std::thread::Builder::new().name("tidegate-store".into()).spawn(|| writer.run(inbox));
        let thread = spawned.map_err(|error| OpenError::Io { path: core.config.path.clone(), error })?;
        Ok(Self { core, jobs: Some(jobs), thread: Mutex::new(Some(thread)), topic })
    }

    /// The log that this is.
    pub fn topic(&self) -> TopicId {
        self.topic
    }

    /// Says why, once nothing can be stored any more: the process must end, loudly.
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.core.fatal.subscribe()
    }

    /// Whether no messages are appended until there is space on the disk again.
    pub(crate) fn is_full(&self) -> bool {
        self.core.space() != Space::Enough
    }

    /// The records that a restarted bus begins with, and the offset of the first.
    pub(crate) fn kept(&self, partition: u32) -> (u64, Vec<Bytes>) {
        self.core.tail(partition).map_or_else(|| (0, Vec::new()), |mut tail| tail.take_kept())
    }

    /// Lets `append` give the records their offsets, then waits until they are on the disk.
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
            // What is too old goes although the disk is full, which in time makes room.
            if space == Space::Nothing || space == Space::Short && !records.iter().all(makes_room) {
                let why = "the disk is full; free some space and it goes on by itself";
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
                _ => return Err(AppendError::Unknown("the store could not write it".to_owned())),
            }
            if moved.changed().await.is_err() {
                return Err(AppendError::Unknown("the store was closed".to_owned()));
            }
        }
    }

    /// Writes everything appended so far; false = it could not be, within that time.
    pub(crate) async fn spill(&self, within: Duration) -> bool {
        let (reply, done) = oneshot::channel();
        self.send(Job::Spill(reply)).is_ok() && matches!(tokio::time::timeout(within, done).await, Ok(Ok(())))
    }

    pub(crate) async fn take_over(
        &self,
        partition: u32,
        fence: Fence,
        topic: TopicId,
    ) -> Result<TakenOver, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::TakeOver { partition, fence, topic, reply })?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }

    pub(crate) async fn archive(&self, partition: u32, fence: Fence, delta: Delta) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Archive { partition, fence, delta: Box::new(delta), reply })?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }

    pub(crate) async fn save_marks(
        &self,
        marks: Vec<(UserId, ConversationId, Personal)>,
    ) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Marks { marks, reply })?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }

    pub(crate) async fn save_wishes(
        &self,
        user: UserId,
        now: UserSettings,
    ) -> Result<UserSettings, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Wishes { user, now, reply })?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }

    /// Which of the needs are keys that are surely not stored, and the position at which this was so; none if the
    /// partition is not the caller's.
    pub(crate) fn surely_new(
        &self,
        partition: u32,
        fence: Fence,
        needs: &[Need],
    ) -> Option<(Position, Vec<bool>)> {
        let seen = self.core.seen(partition)?;
        let is_new = |need: &Need| matches!(need, Need::Key(hash) if !seen.may_hold(hash));
        Some((seen.position(fence)?, needs.iter().map(is_new).collect()))
    }

    /// Reads on a thread that may wait for the disk.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let core = Arc::clone(&self.core);
        let call = tokio::task::spawn_blocking(move || {
            let database = core.database.read().unwrap_or_else(PoisonError::into_inner);
            match &*database {
                Some(database) => read(database),
                None => Err(StoreError::Unavailable("it is being opened again".to_owned())),
            }
        });
        call.await.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        let away = || StoreError::Unavailable("the writer is busy".to_owned());
        self.jobs.as_ref().and_then(|jobs| jobs.try_send(job).ok()).ok_or_else(away)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The writer ends when its inbox does, after what waits is written.
        self.jobs = None;
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
}

impl Core {
    fn tail(&self, partition: u32) -> Option<MutexGuard<'_, Tail>> {
        let tail = self.tails.get(partition as usize)?;
        Some(tail.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn seen(&self, partition: u32) -> Option<MutexGuard<'_, Seen>> {
        let seen = self.seen.get(partition as usize)?;
        Some(seen.lock().unwrap_or_else(PoisonError::into_inner))
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

    fn tell_moved(&self) {
        self.moved.send_modify(|count| *count += 1);
    }
}

/// Whether a record takes away more than it brings: that rows or keys are too old.
fn makes_room(record: &Bytes) -> bool {
    Record::decode(record.clone()).is_ok_and(|record| matches!(record.body, Body::Prune(_) | Body::Rules(_)))
}

fn open_error(config: &EngineConfig, trouble: Trouble) -> OpenError {
    let path = config.path.clone();
    match trouble {
        Trouble::Io(why) => OpenError::Io { path, error: io::Error::other(why) },
        Trouble::Damaged(what) => OpenError::Damaged { path, what },
    }
}
