//! The feed in Postgres: reads by any node, removals and cursors by owners.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_postgres::Row;

use super::super::{
    PostgresStore,
    codec::{Reader, big, bound, fence as stored_fence, limit},
    error::{PostgresError, damaged},
    number,
    owner::owned_position,
    session::{Session, call},
};
use crate::store::{
    ConsumerName, CursorOutcome, FEED_CONSUMERS_MAX, FEED_PAGE_MAX, FEED_TRIM_ROWS, FeedBounds, FeedCursor,
    FeedLimits, FeedPosition, FeedRead, FeedStore, Fence, StoreError,
    feed::{DamagedFeed, FeedRow, is_expired, page},
};

/// Fewest bytes that an entry takes in memory, by which a page is bounded before its batches are read.
const ENTRY_BYTES_MIN: usize = 64;

/// Selects the range of the feed, and the batches after a number until they have enough entries.
const SELECT_FEED: &str = "
SELECT p.feed_oldest, p.feed_newest, f.last, f.batch FROM partitions p LEFT JOIN LATERAL (
    SELECT last, batch FROM (
        SELECT last, batch, sum(entries) OVER (ORDER BY last) - entries AS before FROM (
            SELECT last, batch, entries FROM feed
            WHERE partition = $1 AND last > $2 AND last >= p.feed_oldest ORDER BY last LIMIT $3
        ) next
    ) counted WHERE before < $3
) f ON true WHERE p.partition = $1 ORDER BY f.last";

const SELECT_POSITIONS: &str = "
SELECT partition, feed_oldest, feed_newest, feed_bytes - feed_removed_bytes FROM partitions ORDER BY partition";

const SELECT_OWNER: &str = "
SELECT fence, log_offset, last_hash, feed_bytes FROM partitions WHERE partition = $1";

const SELECT_OLDEST: &str = "
SELECT f.last, f.time, f.bytes_end, octet_length(f.batch)::bigint FROM partitions p
CROSS JOIN LATERAL (
    SELECT last, time, bytes_end, batch FROM feed
    WHERE partition = $1 AND last >= p.feed_oldest ORDER BY last LIMIT $2
) f WHERE p.partition = $1 ORDER BY f.last";

/// Begins at the oldest row, above what was removed before.
const DELETE_OLDEST: &str = "
DELETE FROM feed WHERE partition = $1 AND last <= $2
    AND last >= (SELECT feed_oldest FROM partitions WHERE partition = $1)";

/// Moves the oldest number, last in the transaction, because archives wait for the row.
const MOVE_OLDEST: &str = "
UPDATE partitions SET feed_oldest = $3, feed_removed_bytes = $4 WHERE partition = $1 AND fence = $2
RETURNING partition";

/// Begins a transaction that may be lost. Archives wait for its lock, which must not last as long as a sync: a lost cursor is
/// only an older one.
const BEGIN_UNSYNCED: &str = "BEGIN; SET LOCAL synchronous_commit = off";

/// Locks the partition against another owner, until the end of the transaction.
const LOCK_FENCE: &str = "SELECT partition FROM partitions WHERE partition = $1 AND fence = $2 FOR SHARE";

const PUT_CURSOR: &str = "
INSERT INTO feed_cursors (consumer, partition, cursor) SELECT $1::text, $2::integer, $3::bytea
WHERE EXISTS (SELECT FROM feed_cursors WHERE consumer = $1)
   OR (SELECT count(DISTINCT consumer) FROM feed_cursors) < $4
ON CONFLICT (consumer, partition) DO UPDATE SET cursor = EXCLUDED.cursor RETURNING partition";

const SELECT_CURSORS: &str = "
SELECT partition, cursor FROM feed_cursors WHERE consumer = $1 ORDER BY partition";

const SELECT_CONSUMERS: &str = "SELECT DISTINCT consumer FROM feed_cursors ORDER BY consumer";

const DELETE_CURSORS: &str = "DELETE FROM feed_cursors WHERE consumer = $1 RETURNING partition";

impl From<DamagedFeed> for PostgresError {
    fn from(_: DamagedFeed) -> Self {
        Self::Damaged("a batch of the feed".to_owned())
    }
}

impl PostgresStore {
    /// Makes archives count the entries of the feed, and write none.
    #[must_use]
    pub fn without_feed(self) -> Self {
        self.core.writes_feed.store(false, Ordering::Relaxed);
        self
    }

