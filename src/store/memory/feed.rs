//! The feed in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_protocol::machine::ledger::Delta;

use super::{MemoryStore, State};
use crate::store::{
    ConsumerName, CursorOutcome, FEED_CONSUMERS_MAX, FEED_TRIM_ROWS, FeedBounds, FeedCursor, FeedLimits,
    FeedPosition, FeedRead, FeedStore, Fence, StoreError,
    feed::{EncodedBatch, FeedRow, FeedState, is_expired, page},
};

/// Feeds of all partitions, and the cursors of consumers.
#[derive(Clone, Default)]
pub(super) struct Feeds {
    partitions: BTreeMap<u32, Feed>,
    cursors: BTreeMap<(ConsumerName, u32), Bytes>,
}

#[derive(Clone, Default)]
struct Feed {
    state: FeedState,
    /// Batches, by the number of their last entry.
    batches: BTreeMap<u64, StoredBatch>,
}

#[derive(Clone)]
struct StoredBatch {
    time: u64,
    /// Bytes of all batches up to this one.
    bytes_end: u64,
    entries: Bytes,
}

impl Feeds {
    /// Adds the entries of an archived batch.
    pub(super) fn append(&mut self, partition: u32, delta: &Delta, is_written: bool) {
        let feed = self.partitions.entry(partition).or_default();
        let batch = is_written.then(|| EncodedBatch::of(delta)).flatten();
        let bytes = batch.as_ref().map_or(0, |it| it.bytes.len() as u64);
        feed.state = feed.state.after(delta, EncodedBatch::count(delta), bytes);
        if let Some(EncodedBatch { time, bytes, .. }) = batch {
            let stored = StoredBatch { time, bytes_end: feed.state.bytes, entries: bytes.into() };
            feed.batches.insert(feed.state.newest, stored);
        }
    }

    fn state(&self, partition: u32) -> FeedState {
        self.partitions.get(&partition).map(|it| it.state).unwrap_or_default()
    }

    fn consumers(&self) -> Vec<ConsumerName> {
        let mut names: Vec<_> = self.cursors.keys().map(|(consumer, _)| consumer.clone()).collect();
        names.dedup();
        names
    }
}

impl State {
    fn trim_feed(&mut self, partition: u32, fence: Fence, bounds: FeedBounds) -> Result<u64, StoreError> {
        self.owned(partition, fence)?;
        let Some(feed) = self.feed.partitions.get_mut(&partition) else { return Ok(0) };
        let bytes = feed.state.bytes;
        let is_old =
            |it: &StoredBatch| is_expired(it.time, it.bytes_end, it.entries.len() as u64, bytes, bounds);
        let old = feed.batches.iter().take(FEED_TRIM_ROWS).take_while(|(_, it)| is_old(it));
        let (mut removed, mut last) = (0, None);
        for (number, it) in old {
            removed += 1;
            last = Some((*number, it.bytes_end));
        }
        if let Some((number, bytes_end)) = last {
            feed.batches = feed.batches.split_off(&(number + 1));
            (feed.state.oldest, feed.state.removed_bytes) = (number + 1, bytes_end);
        }
        Ok(removed)
    }
}

#[async_trait]
impl FeedStore for MemoryStore {
    fn has_feed(&self) -> bool {
        self.writes_feed
    }

    async fn read_feed(
        &self,
        partition: u32,
        after: u64,
        limits: FeedLimits,
    ) -> Result<FeedRead, StoreError> {
        let state = self.lock();
        let empty = Feed::default();
        let feed = state.feed.partitions.get(&partition).unwrap_or(&empty);
        let rows = feed.batches.range(after.saturating_add(1)..);
        let rows = rows.map(|(last, it)| Ok(FeedRow { last: *last, entries: it.entries.clone() }));
        page(after, feed.state.oldest..=feed.state.newest, limits, rows)
    }

    async fn feed_positions(&self) -> Result<Vec<FeedPosition>, StoreError> {
        let state = self.lock();
        let mut numbers: Vec<u32> = state.partitions.keys().copied().collect();
        numbers.sort_unstable();
        Ok(numbers.into_iter().map(|it| state.feed.state(it).position(it)).collect())
    }

    async fn trim_feed(&self, partition: u32, fence: Fence, bounds: FeedBounds) -> Result<u64, StoreError> {
        self.lock().trim_feed(partition, fence, bounds)
    }

    async fn save_cursor(&self, fence: Fence, cursor: &FeedCursor) -> Result<CursorOutcome, StoreError> {
        let mut state = self.lock();
        state.owned(cursor.partition(), fence)?;
        let consumers = state.feed.consumers();
        if !consumers.contains(cursor.consumer()) && consumers.len() >= FEED_CONSUMERS_MAX {
            return Ok(CursorOutcome::Full);
        }
        let key = (cursor.consumer().clone(), cursor.partition());
        state.feed.cursors.insert(key, cursor.bytes().clone());
        Ok(CursorOutcome::Saved)
    }

    async fn save_cursor_durably(
        &self,
        fence: Fence,
        cursor: &FeedCursor,
    ) -> Result<CursorOutcome, StoreError> {
        self.save_cursor(fence, cursor).await
    }

    async fn cursors(&self, consumer: &ConsumerName) -> Result<Vec<FeedCursor>, StoreError> {
        let state = self.lock();
        let rows = state.feed.cursors.iter().filter(|((it, _), _)| it == consumer);
        let cursor = |((consumer, partition), bytes): (&(ConsumerName, u32), &Bytes)| {
            FeedCursor::new(consumer.clone(), *partition, bytes.clone()).ok()
        };
        Ok(rows.filter_map(cursor).collect())
    }

    async fn consumers(&self) -> Result<Vec<ConsumerName>, StoreError> {
        Ok(self.lock().feed.consumers())
    }

    async fn forget_consumer(&self, consumer: &ConsumerName) -> Result<(), StoreError> {
        self.lock().feed.cursors.retain(|(it, _), _| it != consumer);
        Ok(())
    }
}
