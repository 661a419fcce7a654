//! Offline access to the store of a stopped node: check, statistics, export and import. The lock keeps nodes out.

mod check;
mod import;
mod stats;

use std::{
    cell::Cell,
    io,
    path::{Path, PathBuf},
};

use fjall::Readable as _;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Member, Stay},
};

use super::{
    Database, DatabaseError, EmbeddedOpenError,
    codec::{self, Pair},
    directory::Directory,
    state_key::StateKey,
};
use crate::store::dump::{
    BlockLine, ConversationLine, DUMP_VERSION, DeviceLine, Entry, GuardLine, Header, KeyLine, LogLine,
    MarkLine, MemberLine, PartitionLine, ReadDumpError, RevocationLine, RowLine, UserSettingsLine,
};

pub use self::{
    check::Findings,
    stats::{PartitionStats, Stats},
};

/// Opened store of a stopped node.
pub struct Offline {
    database: Database,
    view: fjall::Snapshot,
    topic: u128,
    // After the database, because fields are dropped in order: the directory is unlocked last.
    directory: Directory,
}

/// Error of an operation on a stopped node's store; each text names the cure.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The store can't be opened.
    #[error(transparent)]
    Open(#[from] EmbeddedOpenError),
    /// Stored data can't be read.
    #[error("the store is damaged: {0}; `tidegate store check` lists every fault")]
    Damaged(String),
    /// Writing the lines failed.
    #[error("writing the export failed: {0}")]
    Write(io::Error),
    /// The export is invalid; nothing was imported.
    #[error("nothing was imported: {0}")]
    Dump(ReadDumpError),
    /// All lines are valid, but the resulting store has faults; nothing was imported.
    #[error("nothing was imported: {0}; the export was edited or merged: export it again")]
    Unsound(String),
    /// The target of the import is not empty.
    #[error("{0} exists already; import into a data directory without a store")]
    NotEmpty(PathBuf),
    /// Another import is running, or was interrupted.
    #[error(
        "{0} exists: another import is running, or was interrupted; if none is running, remove it and import again"
    )]
    Busy(PathBuf),
    /// A file operation failed; nothing was imported.
    #[error("nothing was imported: {0} can't be written: {1}")]
    Io(PathBuf, io::Error),
}

/// Consumer of the entries of a store, or of the descriptions of those that can't be read.
type Take<'a> = &'a mut dyn FnMut(Result<Entry, String>) -> io::Result<()>;

/// Returns the description of an error.
fn text_of(error: DatabaseError) -> String {
    match error {
        DatabaseError::Io(why) | DatabaseError::Damaged(why) => why,
    }
}

impl From<DatabaseError> for OfflineError {
    fn from(error: DatabaseError) -> Self {
        Self::Damaged(text_of(error))
    }
}

/// Without a source, whose text would follow its own in the output of the command line.
impl From<ReadDumpError> for OfflineError {
    fn from(error: ReadDumpError) -> Self {
        Self::Dump(error)
    }
}

impl From<fjall::Error> for OfflineError {
    fn from(error: fjall::Error) -> Self {
        DatabaseError::from(error).into()
    }
}

impl Offline {
    /// Opens an existing store of any supported format, without changing the format.
    ///
    /// # Errors
    /// See [`EmbeddedOpenError`].
    pub fn open(path: &Path) -> Result<Self, EmbeddedOpenError> {
        Self::enter(path, Directory::enter_existing(path)?)
    }

    fn enter(path: &Path, directory: Directory) -> Result<Self, EmbeddedOpenError> {
        let opened = Database::open(&directory).map_err(|error| match error {
            DatabaseError::Io(why) => {
                EmbeddedOpenError::Io { path: path.to_owned(), error: io::Error::other(why) }
            }
            DatabaseError::Damaged(what) => EmbeddedOpenError::Damaged { path: path.to_owned(), what },
        })?;
        let (database, topic) = opened?;
        let view = database.snapshot();
        Ok(Self { view, database, topic: topic.0, directory })
    }