    /// Saves a cursor in a transaction that begins with these statements.
    async fn save_cursor_in(
        &self,
        begin: &'static str,
        fence: Fence,
        cursor: &FeedCursor,
    ) -> Result<CursorOutcome, StoreError> {
        let core = &*self.core;
        core.run(move || async move { save_cursor(&mut core.readers().await?, fence, cursor, begin).await })
            .await
    }
}

async fn read_feed(
    session: &mut Session,
    partition: i32,
    after: u64,
    limits: FeedLimits,
) -> Result<FeedRead, PostgresError> {
    let entries = limits.entries.min(limits.bytes / ENTRY_BYTES_MIN).clamp(1, FEED_PAGE_MAX);
    let (above, most) = (bound(after), limit(entries));
    let found = session.read(&[call(SELECT_FEED, &[&partition, &above, &most])]).await?;
    let rows = found.first().map_or(&[][..], |rows| &rows[..]);
    let (oldest, newest) = match rows.first() {
        Some(row) => {
            let mut reader = Reader::new(row);
            (reader.big()?, reader.big()?)
        }
        None => (1, 0),
    };
    let row = |row: &'_ Row| -> Result<Option<FeedRow<Vec<u8>>>, PostgresError> {
        let mut reader = Reader::new(row);
        reader.big()?;
        reader.big()?;
        let Some(last) = reader.get::<Option<i64>>()? else { return Ok(None) };
        let entries = reader.get::<Option<&[u8]>>()?.unwrap_or_default().to_vec();
        Ok(Some(FeedRow { last: last.cast_unsigned(), entries }))
    };
    page(after, oldest..=newest, limits, rows.iter().filter_map(|it| row(it).transpose()))
}

async fn positions(session: &mut Session) -> Result<Vec<FeedPosition>, PostgresError> {
    let found = session.read(&[call(SELECT_POSITIONS, &[])]).await?;
    let position = |row: &Row| {
        let mut reader = Reader::new(row);
        let partition = u32::try_from(reader.get::<i32>()?).map_err(|_| damaged())?;
        let (oldest, newest, bytes) = (reader.big()?, reader.big()?, reader.big()?);
        Ok(FeedPosition { partition, oldest, newest, bytes })
    };
    found.iter().flatten().map(position).collect()
}

async fn trim(
    session: &mut Session,
    partition: i32,
    fence: Fence,
    bounds: FeedBounds,
) -> Result<u64, PostgresError> {
    let most = limit(FEED_TRIM_ROWS);
    let calls = [call(SELECT_OWNER, &[&partition]), call(SELECT_OLDEST, &[&partition, &most])];
    let found = session.read(&calls).await?;
    let [owner, oldest] = &found[..] else { return Err(damaged()) };
    let owner = owner.first().ok_or(StoreError::Fenced)?;
    owned_position(Some(Reader::new(owner)), fence)?;
    let feed_bytes: i64 = owner.try_get(3)?;
    let (mut removed, mut end) = (0, None);
    for row in oldest {
        let mut reader = Reader::new(row);
        let (last, time) = (reader.big()?, reader.big()?);
        let (bytes_end, length) = (reader.big()?, reader.big()?);
        if !is_expired(time, bytes_end, length, feed_bytes.cast_unsigned(), bounds) {
            break;
        }
        (removed, end) = (removed + 1, Some((last, bytes_end)));
    }
    let Some((last, bytes_end)) = end else { return Ok(0) };
    let (last, kept_from, bytes_end) = (big(last), big(last + 1), big(bytes_end));
    let fence = stored_fence(fence);
    session.begin("BEGIN", &[call(DELETE_OLDEST, &[&partition, &last])]).await?;
    let moved = session.execute(&[call(MOVE_OLDEST, &[&partition, &fence, &kept_from, &bytes_end])]).await?;
    if moved.iter().flatten().next().is_none() {
        session.roll_back().await;
        return Err(StoreError::Fenced.into());
    }
    session.commit().await?;
    Ok(removed)
}

