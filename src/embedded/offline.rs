//! The store of a node that does not run: looked at, exported, imported. The lock keeps a node out meanwhile.

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
    Database, OpenError, Trouble,
    codec::{self, Pair},
    directory::Directory,
    state_key::Place,
};
use crate::store::dump::{
    ConversationLine, DUMP_VERSION, DeviceLine, Entry, Header, KeyLine, LogLine, MarkLine, MemberLine,
    PartitionLine, ReadDumpError, RowLine, WishesLine,
};

pub use self::{
    check::Findings,
    stats::{PartitionStats, Stats},
};

/// The opened store of a stopped node.
pub struct Offline {
    database: Database,
    view: fjall::Snapshot,
    topic: u128,
    // Below the database: the lock goes last.
    directory: Directory,
}

/// Why a stopped node's store could not be worked on; each text names the cure.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// It can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Something in it can't be read.
    #[error("the store is damaged: {0}; `tidegate store check` lists every fault")]
    Damaged(String),
    /// Where the lines go failed.
    #[error("the export could not be written: {0}")]
    Write(io::Error),
    /// What is to be imported is not as it should be; nothing was imported.
    #[error("nothing was imported: {0}")]
    Dump(#[from] ReadDumpError),
    /// All lines were read, but what they make is no sound store; nothing was imported.
    #[error("nothing was imported: {0}; the export was changed or put together: export it again")]
    Unsound(String),
    /// There is something where the import would go.
    #[error("{0} exists already; an import needs a data directory without a store")]
    NotEmpty(PathBuf),
    /// Another import, or what one left.
    #[error("{0} exists: another import runs, or one was cut off; if none runs, remove it and import again")]
    Busy(PathBuf),
    /// The system refused; nothing was imported.
    #[error("nothing was imported: {0} can't be written: {1}")]
    Io(PathBuf, io::Error),
}

/// Takes the entries of a store, or words about one that can't be read.
type Take<'a> = &'a mut dyn FnMut(Result<Entry, String>) -> io::Result<()>;

/// Words about what went wrong below.
fn words(trouble: Trouble) -> String {
    match trouble {
        Trouble::Io(why) | Trouble::Damaged(why) => why,
    }
}

impl From<Trouble> for OfflineError {
    fn from(trouble: Trouble) -> Self {
        Self::Damaged(words(trouble))
    }
}

impl From<fjall::Error> for OfflineError {
    fn from(error: fjall::Error) -> Self {
        Trouble::from(error).into()
    }
}

