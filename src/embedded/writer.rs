//! Writer thread of the engine: one batch with one `fdatasync` per archive.
//!
//! A failed sync is never retried: the state of the disk is unknown, so nothing is confirmed any more and the process
//! must end. A full disk or a lack of file descriptors is different: appends stop before that. If it happens nevertheless, the database is
//! reopened once that has ended, and the owner's retry then detects whether its archive was written.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering, mpsc},
    time::{Duration, Instant},
};

use fjall::PersistMode;
use tidegate_protocol::{
    machine::ledger::Delta,
    record::{Position, Rules},
};

use super::{
    Core, Database, DatabaseError, Job, PartitionState, SPILL_AFTER, Space,
    archive::{self, WriteCache},
    batch::WriteBatch,
    codec,
    commit_error::{self, CommitError, REOPEN_BYTES_MIN},
    pending_confirms::PendingConfirms,
    sweep::KeySweep,
};
use crate::{
    bus::TopicId,
    store::{Fence, StoreError, Takeover, feed::FeedState},
};

/// Longest wait for a job before pending appends and other maintenance are handled.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(20);

/// Stored keys loaded into each key filter after a job.
const FILTER_KEYS_PER_JOB: usize = 512;
/// Stored keys loaded into each key filter when no job arrives.
const FILTER_KEYS_WHEN_IDLE: usize = 16_384;

/// Interval of the checks of free disk space.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Writer {
    pub(super) core: Arc<Core>,
    pub(super) partitions: HashMap<u32, PartitionState>,
    /// Feed of each partition.
    pub(super) feeds: HashMap<u32, FeedState>,
    cache: WriteCache,
    space_checked_at: Instant,
    free_bytes: u64,
    /// Whether a commit met a full disk: the database accepts no writes until it is reopened. Reads still work.
    is_stuck: bool,
    /// Bytes at the end of the journal that are not synced.
    pub(super) unsynced: u64,
    /// Replies that wait for a sync of those bytes.
    pub(super) confirms: PendingConfirms,
    key_sweep: KeySweep,
}

fn full() -> StoreError {
    StoreError::Unavailable("the disk is full".to_owned())
}

impl Writer {
    pub(super) fn new(core: Arc<Core>) -> Result<Self, DatabaseError> {
        let space_checked_at = Instant::now();
        let mut writer = Self {
            core,
            partitions: HashMap::new(),
            feeds: HashMap::new(),
            cache: WriteCache::default(),
            space_checked_at,
            free_bytes: u64::MAX,
            is_stuck: false,
            unsynced: 0,
            confirms: PendingConfirms::default(),
            key_sweep: KeySweep::default(),
        };
        writer.reload()?;
        writer.fill_key_filters(FILTER_KEYS_PER_JOB);
        writer.check_space();
        Ok(writer)
    }

    /// Reads the partitions' states and logs from the database: a failed write may have reached the disk nevertheless.
    fn reload(&mut self) -> Result<(), DatabaseError> {
        self.cache.clear();
        self.partitions.clear();
        // Opening the database has synced its journal.
        self.unsynced = 0;
        self.key_sweep = KeySweep::default();
        let core = Arc::clone(&self.core);
        let database = core.database.read();
        let Some(database) = &*database else { return Ok(()) };
        for partition in 0..core.config.partitions {
            let state = database.partition_state(partition)?;
            self.feeds.insert(partition, database.feed_state(partition)?);
            let position = state.map_or(0, |state| state.position.offset);
            let records = database.log(partition)?;
            if let Some(mut tail) = core.tail(partition)
                && !tail.reload(position, records)
            {
                return Err(DatabaseError::Damaged(format!("log of partition {partition} lost records")));
            }
            if let Some(mut filter) = core.key_filter(partition) {
                filter.set_owner(state.as_ref().map(|it| (it.fence, it.position)));
            }
            self.partitions.extend(state.map(|state| (partition, state)));
        }
        Ok(())
    }

