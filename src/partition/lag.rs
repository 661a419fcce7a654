//! Lag of one owner behind its log: the archived position, the end of the log, and how long the oldest unarchived
//! record has been waiting.

use std::{sync::Arc, time::Duration};

use tokio::time::{self, Instant};

use crate::{
    bus::{Bounds, ReadError},
    cluster::{Cluster, Owned, OwnerProgress},
};

/// Approximate bytes that a record takes in the log besides its own.
const RECORD_OVERHEAD_BYTES: u64 = 70;

/// Interval at which the end of the log is read while the archive makes no progress.
const LOG_END_POLL_INTERVAL: Duration = Duration::from_secs(3);

/// Reports the progress of one owner to [`Owned`].
pub(super) struct LagTracker {
    partition: u32,
    owned: Arc<Owned>,
}

/// End, bytes and receive times of the log records that were read.
pub(super) struct LogSpan {
    end: u64,
    bytes: u64,
    records: u64,
    /// Receive times of the first and last decodable record, in ms since 1970.
    times: Option<(u64, u64)>,
}

impl LogSpan {
    pub(super) fn of(bounds: Bounds) -> Self {
        Self { end: bounds.next, bytes: 0, records: 0, times: None }
    }

    /// Returns the approximate bytes that the records take in the log.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the span extended by `next`, which was read after it.
    pub(super) fn and(self, next: Self) -> Self {
        let times = match (self.times, next.times) {
            (Some((first, _)), Some((_, last))) => Some((first, last)),
            (one, other) => one.or(other),
        };
        let (bytes, records) = (self.bytes + next.bytes, self.records + next.records);
        Self { end: self.end.max(next.end), bytes, records, times }
    }

    pub(super) fn add_record(&mut self, bytes: usize, received_at: Option<u64>) {
        self.bytes += bytes as u64 + RECORD_OVERHEAD_BYTES;
        self.records += 1;
        if let Some(time) = received_at {
            self.times = Some((self.times.map_or(time, |(first, _)| first), time));
        }
    }
}

impl LagTracker {
    /// Starts to track an owner that took over at `position`, in a log that ends at `end`.
    pub(super) fn begin(partition: u32, owned: &Arc<Owned>, position: u64, end: u64) -> Self {
        // The age is unknown until the first batch is read.
        let waits = (position < end).then(|| (Instant::now(), Duration::ZERO));
        owned.begin(partition, OwnerProgress { position, end, record_bytes: 0, waits });
        Self { partition, owned: Arc::clone(owned) }
    }

    /// Notes that a batch was read and now waits for its archive; `is_next` if no other batch waits before it.
    pub(super) fn note_read(&self, span: &LogSpan, is_next: bool, wall_ms: u64) {
        let first = span.times.map(|(first, _)| first);
        self.owned.update(self.partition, |it| {
            it.end = it.end.max(span.end);
            let mean = span.bytes / span.records.max(1);
            // Rises at once and falls slowly: unread records are assumed to be as large as those before them.
            it.record_bytes = mean.max((it.record_bytes * 7 + mean) / 8);
            if is_next || it.waits.is_none() {
                it.waits = Some(waits_since(first, wall_ms));
            }
        });
    }

    /// Notes that a batch is archived up to `position`; `next` is the span that was read after it.
    pub(super) fn note_archived(&self, position: u64, span: &LogSpan, next: Option<&LogSpan>, wall_ms: u64) {
        let last = span.times.map(|(_, last)| last);
        let oldest = next.and_then(|next| next.times).map(|(first, _)| first).or(last);
        self.owned.update(self.partition, |it| {
            // A successor on this node may have archived more already.
            it.position = it.position.max(position);
            // Unread records are assumed as old as the last of this batch, until they are read.
            it.waits = (position < it.end).then(|| waits_since(oldest, wall_ms));
        });
    }
}

/// Returns the current time and the age at that time; a receive time in the future counts as age 0.
fn waits_since(received_at: Option<u64>, wall_ms: u64) -> (Instant, Duration) {
    let age = received_at.map_or(0, |time| wall_ms.saturating_sub(time));
    (Instant::now(), Duration::from_millis(age))
}

/// Awaits a log call of a partition's owner, which counts as waiting for the log, not the store, until one succeeds.
pub(super) async fn from_log<T>(
    owned: &Owned,
    partition: u32,
    call: impl Future<Output = Result<T, ReadError>>,
) -> Result<T, ReadError> {
    owned.set_at_log(partition, true);
    let result = call.await;
    owned.set_at_log(partition, result.is_err());
    result
}

/// Refreshes the end of the log while the archive makes no progress. Runs until the owner exits.
pub(super) async fn watch_end(partition: u32, cluster: Arc<Cluster>) {
    let mut tick = time::interval(LOG_END_POLL_INTERVAL);
    tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut before = None;
    loop {
        tick.tick().await;
        let waiting = cluster.owned.progress_of(partition).filter(|it| it.waits.is_some());
        let position = waiting.map(|it| it.position);
        if position.is_some()
            && position == before
            && let Ok(bounds) = cluster.ports.bus.bounds(partition).await
        {
            cluster.owned.update(partition, |it| it.end = it.end.max(bounds.next));
        }
        before = position;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bus::TopicId, routes::PartitionLag};

    fn span(end: u64, records: &[(usize, Option<u64>)]) -> LogSpan {
        let mut span = LogSpan::of(Bounds { topic: TopicId(1), first: 0, next: end });
        records.iter().for_each(|(bytes, time)| span.add_record(*bytes, *time));
        span
    }

    fn lag(owned: &Owned) -> PartitionLag {
        owned.partition_lags()[0]
    }

    #[tokio::test(start_paused = true)]
    async fn lag_is_unarchived_count_and_age_of_the_oldest() {
        let owned = Arc::new(Owned::default());
        owned.set(3, true);
        let tracker = LagTracker::begin(3, &owned, 10, 10);
        assert_eq!(
            lag(&owned),
            PartitionLag { partition: 3, position: 10, end: 10, ..PartitionLag::default() }
        );
        // Two of four are read, the first a minute old; an undecodable record has no time.
        let batch = span(14, &[(930, None), (930, Some(1_000)), (930, Some(31_000))]);
        tracker.note_read(&batch, true, 61_000);
        time::advance(Duration::from_secs(5)).await;
        let it = lag(&owned);
        assert_eq!((it.position, it.end, it.behind(), it.behind_ms), (10, 14, 4, 65_000));
        assert_eq!(it.behind_bytes, 4 * 1_000);
        tracker.note_archived(13, &batch, None, 61_000);
        assert_eq!((lag(&owned).behind(), lag(&owned).behind_ms), (1, 30_000));
        // Received by a clock that is ahead.
        let last = span(14, &[(130, Some(99_000))]);
        tracker.note_read(&last, true, 61_000);
        assert_eq!((lag(&owned).behind_ms, lag(&owned).behind_bytes), (0, 900));
        tracker.note_archived(14, &last, None, 61_000);
        time::advance(Duration::from_secs(60)).await;
        let it = lag(&owned);
        assert_eq!((it.behind(), it.behind_ms, it.behind_bytes), (0, 0, 0), "nothing is unarchived");
    }
}
