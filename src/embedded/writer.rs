//! The one thread that writes: one batch and one `fdatasync` for all that an archive brings.
//!
//! A failed sync is never tried again: nobody can say what is on the disk then, so nothing is confirmed any more and
//! the process is told to end. A full disk is no such failure: appends stop before it is full, and if it gets full all
//! the same, the database is closed and opened again once there is space, and the owner's retry finds out.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, PoisonError, mpsc},
    time::{Duration, Instant},
};

use fjall::PersistMode;
use tidegate_protocol::{
    machine::ledger::Delta,
    record::{Position, Rules},
};

use super::{
    Core, Database, Job, SPILL_AFTER, Space, Standing, Trouble,
    archive::{self, Known},
    batch::WriteBatch,
    codec,
    pending_confirms::Kept,
    sweep::KeySweep,
};
use crate::{
    bus::TopicId,
    store::{Fence, StoreError, TakenOver},
};

/// How often free space and waiting appends are looked at.
const TICK: Duration = Duration::from_millis(20);

/// Stored keys that memory takes in after a job, and when there is none.
const TAKEN_BUSY: usize = 512;
const TAKEN_IDLE: usize = 16_384;

/// Between two looks at the free space.
const SPACE_EVERY: Duration = Duration::from_millis(100);

/// A database that met a full disk is opened again with at least this much free: its memtables must go to tables.
const REOPEN_BYTES: u64 = 64 << 20;

pub(super) struct Writer {
    core: Arc<Core>,
    standings: HashMap<u32, Standing>,
    known: Known,
    looked_at_space: Instant,
    /// Free bytes at that time.
    free: u64,
    /// A commit met a full disk: the database takes nothing until it is opened again. It still reads.
    stuck: bool,
    /// Bytes at the end of the journal that no sync took along yet.
    unsynced: u64,
    /// Who waits for that sync.
    kept: Kept,
    keys: KeySweep,
}

fn full() -> StoreError {
    StoreError::Unavailable("the disk is full".to_owned())
}

/// Why a commit did not happen, or may not have.
enum CommitError {
    Full(String),
    Fatal(String),
}

impl Writer {
    pub(super) fn new(core: Arc<Core>) -> Result<Self, Trouble> {
        let looked_at_space = Instant::now();
        let mut writer = Self {
            core,
            standings: HashMap::new(),
            known: Known::default(),
            looked_at_space,
            free: u64::MAX,
            stuck: false,
            unsynced: 0,
            kept: Kept::default(),
            keys: KeySweep::default(),
        };
        writer.learn()?;
        writer.take_keys_in(TAKEN_BUSY);
        writer.look_at_space();
        Ok(writer)
    }

    /// Reads where the partitions stand, and what the log holds: a write that failed may have come to the disk all the
    /// same.
    fn learn(&mut self) -> Result<(), Trouble> {
        self.known.clear();
        self.standings.clear();
        // Opening syncs.
        self.unsynced = 0;
        self.keys = KeySweep::default();
        let core = Arc::clone(&self.core);
        let database = core.database.read().unwrap_or_else(PoisonError::into_inner);
        let Some(database) = &*database else { return Ok(()) };
        for partition in 0..core.config.partitions {
            let standing = database.standing(partition)?;
            let position = standing.map_or(0, |standing| standing.position.offset);
            let kept = database.log(partition)?;
            if let Some(mut tail) = core.tail(partition)
                && !tail.learn(position, kept)
            {
                return Err(Trouble::Damaged(format!("the log of partition {partition} has lost records")));
            }
            if let Some(mut seen) = core.seen(partition) {
                seen.stands(standing.as_ref().map(|it| (it.fence, it.position)));
            }
            self.standings.extend(standing.map(|standing| (partition, standing)));
        }
        Ok(())
    }