    /// Handles jobs until the job queue is closed.
    pub(super) fn run(mut self, inbox: mpsc::Receiver<Job>) {
        self.remove_over_revocations();
        loop {
            let wait = self.confirms.due_in().unwrap_or(MAINTENANCE_INTERVAL).min(MAINTENANCE_INTERVAL);
            match inbox.recv_timeout(wait) {
                Ok(job) => {
                    self.handle(job);
                    self.fill_key_filters(FILTER_KEYS_PER_JOB);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => self.fill_key_filters(FILTER_KEYS_WHEN_IDLE),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if self.space_checked_at.elapsed() >= SPACE_CHECK_INTERVAL {
                self.check_space();
            }
            self.spill(SPILL_AFTER);
            if self.confirms.due_in().is_some_and(|due| due.is_zero()) {
                self.sync();
            }
            self.sweep_keys();
        }
        self.spill(Duration::ZERO);
        self.sync();
    }

    /// Handles a job and replies. A caller that no longer waits retries by itself.
    fn handle(&mut self, job: Job) {
        match job {
            Job::TakeOver { partition, fence, topic, reply } => {
                reply.send(self.take_over(partition, fence, topic)).ok();
            }
            Job::Archive { partition, fence, delta, reply } => {
                reply.send(self.archive(partition, fence, &delta)).ok();
            }
            // Its caller was answered without it, and may count on that.
            Job::Marks { reply, .. } if reply.is_closed() => {}
            Job::Marks { marks, reply } => match self.save_marks(&marks) {
                Ok(()) if self.unsynced == 0 => drop(reply.send(Ok(()))),
                Ok(()) => self.confirms.add(reply, ()),
                Err(error) => drop(reply.send(Err(error))),
            },
            Job::Settings { user, now, reply } => self.change_settings(&user, now, reply),
            Job::Revoke(revocation, now_ms, reply) => {
                reply.send(self.revoke(&revocation, now_ms)).ok();
            }
            Job::Blocks(edit, reply) => match self.edit_blocks(&edit) {
                Ok(outcome) => self.confirms.add(reply, outcome),
                Err(error) => drop(reply.send(Err(error))),
            },
            Job::Forget(keys, reply) => self.forget(&keys, reply),
            Job::Feed(job) => self.change_feed(job),
            Job::Guard(edits, reply) => drop(reply.send(self.change_guard(&edits))),
            Job::Spill(reply) => {
                if self.spill(Duration::ZERO) {
                    reply.send(()).ok();
                }
            }
        }
    }

    /// Removes the next few expired keys. Removals that a crash undoes are repeated by a later sweep.
    fn sweep_keys(&mut self) {
        if self.check_usable().is_err() || !self.key_sweep.is_due() {
            return;
        }
        let expired: Vec<_> =
            self.partitions.iter().map(|(number, it)| (*number, it.rules.keys_from)).collect();
        for (partition, keys_from) in expired {
            if !self.key_sweep.has_work(partition, keys_from) {
                continue;
            }
            let mut sweep = std::mem::take(&mut self.key_sweep);
            let mut step = None;
            let swept = self.write(PersistMode::Buffer, |database, _, batch| {
                step = sweep.stage(database, partition, keys_from, batch)?;
                Ok(())
            });
            if swept.is_ok() {
                sweep.done(partition, step);
            }
            self.key_sweep = sweep;
        }
    }

    /// Loads the next stored keys into the key filters. A read error is only logged: a lookup of the keys reports it.
    fn fill_key_filters(&self, count: usize) {
        for partition in 0..self.core.config.partitions {
            let Some(mut filter) = self.core.key_filter(partition).filter(|it| it.is_partial()) else {
                continue;
            };
            let database = self.core.database.read();
            let loaded = database.as_ref().map(|database| filter.load_next(database, partition, count));
            if let Some(Err(error)) = loaded {
                tracing::debug!(?error, "reading stored keys failed; retrying");
            }
        }
    }

    fn set_state(&mut self, partition: u32, state: PartitionState) {
        self.partitions.insert(partition, state);
        if let Some(mut filter) = self.core.key_filter(partition) {
            filter.set_owner(Some((state.fence, state.position)));
            filter.expire(state.rules.keys_from);
        }
    }

    pub(super) fn check_usable(&self) -> Result<(), StoreError> {
        if let Some(why) = self.core.fatal.borrow().clone() {
            return Err(StoreError::Broken(why));
        }
        if self.is_stuck { Err(full()) } else { Ok(()) }
    }

    fn take_over(&mut self, partition: u32, fence: Fence, topic: TopicId) -> Result<Takeover, StoreError> {
        self.check_usable()?;
        let position = Position::START;
        let new = PartitionState { topic, fence, position, rules: Rules::default() };
        let mut state = self.partitions.get(&partition).copied().unwrap_or(new);
        if state.position == Position::START {
            state.topic = topic;
        }
        if state.topic != topic {
            return Err(StoreError::LogReplaced(state.topic));
        }
        state.fence = fence;
        self.write(PersistMode::SyncData, |database, _, batch| {
            database.put_partition_state(batch, partition, &state);
            Ok(())
        })?;
        self.set_state(partition, state);
        Ok(Takeover { position: state.position, rules: state.rules })
    }

    fn archive(&mut self, partition: u32, fence: Fence, delta: &Delta) -> Result<(), StoreError> {
        self.check_usable()?;
        let state = self.partitions.get(&partition).filter(|it| it.fence == fence);
        let state = *state.ok_or(StoreError::Fenced)?;
        let done = state.position == delta.to && delta.from != delta.to;
        if !done && state.position != delta.from {
            return Err(StoreError::PositionMismatch(state.position));
        }
        let mut last = false;
        if !done {
            let state = PartitionState { position: delta.to, rules: delta.rules, ..state };
            let mut feed = self.feeds.get(&partition).copied().unwrap_or_default();
            let core = Arc::clone(&self.core);
            let writes_feed = core.writes_feed.load(Ordering::Relaxed);
            if let Some(mut filter) = core.key_filter(partition) {
                delta.keys.iter().for_each(|(hash, key)| filter.add(hash, key.offset));
            }
            self.write(PersistMode::SyncData, |database, cache, batch| {
                archive::stage(database, cache, partition, delta, batch)?;
                database.put_partition_state(batch, partition, &state);
                feed = archive::stage_feed(database, partition, feed, delta, writes_feed, batch);
                if let Some(tail) = core.tail(partition) {
                    for offset in tail.obsolete(delta.to.offset) {
                        batch.remove(&database.state, codec::log_key(partition, offset));
                    }
                    let end = delta.to.offset.checked_sub(1);
                    if let Some((end, bytes)) = end.and_then(|end| Some((end, tail.at(end)?))) {
                        batch.insert(&database.state, codec::log_key(partition, end), &bytes[..]);
                        last = true;
                    }
                }
                Ok(())
            })?;
            self.set_state(partition, state);
            self.feeds.insert(partition, feed);
        }
        if let Some(mut tail) = self.core.tail(partition) {
            tail.mark_archived(delta.to.offset, last);
        }
        self.core.notify_moved();
        Ok(())
    }

    /// Writes the logs whose oldest pending append is at least `age` old; returns false if a write failed.
    fn spill(&mut self, age: Duration) -> bool {
        let core = Arc::clone(&self.core);
        let mut all = true;
        for partition in 0..core.config.partitions {
            let Some(tail) = core.tail(partition) else { continue };
            if tail.since().is_none_or(|since| since.elapsed() < age) {
                continue;
            }
            let waiting: Vec<_> = tail.waiting().map(|(offset, bytes)| (offset, bytes.clone())).collect();
            drop(tail);
            let Some((end, _)) = waiting.last() else { continue };
            let to = end + 1;
            let written = self.check_usable().and_then(|()| {
                self.write(PersistMode::SyncData, |database, _, batch| {
                    for (offset, bytes) in &waiting {
                        batch.insert(&database.state, codec::log_key(partition, *offset), &bytes[..]);
                    }
                    Ok(())
                })
            });
            all &= written.is_ok();
            if written.is_ok()
                && let Some(mut tail) = core.tail(partition)
            {
                tail.mark_spilled(to);
            }
            core.notify_moved();
        }
        all
    }

    /// Commits what `stage` puts into a batch, as a whole or not at all; syncs it unless `mode` is `Buffer`.
    pub(super) fn write(
        &mut self,
        mode: PersistMode,
        stage: impl FnOnce(&Database, &mut WriteCache, &mut WriteBatch) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let core = Arc::clone(&self.core);
        let committed = {
            let database = core.database.read();
            let Some(database) = &*database else { return Err(full()) };
            let mut batch = WriteBatch::new(database, mode, self.unsynced);
            if let Err(error) = stage(database, &mut self.cache, &mut batch) {
                self.cache.clear();
                if let StoreError::Broken(why) = &error {
                    self.break_store(why.clone());
                }
                return Err(error);
            }
            let disk = &core.config.disk;
            let written = disk.before_commit().map_err(fjall::Error::Io).and_then(|()| batch.commit());
            match mode {
                PersistMode::Buffer => written,
                _ => written.and_then(|bytes| disk.after_sync().map(|()| bytes).map_err(fjall::Error::Io)),
            }
        };
        match committed.map_err(|error| CommitError::of(&error, &self.core.config)) {
            // An empty batch is not written, so it synced nothing.
            Ok(0) => Ok(()),
            Ok(bytes) if mode == PersistMode::Buffer => {
                self.unsynced += bytes;
                Ok(())
            }
            Ok(_) => {
                self.synced();
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Confirms all writes that waited for a sync.
    fn synced(&mut self) {
        self.unsynced = 0;
        self.confirms.confirm();
    }

    /// Syncs unsynced writes, if a reply waits for that.
    fn sync(&mut self) {
        if self.confirms.due_in().is_none() {
            return;
        }
        let synced = {
            let database = self.core.database.read();
            let Some(database) = &*database else { return };
            let disk = &self.core.config.disk;
            let persisted = disk
                .before_commit()
                .map_err(fjall::Error::Io)
                .and_then(|()| database.fjall.persist(PersistMode::SyncData));
            persisted.and_then(|()| disk.after_sync().map_err(fjall::Error::Io))
        };
        match synced.map_err(|error| CommitError::of(&error, &self.core.config)) {
            Ok(()) => self.synced(),
            Err(error) => drop(self.fail(error)),
        }
    }

    fn fail(&mut self, error: CommitError) -> StoreError {
        match error {
            CommitError::Short(why) => {
                self.cache.clear();
                tracing::error!(
                    why,
                    "disk full or no descriptor free; refusing all writes until there is one"
                );
                self.core.set_space(Space::Nothing);
                self.is_stuck = true;
                let error = StoreError::Unknown(format!("the store can't write now: {why}"));
                self.confirms.fail(&error);
                self.fail_waiting();
                error
            }
            CommitError::Fatal(why) => {
                self.break_store(why.clone());
                StoreError::Broken(why)
            }
        }
    }

    fn break_store(&mut self, why: String) {
        tracing::error!(why, "store broken; the node stops");
        // A later successful sync would not prove that these writes are on the disk.
        self.confirms.fail(&StoreError::Broken(why.clone()));
        self.core.fatal.send_replace(Some(why));
        self.fail_waiting();
    }

    fn fail_waiting(&self) {
        for partition in 0..self.core.config.partitions {
            if let Some(mut tail) = self.core.tail(partition) {
                tail.fail();
            }
        }
        self.core.notify_moved();
    }

    fn free_now(&self) -> u64 {
        let config = &self.core.config;
        config.disk.free(&config.path).unwrap_or(u64::MAX)
    }

    /// Stops appends while space is short; reopens a stuck database when there is enough.
    fn check_space(&mut self) {
        self.space_checked_at = Instant::now();
        self.free_bytes = self.free_now();
        let minimum = self.core.config.free_bytes_min;
        let was_full = self.core.space() != Space::Enough;
        // Slightly above the limit, so that appends do not stop and resume in quick alternation.
        let enough = match (self.is_stuck, was_full) {
            (true, _) => minimum.saturating_add(minimum / 16).max(REOPEN_BYTES_MIN),
            (false, true) => minimum.saturating_add(minimum / 16),
            (false, false) => minimum,
        };
        if self.free_bytes < enough {
            if !was_full {
                tracing::warn!(free = self.free_bytes, minimum, "disk nearly full; refusing sends");
            }
            // The lower half of the reserve is for retention.
            let fits_retention = !self.is_stuck && self.free_bytes >= minimum / 2;
            self.core.set_space(if fits_retention { Space::Short } else { Space::Nothing });
            return;
        }
        if was_full && self.core.fatal.borrow().is_none() && self.reopen() {
            tracing::warn!(free = self.free_bytes, "disk space available again; accepting sends");
            self.core.set_space(Space::Enough);
        }
    }

    fn reopen(&mut self) -> bool {
        if !self.is_stuck {
            return true;
        }
        let core = Arc::clone(&self.core);
        let mut opened = core.database.write();
        // Close the old database first: it holds fjall's lock.
        *opened = None;
        match Database::open(&core.directory) {
            Ok(Ok((database, _))) => {
                *opened = Some(database);
                drop(opened);
                self.is_stuck = false;
                match self.reload() {
                    Ok(()) => {}
                    Err(error) if commit_error::lacks_descriptors(&core.config.path) => {
                        tracing::warn!(?error, "reading the reopened store failed; retrying");
                        self.is_stuck = true;
                        return false;
                    }
                    Err(error) => self.break_store(format!("{error:?}")),
                }
                core.notify_moved();
                true
            }
            Ok(Err(error)) => {
                drop(opened);
                self.break_store(error.to_string());
                false
            }
            // Possibly the disk is full again; the next space check retries.
            Err(error) => {
                tracing::warn!(?error, "reopening the store failed; retrying");
                false
            }
        }
    }
}
