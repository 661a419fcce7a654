//! Import of an export into a new store: written next to its final path, checked there, then renamed.

use std::{
    fs::{self, DirBuilder},
    io::{self, BufRead},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use fjall::PersistMode;
use tidegate_protocol::id::{ConversationId, UserId};

use super::{Database, Directory, Entry, Offline, OfflineError, Pair, codec, text_of};
use crate::{
    bus::TopicId,
    embedded::{PartitionState, batch::WriteBatch, personal::stage_guard_row},
    private,
    store::{
        Fence, GuardKind,
        dump::{BlockLine, GuardLine},
        feed::FeedState,
        guard::GuardCounts,
    },
};

/// Entries written in one batch.
const BATCH_ENTRIES: usize = 4_096;

/// Directory of an unfinished import, removed on drop unless it was renamed.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        match fs::remove_dir_all(&self.0) {
            Ok(()) => {}
            // Renamed to its final path.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, draft = %self.0.display(), "removing the unfinished import failed; remove it by hand")
            }
        }
    }
}

impl Offline {
    /// Imports an export into a new store at `path`, or with `dry` only checks it, and returns the number of lines.
    ///
    /// The import is complete or absent afterwards, also after a crash.
    ///
    /// # Errors
    /// Names the line and the cure; `path` is unchanged.
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
        let mut writer = ImportWriter {
            database: &self.database,
            topic: TopicId(self.topic),
            conversation: None,
            revocations: 0,
            guard_version: 0,
            guard_counts: GuardCounts::new(),
            batch: WriteBatch::new(&self.database, PersistMode::Buffer, 0),
            staged: 0,
            blocks: 0,
            last_list: None,
        };
        let lines = crate::store::dump::read(from, |entry| writer.take(entry))?;
        writer.batch.commit()?;
        self.database.fjall.persist(PersistMode::SyncAll)?;
        Ok(lines)
    }
}

/// Writer of imported entries into a new store.
struct ImportWriter<'a> {
    database: &'a Database,
    topic: TopicId,
    conversation: Option<ConversationId>,
    /// Number of revocations so far.
    revocations: u64,
    /// Number of the guard's entries so far, which is their version.
    guard_version: u64,
    /// Number of the guard's entries so far, by kind.
    guard_counts: GuardCounts,
    batch: WriteBatch,
    staged: usize,
    /// Number of blocks, which is their version.
    blocks: u64,
    /// User and length of the last block list.
    last_list: Option<(UserId, u64)>,
}

impl ImportWriter<'_> {
    fn take(&mut self, entry: Entry) -> io::Result<()> {
        self.stage(entry).map_err(io::Error::other)?;
        self.staged += 1;
        if self.staged >= BATCH_ENTRIES {
            self.staged = 0;
            let full =
                std::mem::replace(&mut self.batch, WriteBatch::new(self.database, PersistMode::Buffer, 0));
            full.commit().map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn block(&mut self, it: &BlockLine) {
        self.blocks += 1;
        let count =
            self.last_list.take().filter(|(user, _)| *user == it.user).map_or(1, |(_, count)| count + 1);
        let (state, batch) = (&self.database.state, &mut self.batch);
        let key = codec::pair(Pair::Block, it.user.as_str(), it.other.as_str());
        batch.insert(state, key, codec::put_block(self.blocks, it.time));
        let pair = codec::put_block_pair(&it.user, &it.other);
        batch.insert(state, codec::block_version_key(self.blocks), pair);
        batch.insert(state, codec::block_count_key(&it.user), codec::put_number(count));
        batch.insert(state, codec::BLOCK_VERSION, codec::put_number(self.blocks));
        self.last_list = Some((it.user.clone(), count));
    }

    fn guard(&mut self, it: GuardLine) -> Result<(), String> {
        it.entry()?;
        let count = self.guard_counts.entry(it.kind).or_default();
        *count += 1;
        if GuardKind::from_number(it.kind).is_none_or(|kind| *count > kind.entries_max()) {
            return Err(format!("the guard has too many entries of kind {}", it.kind));
        }
        self.guard_version += 1;
        let (version, value) = (self.guard_version, Some(it.value.into()));
        let row = codec::GuardValue { version, until_ms: it.until_ms, value };
        stage_guard_row(self.database, codec::guard_key(it.kind, &it.name), &row, &mut self.batch)
            .map_err(text_of)?;
        let count_key = codec::guard_count_key(it.kind);
        self.batch.insert(&self.database.state, count_key, codec::put_number(*count));
        Ok(())
    }

    fn stage(&mut self, entry: Entry) -> Result<(), String> {
        let (state, batch) = (&self.database.state, &mut self.batch);
        let conversation_id = || self.conversation.as_ref().ok_or("the line belongs to no conversation");
        match entry {
            Entry::TidegateExport(it) => {
                self.topic = TopicId(u128::from_be_bytes(it.topic));
                batch.insert(state, codec::TOPIC, it.topic);
            }
            Entry::Partition(it) => {
                let (position, rules) = it.parts();
                // No owner has this fence: a take-over brings its own.
                let partition_state = PartitionState { topic: self.topic, fence: Fence(0), position, rules };
                self.database.put_partition_state(batch, it.number, &partition_state);
                batch.insert(state, codec::swept_key(it.number), rules.keys_from.to_be_bytes());
                self.database.put_feed_state(batch, it.number, &FeedState::imported(position));
            }
            Entry::Log(it) => batch.insert(state, codec::log_key(it.partition, it.offset), it.record),
            Entry::Conversation(it) => {
                batch.insert(state, codec::head_key(&it.id), codec::put_head(&it.head(), it.members));
                self.conversation = Some(it.id);
            }
            Entry::Member(it) => {
                let (id, member) = (conversation_id()?, it.member());
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
                let key =
                    codec::device_key(conversation_id()?.as_str(), it.user.as_str(), it.device.as_str());
                batch.insert(state, key, codec::put_device(&it.row()));
            }
            Entry::Row(it) => {
                let id = conversation_id()?;
                let stored = it.stored(id).map_err(|error| error.to_string())?;
                let value = codec::put_row(&stored).map_err(super::text_of)?;
                batch.insert(&self.database.rows, codec::row_key(id, it.seq), value);
            }
            Entry::Mark(it) => {
                let key = codec::mark_key(&it.conversation, &it.user);
                batch.insert(state, key, codec::put_user_state(&it.state()));
            }
            Entry::Settings(it) => {
                let settings = it.settings().map_err(|error| error.to_string())?;
                batch.insert(state, codec::user_settings_key(&it.user), codec::put_user_settings(&settings));
            }
            Entry::Revocation(it) => {
                let revocation = it.revocation()?;
                self.revocations += 1;
                let value = codec::put_revocation(self.revocations, &revocation);
                batch.insert(state, codec::revocation_key(&revocation), value);
                batch.insert(state, codec::NEWEST_REVOCATION, codec::put_number(self.revocations));
            }
            Entry::Block(it) => self.block(&it),
            Entry::Guard(it) => self.guard(it)?,
            Entry::Key(it) => {
                let key = codec::key_key(it.partition, &it.key);
                batch.insert(&self.database.keys, key, codec::put_key(&it.row()));
            }
            Entry::End(_) => {}
        }
        Ok(())
    }
}
