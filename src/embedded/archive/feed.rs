//! Writes of the feed by the writer thread: batches, with the archive that they belong to; removals and cursors, without a
//! sync of their own.

use std::sync::atomic::Ordering;

use fjall::PersistMode;
use tidegate_protocol::machine::ledger::Delta;
use tokio::sync::oneshot;

use crate::{
    embedded::{Database, DatabaseError, Engine, Job, Reply, batch::WriteBatch, codec, writer::Writer},
    store::{
        ConsumerName, CursorOutcome, FEED_CONSUMERS_MAX, FEED_TRIM_ROWS, FeedBounds, FeedCursor, Fence,
        StoreError,
        feed::{EncodedBatch, FeedState, is_expired},
    },
};

/// Change of the feed apart from archives.
pub(in crate::embedded) enum FeedJob {
    /// Removes the oldest batches that are outside of the bounds.
    Trim { partition: u32, fence: Fence, bounds: FeedBounds, reply: Reply<u64> },
    /// Stores a cursor.
    Save { fence: Fence, cursor: FeedCursor, reply: Reply<CursorOutcome> },
    /// Removes the cursors of a consumer.
    Forget { consumer: ConsumerName, reply: Reply<()> },
}

impl Engine {
    /// Makes archives count the entries of the feed, and write none.
    pub(crate) fn switch_feed_off(&self) {
        self.core.writes_feed.store(false, Ordering::Relaxed);
    }

    /// Returns whether archives write the feed.
    pub(crate) fn writes_feed(&self) -> bool {
        self.core.writes_feed.load(Ordering::Relaxed)
    }

    /// Runs a change of the feed on the writer thread.
    pub(in crate::embedded) async fn change_feed<T>(
        &self,
        job: impl FnOnce(Reply<T>) -> FeedJob,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Feed(job(reply)))?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }
}

/// Adds the feed of a delta to the batch, and returns the counters after it.
pub(in crate::embedded) fn stage(
    database: &Database,
    partition: u32,
    before: FeedState,
    delta: &Delta,
    is_written: bool,
    batch: &mut WriteBatch,
) -> FeedState {
    let encoded = is_written.then(|| EncodedBatch::of(delta)).flatten();
    let bytes = encoded.as_ref().map_or(0, |it| it.bytes.len() as u64);
    let state = before.after(delta, EncodedBatch::count(delta), bytes);
    if let Some(EncodedBatch { time, bytes, .. }) = encoded {
        let value = codec::put_feed_value(time, state.bytes, &bytes);
        batch.insert(&database.feed, codec::feed_key(partition, state.newest), value);
    }
    database.put_feed_state(batch, partition, &state);
    state
}

impl Writer {
    /// Handles a job and replies. A caller that no longer waits retries by itself.
    pub(in crate::embedded) fn change_feed(&mut self, job: FeedJob) {
        match job {
            FeedJob::Trim { partition, fence, bounds, reply } => {
                reply.send(self.trim_feed(partition, fence, bounds)).ok();
            }
            FeedJob::Save { fence, cursor, reply } => match self.save_cursor(fence, &cursor) {
                Ok(outcome) => self.confirms.add(reply, outcome),
                Err(error) => drop(reply.send(Err(error))),
            },
            FeedJob::Forget { consumer, reply } => match self.forget_consumer(&consumer) {
                Ok(()) => self.confirms.add(reply, ()),
                Err(error) => drop(reply.send(Err(error))),
            },
        }
    }

    fn check_owner(&self, partition: u32, fence: Fence) -> Result<(), StoreError> {
        self.check_usable()?;
        let is_owner = self.partitions.get(&partition).is_some_and(|it| it.fence == fence);
        is_owner.then_some(()).ok_or(StoreError::Fenced)
    }

    /// Removes batches. Removals that a crash undoes are repeated by a later call.
    fn trim_feed(&mut self, partition: u32, fence: Fence, bounds: FeedBounds) -> Result<u64, StoreError> {
        self.check_owner(partition, fence)?;
        let mut state = self.feeds.get(&partition).copied().unwrap_or_default();
        let mut removed = 0;
        self.write(PersistMode::Buffer, |database, _, batch| {
            removed = stage_trim(database, partition, &mut state, bounds, batch)?;
            Ok(())
        })?;
        self.feeds.insert(partition, state);
        Ok(removed)
    }

    fn save_cursor(&mut self, fence: Fence, cursor: &FeedCursor) -> Result<CursorOutcome, StoreError> {
        self.check_owner(cursor.partition(), fence)?;
        let mut outcome = CursorOutcome::Saved;
        self.write(PersistMode::Buffer, |database, _, batch| {
            if is_full(database, cursor.consumer())? {
                outcome = CursorOutcome::Full;
                return Ok(());
            }
            batch.insert(&database.feed, codec::cursor_key(cursor), &cursor.bytes()[..]);
            Ok(())
        })?;
        Ok(outcome)
    }

    fn forget_consumer(&mut self, consumer: &ConsumerName) -> Result<(), StoreError> {
        self.check_usable()?;
        self.write(PersistMode::Buffer, |database, _, batch| {
            for entry in database.feed.prefix(codec::cursors_prefix(consumer)) {
                batch.remove(&database.feed, entry.key().map_err(DatabaseError::from)?);
            }
            Ok(())
        })
    }
}

fn stage_trim(
    database: &Database,
    partition: u32,
    state: &mut FeedState,
    bounds: FeedBounds,
    batch: &mut WriteBatch,
) -> Result<u64, DatabaseError> {
    let mut removed = 0;
    // Starts above the removed batches: a scan visits the tombstones one by one.
    let kept = codec::feed_key(partition, state.oldest)..=codec::feed_key(partition, u64::MAX);
    for entry in database.feed.range(kept).take(FEED_TRIM_ROWS) {
        let (key, value) = entry.into_inner()?;
        let value = codec::feed_value(&value)?;
        let length = value.entries.len() as u64;
        if !is_expired(value.time, value.bytes_end, length, state.bytes, bounds) {
            break;
        }
        (state.oldest, state.removed_bytes) = (codec::feed_last(&key)?.saturating_add(1), value.bytes_end);
        batch.remove(&database.feed, key);
        removed += 1;
    }
    if removed > 0 {
        database.put_feed_state(batch, partition, state);
    }
    Ok(removed)
}

/// Returns whether the consumer has no cursor yet, and may have none.
fn is_full(database: &Database, consumer: &ConsumerName) -> Result<bool, DatabaseError> {
    if database.feed.prefix(codec::cursors_prefix(consumer)).next().is_some() {
        return Ok(false);
    }
    let (mut count, mut last) = (0, None);
    for entry in database.feed.prefix([codec::CURSOR_PREFIX]) {
        let (name, _) = codec::cursor_parts(&entry.key()?)?;
        if last.as_ref() != Some(&name) {
            (count, last) = (count + 1, Some(name));
        }
    }
    Ok(count >= FEED_CONSUMERS_MAX)
}