impl Offline {
    /// Opens the store in that directory, of any format that this program reads, and leaves it in that; makes none.
    ///
    /// # Errors
    /// [`OpenError`] says what to do.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::enter(path, Directory::enter_existing(path)?)
    }

    fn enter(path: &Path, directory: Directory) -> Result<Self, OpenError> {
        let opened = Database::open(&directory).map_err(|trouble| match trouble {
            Trouble::Io(why) => OpenError::Io { path: path.to_owned(), error: io::Error::other(why) },
            Trouble::Damaged(what) => OpenError::Damaged { path: path.to_owned(), what },
        })?;
        let (database, topic) = opened?;
        let view = database.snapshot();
        Ok(Self { view, database, topic: topic.0, directory })
    }

    /// Writes everything as lines ([`crate::store::dump`]).
    ///
    /// # Errors
    /// When something can't be read, or the lines not be written.
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

    /// Hands over everything, in the order of an export. What can't be read is told and passed over.
    fn walk(&self, take: Take<'_>) -> io::Result<()> {
        let lines = Cell::new(0);
        let mut take = |entry: Result<Entry, String>| {
            lines.set(lines.get() + 1);
            take(entry)
        };
        take(Ok(Entry::TidegateExport(Header { version: DUMP_VERSION, topic: self.topic.to_be_bytes() })))?;
        self.each(&self.database.state, b"p", &mut take, |_, key, value| {
            let Place::Standing(number) = Place::of(key)? else { return Err(codec::damaged()) };
            let standing = codec::standing(value)?;
            if standing.topic.0 != self.topic {
                return Err(Trouble::Damaged(format!("partition {number} was archived from another log")));
            }
            Ok(Entry::Partition(PartitionLine::new(number, standing.position, standing.rules)))
        })?;
        self.each(&self.database.state, b"l", &mut take, |_, key, value| {
            let Place::Log(partition, offset) = Place::of(key)? else { return Err(codec::damaged()) };
            Ok(Entry::Log(LogLine { partition, offset, record: value.to_vec() }))
        })?;
        for entry in self.view.prefix(&self.database.state, b"h") {
            let found = entry.into_inner().map_err(Trouble::from);
            let line = found.and_then(|(key, value)| {
                let Place::Head(id) = Place::of(&key)? else { return Err(codec::damaged()) };
                let (head, members) = codec::head(&value)?;
                Ok(ConversationLine::new(id, &head, members))
            });
            match line {
                Ok(line) => {
                    let id = line.id.clone();
                    take(Ok(Entry::Conversation(line)))?;
                    self.conversation(&id, &mut take)?;
                }
                Err(trouble) => take(Err(format!("a head: {}", words(trouble))))?,
            }
        }
        self.each(&self.database.state, &[Pair::Mark as u8], &mut take, |_, key, value| {
            let Place::Mark(user, conversation) = Place::of(key)? else { return Err(codec::damaged()) };
            Ok(Entry::Mark(MarkLine::new(user, conversation, &codec::level(value)?)))
        })?;
        self.each(&self.database.state, b"w", &mut take, |_, key, value| {
            let Place::Wishes(user) = Place::of(key)? else { return Err(codec::damaged()) };
            Ok(Entry::Wishes(WishesLine::new(user, &codec::wishes(value)?)))
        })?;
        self.each(&self.database.keys, b"", &mut take, |_, key, value| {
            let partition = key.first_chunk::<4>().map(|part| u32::from_be_bytes(*part));
            let partition = partition.ok_or_else(codec::damaged)?;
            Ok(Entry::Key(KeyLine::new(partition, codec::key_hash(key)?, codec::key(value)?)))
        })?;
        let end = Entry::End(lines.get());
        take(Ok(end))
    }

    /// Members, devices and rows.
    fn conversation(&self, id: &ConversationId, take: Take<'_>) -> io::Result<()> {
        let state = &self.database.state;
        let members = codec::pair(Pair::Member, id.as_str(), "");
        self.each(state, &members, take, |it, key, value| {
            let Place::Member(_, user) = Place::of(key)? else { return Err(codec::damaged()) };
            let member = codec::member(value)?;
            let stays = it.stays(id, &user, &member)?;
            Ok(Entry::Member(MemberLine::new(user, &member, &stays)))
        })?;
        let devices = [b"d", id.as_str().as_bytes(), b"\0"].concat();
        self.each(state, &devices, take, |_, key, value| {
            let Place::Device(_, user, device) = Place::of(key)? else { return Err(codec::damaged()) };
            let tidegate_protocol::machine::ledger::Device { epoch, next_n } = codec::device(value)?;
            Ok(Entry::Device(DeviceLine { user, device, epoch, next_n }))
        })?;
        let rows = [id.as_str().as_bytes(), b"\0"].concat();
        self.each(&self.database.rows, &rows, take, |_, key, value| {
            let seq = codec::row_seq(key)?;
            let stored = codec::row(seq, value)
                .map_err(|_| Trouble::Damaged(format!("{id}: row {seq} can't be read")))?;
            if stored.row.body.conversation() != Some(id) {
                return Err(Trouble::Damaged(format!("{id}: row {seq} is of another conversation")));
            }
            let no_row = || Trouble::Damaged(format!("{id}: row {seq} is no row of a history"));
            RowLine::new(&stored).map(Entry::Row).ok_or_else(no_row)
        })
    }

    fn stays(&self, id: &ConversationId, user: &UserId, member: &Member) -> Result<Vec<Stay>, Trouble> {
        let mut stays = Vec::new();
        for entry in self.view.prefix(&self.database.state, codec::stays_of(id, user)) {
            stays.push(codec::stay(&entry.value()?)?);
        }
        if stays.len() != member.stays as usize {
            let (found, said) = (stays.len(), member.stays);
            return Err(Trouble::Damaged(format!(
                "{id}: {user} was in {said} times before, {found} are kept"
            )));
        }
        Ok(stays)
    }

    /// Every pair of a keyspace that begins so, as an entry.
    fn each(
        &self,
        keyspace: &fjall::Keyspace,
        prefix: &[u8],
        take: Take<'_>,
        entry: impl Fn(&Self, &[u8], &[u8]) -> Result<Entry, Trouble>,
    ) -> io::Result<()> {
        for pair in self.view.prefix(keyspace, prefix) {
            let made = pair.into_inner().map_err(Trouble::from).and_then(|(key, value)| {
                entry(self, &key, &value).map_err(|trouble| {
                    let name = String::from_utf8_lossy(&key).into_owned();
                    Trouble::Damaged(format!("{} (key {name:?})", words(trouble)))
                })
            });
            take(made.map_err(words))?;
        }
        Ok(())
    }
}
