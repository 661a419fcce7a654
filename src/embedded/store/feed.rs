//! The feed in the embedded store.

use async_trait::async_trait;
use fjall::Readable as _;

use super::EmbeddedStore;
use crate::{
    embedded::{self, Database, DatabaseError, FeedJob},
    store::{
        ConsumerName, CursorOutcome, FeedBounds, FeedCursor, FeedLimits, FeedPosition, FeedRead, FeedStore,
        Fence, StoreError,
        feed::{FeedRow, FeedState, page},
    },
};

impl EmbeddedStore {
    /// Makes archives count the entries of the feed, and write none.
    #[must_use]
    pub fn without_feed(self) -> Self {
        self.0.switch_feed_off();
        self
    }
}

fn read(
    database: &Database,
    partition: u32,
    after: u64,
    limits: FeedLimits,
) -> Result<FeedRead, DatabaseError> {
    let view = database.snapshot();
    let FeedState { oldest, newest, .. } = database.feed_state_in(&view, partition)?;
    // Starts above the removed batches: a scan visits the tombstones one by one.
    let first = after.saturating_add(1).max(oldest);
    let rows = view.range(
        &database.feed,
        embedded::feed_key(partition, first)..=embedded::feed_key(partition, u64::MAX),
    );
    let rows = rows.map(|entry| {
        let (key, value) = entry.into_inner()?;
        let entries = embedded::feed_value(&value)?.entries;
        Ok::<_, DatabaseError>(FeedRow { last: embedded::feed_last(&key)?, entries })
    });
    page(after, oldest..=newest, limits, rows)
}

fn positions(database: &Database, partitions: u32) -> Result<Vec<FeedPosition>, DatabaseError> {
    let view = database.snapshot();
    let mut positions = Vec::new();
    for partition in 0..partitions {
        if database.partition_state_in(&view, partition)?.is_some() {
            positions.push(database.feed_state_in(&view, partition)?.position(partition));
        }
    }
    Ok(positions)
}

fn cursors(database: &Database, consumer: &ConsumerName) -> Result<Vec<FeedCursor>, DatabaseError> {
    let mut cursors = Vec::new();
    for entry in database.snapshot().prefix(&database.feed, embedded::cursors_prefix(consumer)) {
        let (key, value) = entry.into_inner()?;
        let (consumer, partition) = embedded::cursor_parts(&key)?;
        let bytes = bytes::Bytes::copy_from_slice(&value);
        cursors.push(FeedCursor::new(consumer, partition, bytes).map_err(|_| embedded::damaged())?);
    }
    Ok(cursors)
}

fn consumers(database: &Database) -> Result<Vec<ConsumerName>, DatabaseError> {
    let mut names = Vec::new();
    for entry in database.snapshot().prefix(&database.feed, [embedded::CURSOR_PREFIX]) {
        names.push(embedded::cursor_parts(&entry.key()?)?.0);
    }
    names.dedup();
    names.sort_unstable();
    Ok(names)
}

#[async_trait]
impl FeedStore for EmbeddedStore {
    fn has_feed(&self) -> bool {
        self.0.writes_feed()
    }

    async fn read_feed(
        &self,
        partition: u32,
        after: u64,
        limits: FeedLimits,
    ) -> Result<FeedRead, StoreError> {
        self.0.read(move |it| Ok(read(it, partition, after, limits)?)).await
    }

    async fn feed_positions(&self) -> Result<Vec<FeedPosition>, StoreError> {
        let partitions = self.0.core.config.partitions;
        self.0.read(move |it| Ok(positions(it, partitions)?)).await
    }

    async fn trim_feed(&self, partition: u32, fence: Fence, bounds: FeedBounds) -> Result<u64, StoreError> {
        self.0.change_feed(|reply| FeedJob::Trim { partition, fence, bounds, reply }).await
    }

    async fn save_cursor(&self, fence: Fence, cursor: &FeedCursor) -> Result<CursorOutcome, StoreError> {
        let cursor = cursor.clone();
        self.0.change_feed(|reply| FeedJob::Save { fence, cursor, reply }).await
    }

    async fn save_cursor_durably(
        &self,
        fence: Fence,
        cursor: &FeedCursor,
    ) -> Result<CursorOutcome, StoreError> {
        // Each is answered after a sync.
        self.save_cursor(fence, cursor).await
    }

    async fn cursors(&self, consumer: &ConsumerName) -> Result<Vec<FeedCursor>, StoreError> {
        let consumer = consumer.clone();
        self.0.read(move |it| Ok(cursors(it, &consumer)?)).await
    }

    async fn consumers(&self) -> Result<Vec<ConsumerName>, StoreError> {
        self.0.read(|it| Ok(consumers(it)?)).await
    }

    async fn forget_consumer(&self, consumer: &ConsumerName) -> Result<(), StoreError> {
        let consumer = consumer.clone();
        self.0.change_feed(|reply| FeedJob::Forget { consumer, reply }).await
    }
}