async fn save_cursor(
    session: &mut Session,
    fence: Fence,
    cursor: &FeedCursor,
    begin: &'static str,
) -> Result<CursorOutcome, PostgresError> {
    let partition = number(cursor.partition())?;
    let (consumer, fence, bytes) = (cursor.consumer().as_str(), stored_fence(fence), &cursor.bytes()[..]);
    let most = limit(FEED_CONSUMERS_MAX);
    let calls =
        [call(LOCK_FENCE, &[&partition, &fence]), call(PUT_CURSOR, &[&consumer, &partition, &bytes, &most])];
    let found = session.begin(begin, &calls).await?;
    let [owned, put] = &found[..] else { return Err(damaged()) };
    if owned.is_empty() || put.is_empty() {
        session.roll_back().await;
        return if owned.is_empty() { Err(StoreError::Fenced.into()) } else { Ok(CursorOutcome::Full) };
    }
    session.commit().await?;
    Ok(CursorOutcome::Saved)
}

async fn cursors(session: &mut Session, consumer: &ConsumerName) -> Result<Vec<FeedCursor>, PostgresError> {
    let name = consumer.as_str();
    let found = session.read(&[call(SELECT_CURSORS, &[&name])]).await?;
    let cursor = |row: &Row| {
        let mut reader = Reader::new(row);
        let partition = u32::try_from(reader.get::<i32>()?).map_err(|_| damaged())?;
        let bytes = Bytes::copy_from_slice(reader.get::<&[u8]>()?);
        FeedCursor::new(consumer.clone(), partition, bytes).map_err(|_| damaged())
    };
    found.iter().flatten().map(cursor).collect()
}

async fn consumers(session: &mut Session) -> Result<Vec<ConsumerName>, PostgresError> {
    let found = session.read(&[call(SELECT_CONSUMERS, &[])]).await?;
    let name = |row: &Row| ConsumerName::new(Reader::new(row).get::<&str>()?).map_err(|_| damaged());
    found.iter().flatten().map(name).collect()
}

async fn forget(session: &mut Session, consumer: &ConsumerName) -> Result<(), PostgresError> {
    let name = consumer.as_str();
    session.begin("BEGIN", &[call(DELETE_CURSORS, &[&name])]).await?;
    session.commit().await
}

/// Uses the connections of readers, so that it delays no archive.
#[async_trait]
impl FeedStore for PostgresStore {
    fn has_feed(&self) -> bool {
        self.core.writes_feed.load(Ordering::Relaxed)
    }

    async fn read_feed(
        &self,
        partition: u32,
        after: u64,
        limits: FeedLimits,
    ) -> Result<FeedRead, StoreError> {
        let (core, reads, partition) = (&*self.core, self.reads, number(partition)?);
        core.run(move || async move {
            read_feed(&mut core.client_reads(reads).await?, partition, after, limits).await
        })
        .await
    }

    async fn feed_positions(&self) -> Result<Vec<FeedPosition>, StoreError> {
        let core = &*self.core;
        core.run(move || async move { positions(&mut core.readers().await?).await }).await
    }

    async fn trim_feed(&self, partition: u32, fence: Fence, bounds: FeedBounds) -> Result<u64, StoreError> {
        let (core, partition) = (&*self.core, number(partition)?);
        core.run(move || async move { trim(&mut core.readers().await?, partition, fence, bounds).await })
            .await
    }

    async fn save_cursor(&self, fence: Fence, cursor: &FeedCursor) -> Result<CursorOutcome, StoreError> {
        self.save_cursor_in(BEGIN_UNSYNCED, fence, cursor).await
    }

    async fn save_cursor_durably(
        &self,
        fence: Fence,
        cursor: &FeedCursor,
    ) -> Result<CursorOutcome, StoreError> {
        self.save_cursor_in("BEGIN", fence, cursor).await
    }

    async fn cursors(&self, consumer: &ConsumerName) -> Result<Vec<FeedCursor>, StoreError> {
        let core = &*self.core;
        core.run(move || async move { cursors(&mut core.readers().await?, consumer).await }).await
    }

    async fn consumers(&self) -> Result<Vec<ConsumerName>, StoreError> {
        let core = &*self.core;
        core.run(move || async move { consumers(&mut core.readers().await?).await }).await
    }

    async fn forget_consumer(&self, consumer: &ConsumerName) -> Result<(), StoreError> {
        let core = &*self.core;
        core.run(move || async move { forget(&mut core.readers().await?, consumer).await }).await
    }
}