    /// Writes everything as lines ([`crate::store::dump`]) and returns their number.
    ///
    /// # Errors
    /// Stored data can't be read, or writing the lines failed.
    pub fn export(&self, to: &mut dyn io::Write) -> Result<u64, OfflineError> {
        let (mut lines, mut damage) = (0, None);
        let result = self.walk(&mut |entry| match entry {
            Ok(entry) => {
                lines += 1;
                crate::store::dump::write(&entry, to)
            }
            Err(what) => {
                damage = Some(what);
                Err(io::ErrorKind::InvalidData.into())
            }
        });
        match (result, damage) {
            (Ok(()), _) => Ok(lines),
            (Err(_), Some(what)) => Err(OfflineError::Damaged(what)),
            (Err(error), None) => Err(OfflineError::Write(error)),
        }
    }

    /// Passes everything to `take`, in the order of an export. Unreadable entries are reported and skipped.
    fn walk(&self, take: Take<'_>) -> io::Result<()> {
        let lines = Cell::new(0);
        let mut take = |entry: Result<Entry, String>| {
            lines.set(lines.get() + 1);
            take(entry)
        };
        take(Ok(Entry::TidegateExport(Header { version: DUMP_VERSION, topic: self.topic.to_be_bytes() })))?;
        self.each(&self.database.state, b"p", &mut take, |_, key, value| {
            let StateKey::Partition(number) = StateKey::of(key)? else { return Err(codec::damaged()) };
            let state = codec::partition_state(value)?;
            if state.topic.0 != self.topic {
                return Err(DatabaseError::Damaged(format!(
                    "partition {number} was archived from another log"
                )));
            }
            Ok(Entry::Partition(PartitionLine::new(number, state.position, state.rules)))
        })?;
        self.each(&self.database.state, b"l", &mut take, |_, key, value| {
            let StateKey::Log(partition, offset) = StateKey::of(key)? else { return Err(codec::damaged()) };
            Ok(Entry::Log(LogLine { partition, offset, record: value.to_vec() }))
        })?;
        for entry in self.view.prefix(&self.database.state, b"h") {
            let found = entry.into_inner().map_err(DatabaseError::from);
            let line = found.and_then(|(key, value)| {
                let StateKey::Head(id) = StateKey::of(&key)? else { return Err(codec::damaged()) };
                let (head, members) = codec::head(&value)?;
                Ok(ConversationLine::new(id, &head, members))
            });
            match line {
                Ok(line) => {
                    let id = line.id.clone();
                    take(Ok(Entry::Conversation(line)))?;
                    self.conversation(&id, &mut take)?;
                }
                Err(error) => take(Err(format!("a head: {}", text_of(error))))?,
            }
        }
        self.each(&self.database.state, &[Pair::Mark as u8], &mut take, |_, key, value| {
            let StateKey::Mark(user, conversation) = StateKey::of(key)? else { return Err(codec::damaged()) };
            Ok(Entry::Mark(MarkLine::new(user, conversation, &codec::user_state(value)?)))
        })?;
        self.each(&self.database.state, b"w", &mut take, |_, key, value| {
            let StateKey::UserSettings(user) = StateKey::of(key)? else { return Err(codec::damaged()) };
            Ok(Entry::Settings(UserSettingsLine::new(user, &codec::user_settings(value)?)))
        })?;
        self.each(&self.database.state, b"x", &mut take, |_, key, value| {
            Ok(Entry::Revocation(RevocationLine::new(codec::revocation(key, value)?.1)))
        })?;
        self.each(&self.database.state, &[Pair::Block as u8], &mut take, |_, key, value| {
            let StateKey::Block(user, other) = StateKey::of(key)? else { return Err(codec::damaged()) };
            Ok(Entry::Block(BlockLine { user, other, time: codec::block(value)?.1 }))
        })?;
        self.guard(&mut take)?;
        self.each(&self.database.keys, b"", &mut take, |_, key, value| {
            let partition = key.first_chunk::<4>().map(|part| u32::from_be_bytes(*part));
            let partition = partition.ok_or_else(codec::damaged)?;
            Ok(Entry::Key(KeyLine::new(partition, codec::key_hash(key)?, codec::key(value)?)))
        })?;
        let end = Entry::End(lines.get());
        take(Ok(end))
    }

