//! Fills a new store from an export: beside its place first, checked there, then moved into it.

use std::{
    fs::{self, DirBuilder},
    io::{self, BufRead},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use fjall::PersistMode;
use tidegate_protocol::id::ConversationId;

use super::{Database, Directory, Entry, Offline, OfflineError, Pair, codec};
use crate::{
    bus::TopicId,
    embedded::{Standing, batch::WriteBatch},
    private,
    store::Fence,
};

/// Entries of one write.
const BATCH: usize = 4_096;

/// Where the import is while it is not whole; gone when it ends, unless it was moved.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        match fs::remove_dir_all(&self.0) {
            Ok(()) => {}
            // Moved into its place.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, draft = %self.0.display(), "an import left something behind")
            }
        }
    }
}

impl Offline {
    /// Reads an export into a new store at `path`, or with `dry` only says whether that would work. Gives the number
    /// of lines. All of it or nothing is there afterwards, also after a crash.
    ///
    /// # Errors
    /// Names the line and the cure; `path` is as it was before.
    pub fn import(path: &Path, from: &mut dyn BufRead, dry: bool) -> Result<u64, OfflineError> {
        let at = |error| OfflineError::Io(path.to_owned(), error);
        let name = path.file_name().ok_or_else(|| at(io::ErrorKind::InvalidInput.into()))?;
        if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(OfflineError::NotEmpty(path.to_owned()));
        }
        let data = path.parent().ok_or_else(|| at(io::ErrorKind::InvalidInput.into()))?;
        private::create_dir_all(data).map_err(at)?;
        let mut draft = name.to_owned();
        draft.push(".import");
        let draft = data.join(draft);
        match DirBuilder::new().mode(0o700).create(&draft) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(OfflineError::Busy(draft));
            }
            Err(error) => return Err(at(error)),
        }
        let draft = Draft(draft);
        private::enter(&draft.0).map_err(at)?;
        let store = Self::enter(&draft.0, Directory::enter(&draft.0)?)?;
        let lines = store.fill(from)?;
        drop(store);
        let mut first = None;
        let store = Self::open(&draft.0)?;
        store.check(&mut |what| {
            first.get_or_insert(what);
        });
        drop(store);
        if let Some(what) = first {
            return Err(OfflineError::Unsound(what));
        }
        if !dry {
            fs::rename(&draft.0, path).map_err(at)?;
            fs::File::open(data).and_then(|data| data.sync_all()).map_err(at)?;
        }
        Ok(lines)
    }

    fn fill(&self, from: &mut dyn BufRead) -> Result<u64, OfflineError> {
        let mut filling = Filling {
            database: &self.database,
            topic: TopicId(self.topic),
            conversation: None,
            batch: WriteBatch::new(&self.database, PersistMode::Buffer, 0),
            staged: 0,
        };
        let lines = crate::store::dump::read(from, |entry| filling.take(entry))?;
        filling.batch.commit()?;
        self.database.fjall.persist(PersistMode::SyncAll)?;
        Ok(lines)
    }
}

/// A store that is being filled.
struct Filling<'a> {
    database: &'a Database,
    topic: TopicId,
    conversation: Option<ConversationId>,
    batch: WriteBatch,
    staged: usize,
}

impl Filling<'_> {
    fn take(&mut self, entry: Entry) -> io::Result<()> {
        self.stage(entry).map_err(io::Error::other)?;
        self.staged += 1;
        if self.staged >= BATCH {
            self.staged = 0;
            let full =
                std::mem::replace(&mut self.batch, WriteBatch::new(self.database, PersistMode::Buffer, 0));
            full.commit().map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn stage(&mut self, entry: Entry) -> Result<(), String> {
        let (state, batch) = (&self.database.state, &mut self.batch);
        let here = || self.conversation.as_ref().ok_or("the line belongs to no conversation");
        match entry {
            Entry::TidegateExport(it) => {
                self.topic = TopicId(u128::from_be_bytes(it.topic));
                batch.insert(state, codec::TOPIC, it.topic);
            }
            Entry::Partition(it) => {
                let (position, rules) = it.parts();
                // Nobody's: who takes over brings a fence of its own.
                let standing = Standing { topic: self.topic, fence: Fence(0), position, rules };
                self.database.put_standing(batch, it.number, &standing);
                batch.insert(state, codec::swept_key(it.number), rules.keys_from.to_be_bytes());
            }
            Entry::Log(it) => batch.insert(state, codec::log_key(it.partition, it.offset), it.record),
            Entry::Conversation(it) => {
                batch.insert(state, codec::head_key(&it.id), codec::put_head(&it.head(), it.members));
                self.conversation = Some(it.id);
            }
            Entry::Member(it) => {
                let (id, member) = (here()?, it.member());
                let (conversation, user) = (id.as_str(), it.user.as_str());
                batch.insert(
                    state,
                    codec::pair(Pair::Member, conversation, user),
                    codec::put_member(&member),
                );
                batch.insert(state, codec::pair(Pair::OfUser, user, conversation), []);
                for stay in it.stays() {
                    batch.insert(state, codec::stay_key(id, &it.user, &stay), codec::put_stay(&stay));
                }
            }
            Entry::Device(it) => {
                let key = codec::device_key(here()?.as_str(), it.user.as_str(), it.device.as_str());
                batch.insert(state, key, codec::put_device(&it.row()));
            }
            Entry::Row(it) => {
                let id = here()?;
                let stored = it.stored(id).map_err(|error| error.to_string())?;
                let value = codec::put_row(&stored.row, stored.recalled).map_err(super::words)?;
                batch.insert(&self.database.rows, codec::row_key(id, it.seq), value);
            }
            Entry::Mark(it) => {
                let key = codec::mark_key(&it.conversation, &it.user);
                batch.insert(state, key, codec::put_level(&it.level()));
            }
            Entry::Wishes(it) => {
                let wishes = it.wishes().map_err(|error| error.to_string())?;
                batch.insert(state, codec::wishes_key(&it.user), codec::put_wishes(&wishes));
            }
            Entry::Key(it) => {
                let key = codec::key_key(it.partition, &it.key);
                batch.insert(&self.database.keys, key, codec::put_key(&it.row()));
            }
            Entry::End(_) => {}
        }
        Ok(())
    }
}