    /// Works until nobody can ask any more.
    pub(super) fn run(mut self, inbox: mpsc::Receiver<Job>) {
        loop {
            match inbox.recv_timeout(self.kept.due_in().map_or(TICK, |due| due.min(TICK))) {
                Ok(job) => {
                    self.answer(job);
                    self.take_keys_in(TAKEN_BUSY);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => self.take_keys_in(TAKEN_IDLE),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if self.looked_at_space.elapsed() >= SPACE_EVERY {
                self.look_at_space();
            }
            self.spill(SPILL_AFTER);
            if self.kept.due_in().is_some_and(|due| due.is_zero()) {
                self.sync();
            }
            self.sweep_keys();
        }
        self.spill(Duration::ZERO);
        self.sync();
    }

    /// An answer that nobody waits for any more is fine: who asked will ask again.
    fn answer(&mut self, job: Job) {
        match job {
            Job::TakeOver { partition, fence, topic, reply } => {
                reply.send(self.take_over(partition, fence, topic)).ok();
            }
            Job::Archive { partition, fence, delta, reply } => {
                reply.send(self.archive(partition, fence, &delta)).ok();
            }
            Job::Marks { marks, reply } => match self.save_marks(&marks) {
                Ok(()) if self.unsynced == 0 => drop(reply.send(Ok(()))),
                Ok(()) => self.kept.add(reply, ()),
                Err(error) => drop(reply.send(Err(error))),
            },
            Job::Wishes { user, now, reply } => match self.save_wishes(&user, now) {
                Ok(wishes) => self.kept.add(reply, wishes),
                Err(error) => drop(reply.send(Err(error))),
            },
            Job::Spill(reply) => {
                if self.spill(Duration::ZERO) {
                    reply.send(()).ok();
                }
            }
        }
    }

    /// Takes the next few keys away that the rules forget. What of it a crash undoes is swept again.
    fn sweep_keys(&mut self) {
        if self.usable().is_err() || !self.keys.is_due() {
            return;
        }
        let forgets: Vec<_> =
            self.standings.iter().map(|(number, it)| (*number, it.rules.keys_from)).collect();
        for (partition, keys_from) in forgets {
            if !self.keys.has_work(partition, keys_from) {
                continue;
            }
            let mut sweep = std::mem::take(&mut self.keys);
            let mut step = None;
            let swept = self.write(PersistMode::Buffer, |database, _, batch| {
                step = sweep.stage(database, partition, keys_from, batch)?;
                Ok(())
            });
            if swept.is_ok() {
                sweep.done(partition, step);
            }
            self.keys = sweep;
        }
    }

    /// Lets memory learn the next few of the stored keys. If they can't be read, whoever needs them will say so.
    fn take_keys_in(&self, count: usize) {
        for partition in 0..self.core.config.partitions {
            let Some(mut seen) = self.core.seen(partition).filter(|seen| seen.is_behind()) else { continue };
            let database = self.core.database.read().unwrap_or_else(PoisonError::into_inner);
            let taken = database.as_ref().map(|database| seen.take_in(database, partition, count));
            if let Some(Err(trouble)) = taken {
                tracing::debug!(?trouble, "the stored keys can't be read now");
            }
        }
    }

    /// Notes where a partition stands now: for the writer, and for who asks memory.
    fn stand(&mut self, partition: u32, standing: Standing) {
        self.standings.insert(partition, standing);
        if let Some(mut seen) = self.core.seen(partition) {
            seen.stands(Some((standing.fence, standing.position)));
            seen.forget(standing.rules.keys_from);
        }
    }

    pub(super) fn usable(&self) -> Result<(), StoreError> {
        if let Some(why) = self.core.fatal.borrow().clone() {
            return Err(StoreError::Broken(why));
        }
        if self.stuck { Err(full()) } else { Ok(()) }
    }

    fn take_over(&mut self, partition: u32, fence: Fence, topic: TopicId) -> Result<TakenOver, StoreError> {
        self.usable()?;
        let position = Position::START;
        let new = Standing { topic, fence, position, rules: Rules::default() };
        let mut standing = self.standings.get(&partition).copied().unwrap_or(new);
        if standing.position == Position::START {
            standing.topic = topic;
        }
        if standing.topic != topic {
            return Err(StoreError::LogReplaced(standing.topic));
        }
        standing.fence = fence;
        self.write(PersistMode::SyncData, |database, _, batch| {
            database.put_standing(batch, partition, &standing);
            Ok(())
        })?;
        self.stand(partition, standing);
        Ok(TakenOver { position: standing.position, rules: standing.rules })
    }

    fn archive(&mut self, partition: u32, fence: Fence, delta: &Delta) -> Result<(), StoreError> {
        self.usable()?;
        let standing = self.standings.get(&partition).filter(|it| it.fence == fence);
        let standing = *standing.ok_or(StoreError::Fenced)?;
        let done = standing.position == delta.to && delta.from != delta.to;
        if !done && standing.position != delta.from {
            return Err(StoreError::PositionMismatch(standing.position));
        }
        let mut last = false;
        if !done {
            let standing = Standing { position: delta.to, rules: delta.rules, ..standing };
            let core = Arc::clone(&self.core);
            if let Some(mut seen) = core.seen(partition) {
                delta.keys.iter().for_each(|(hash, key)| seen.add(hash, key.offset));
            }
            self.write(PersistMode::SyncData, |database, known, batch| {
                archive::stage(database, known, partition, delta, batch)?;
                database.put_standing(batch, partition, &standing);
                if let Some(tail) = core.tail(partition) {
                    for offset in tail.needless(delta.to.offset) {
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
            self.stand(partition, standing);
        }
        if let Some(mut tail) = self.core.tail(partition) {
            tail.archived(delta.to.offset, last);
        }
        self.core.tell_moved();
        Ok(())
    }

    /// Writes the records that wait for longer than `age`. False: something could not be written.
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
            let written = self.usable().and_then(|()| {
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
                tail.spilled(to);
            }
            core.tell_moved();
        }
        all
    }

    /// One batch, one sync (if so asked), or none of it.
    pub(super) fn write(
        &mut self,
        how: PersistMode,
        stage: impl FnOnce(&Database, &mut Known, &mut WriteBatch) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let core = Arc::clone(&self.core);
        let committed = {
            let database = core.database.read().unwrap_or_else(PoisonError::into_inner);
            let Some(database) = &*database else { return Err(full()) };
            let mut batch = WriteBatch::new(database, how, self.unsynced);
            if let Err(error) = stage(database, &mut self.known, &mut batch) {
                self.known.clear();
                if let StoreError::Broken(why) = &error {
                    self.give_up(why.clone());
                }
                return Err(error);
            }
            let disk = &core.config.disk;
            let written = disk.before_commit().map_err(fjall::Error::Io).and_then(|()| batch.commit());
            match how {
                PersistMode::Buffer => written,
                _ => written.and_then(|bytes| disk.after_sync().map(|()| bytes).map_err(fjall::Error::Io)),
            }
        };
        match committed.map_err(|error| self.judge(&error)) {
            // Nothing was written: nothing was synced either.
            Ok(0) => Ok(()),
            Ok(bytes) if how == PersistMode::Buffer => {
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

    /// What was written without a sync is on the disk now.
    fn synced(&mut self) {
        self.unsynced = 0;
        self.kept.confirm();
    }

    /// Syncs what was written without, if anybody waits for that.
    fn sync(&mut self) {
        if self.kept.due_in().is_none() {
            return;
        }
        let synced = {
            let database = self.core.database.read().unwrap_or_else(PoisonError::into_inner);
            let Some(database) = &*database else { return };
            let disk = &self.core.config.disk;
            let persisted = disk
                .before_commit()
                .map_err(fjall::Error::Io)
                .and_then(|()| database.fjall.persist(PersistMode::SyncData));
            persisted.and_then(|()| disk.after_sync().map_err(fjall::Error::Io))
        };
        match synced.map_err(|error| self.judge(&error)) {
            Ok(()) => self.synced(),
            Err(error) => drop(self.fail(error)),
        }
    }

    /// After a commit or a sync that was none.
    fn fail(&mut self, error: CommitError) -> StoreError {
        match error {
            CommitError::Full(why) => {
                self.known.clear();
                tracing::error!(why, "the disk is full: nothing is taken until there is space again");
                self.core.set_space(Space::Nothing);
                self.stuck = true;
                let error = StoreError::Unknown(format!("the disk is full: {why}"));
                self.kept.fail(&error);
                self.fail_waiting();
                error
            }
            CommitError::Fatal(why) => {
                self.give_up(why.clone());
                StoreError::Broken(why)
            }
        }
    }

    fn judge(&self, error: &fjall::Error) -> CommitError {
        let full = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        };
        let is_full = match error {
            fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => full(error),
            // A background flush failed before; fjall does not say why.
            fjall::Error::Poisoned => self.free_now() < self.core.config.free_bytes_min.max(REOPEN_BYTES),
            _ => false,
        };
        if is_full {
            CommitError::Full(error.to_string())
        } else {
            CommitError::Fatal(format!(
                "the disk failed to store messages ({error}): nothing more is confirmed. Check the disk, then start \
                 the node again"
            ))
        }
    }

    fn give_up(&mut self, why: String) {
        tracing::error!(why, "the store is broken");
        // A later sync proves nothing.
        self.kept.fail(&StoreError::Broken(why.clone()));
        self.core.fatal.send_replace(Some(why));
        self.fail_waiting();
    }

    fn fail_waiting(&self) {
        for partition in 0..self.core.config.partitions {
            if let Some(mut tail) = self.core.tail(partition) {
                tail.fail();
            }
        }
        self.core.tell_moved();
    }

    fn free_now(&self) -> u64 {
        let config = &self.core.config;
        config.disk.free(&config.path).unwrap_or(u64::MAX)
    }

    /// Stops appends while space is short, and opens the database again when there is enough.
    fn look_at_space(&mut self) {
        self.looked_at_space = Instant::now();
        self.free = self.free_now();
        let floor = self.core.config.free_bytes_min;
        let was_full = self.core.space() != Space::Enough;
        // A little more than the floor, or it would go back and forth.
        let enough = match (self.stuck, was_full) {
            (true, _) => floor.saturating_add(floor / 16).max(REOPEN_BYTES),
            (false, true) => floor.saturating_add(floor / 16),
            (false, false) => floor,
        };
        if self.free < enough {
            if !was_full {
                tracing::warn!(free = self.free, floor, "the disk is nearly full: sends are refused");
            }
            // Half of the floor is for taking away what is too old.
            let room = !self.stuck && self.free >= floor / 2;
            self.core.set_space(if room { Space::Short } else { Space::Nothing });
            return;
        }
        if was_full && self.core.fatal.borrow().is_none() && self.open_again() {
            tracing::warn!(free = self.free, "there is space again: sends are taken");
            self.core.set_space(Space::Enough);
        }
    }

    fn open_again(&mut self) -> bool {
        if !self.stuck {
            return true;
        }
        let core = Arc::clone(&self.core);
        let mut place = core.database.write().unwrap_or_else(PoisonError::into_inner);
        // Closed first: it holds fjall's lock.
        *place = None;
        match Database::open(&core.directory) {
            Ok(Ok((database, _))) => {
                *place = Some(database);
                drop(place);
                self.stuck = false;
                if let Err(trouble) = self.learn() {
                    self.give_up(format!("{trouble:?}"));
                }
                core.tell_moved();
                true
            }
            Ok(Err(error)) => {
                drop(place);
                self.give_up(error.to_string());
                false
            }
            // Full again, it may be: the next look tries again.
            Err(trouble) => {
                tracing::warn!(?trouble, "the store can't be opened again yet");
                false
            }
        }
    }
}