    /// Passes the entries of the guard to `take`, except removed ones and those of unknown kinds.
    fn guard(&self, take: Take<'_>) -> io::Result<()> {
        for entry in self.view.prefix(&self.database.state, codec::GUARD_PREFIX) {
            let found = entry.into_inner().map_err(DatabaseError::from);
            match found.and_then(|(key, value)| codec::guard_row(&key, &value)) {
                Ok(row) => match row.and_then(GuardLine::new) {
                    Some(line) => take(Ok(Entry::Guard(line)))?,
                    None => continue,
                },
                Err(error) => take(Err(format!("an entry of the guard: {}", text_of(error))))?,
            }
        }
        Ok(())
    }

    /// Passes members, devices and rows of a conversation to `take`.
    fn conversation(&self, id: &ConversationId, take: Take<'_>) -> io::Result<()> {
        let state = &self.database.state;
        let members = codec::pair(Pair::Member, id.as_str(), "");
        self.each(state, &members, take, |it, key, value| {
            let StateKey::Member(_, user) = StateKey::of(key)? else { return Err(codec::damaged()) };
            let member = codec::member(value)?;
            let stays = it.stays(id, &user, &member)?;
            Ok(Entry::Member(MemberLine::new(user, &member, &stays)))
        })?;
        let devices = [b"d", id.as_str().as_bytes(), b"\0"].concat();
        self.each(state, &devices, take, |_, key, value| {
            let StateKey::Device(_, user, device) = StateKey::of(key)? else { return Err(codec::damaged()) };
            let tidegate_protocol::machine::ledger::Device { epoch, next_n } = codec::device(value)?;
            Ok(Entry::Device(DeviceLine { user, device, epoch, next_n }))
        })?;
        let rows = [id.as_str().as_bytes(), b"\0"].concat();
        self.each(&self.database.rows, &rows, take, |_, key, value| {
            let seq = codec::row_seq(key)?;
            let stored = codec::row(seq, value)
                .map_err(|_| DatabaseError::Damaged(format!("{id}: row {seq} can't be read")))?;
            if stored.row.body.conversation() != Some(id) {
                return Err(DatabaseError::Damaged(format!(
                    "{id}: row {seq} belongs to another conversation"
                )));
            }
            let no_row = || DatabaseError::Damaged(format!("{id}: row {seq} is not a row of history"));
            RowLine::new(&stored).map(Entry::Row).ok_or_else(no_row)
        })
    }

    fn stays(&self, id: &ConversationId, user: &UserId, member: &Member) -> Result<Vec<Stay>, DatabaseError> {
        let mut stays = Vec::new();
        for entry in self.view.prefix(&self.database.state, codec::stays_prefix(id, user)) {
            stays.push(codec::stay(&entry.value()?)?);
        }
        if stays.len() != member.stays as usize {
            let (found, expected) = (stays.len(), member.stays);
            return Err(DatabaseError::Damaged(format!(
                "{id}: {user} has {expected} earlier stays, but {found} are stored"
            )));
        }
        Ok(stays)
    }

    /// Passes every pair of a keyspace whose key begins with `prefix` to `take`, as an entry.
    fn each(
        &self,
        keyspace: &fjall::Keyspace,
        prefix: &[u8],
        take: Take<'_>,
        entry: impl Fn(&Self, &[u8], &[u8]) -> Result<Entry, DatabaseError>,
    ) -> io::Result<()> {
        for pair in self.view.prefix(keyspace, prefix) {
            let made = pair.into_inner().map_err(DatabaseError::from).and_then(|(key, value)| {
                entry(self, &key, &value).map_err(|error| {
                    let name = String::from_utf8_lossy(&key).into_owned();
                    DatabaseError::Damaged(format!("{} (key {name:?})", text_of(error)))
                })
            });
            take(made.map_err(text_of))?;
        }
        Ok(())
    }
}
