//! Archive lag limit: a partition whose archive is too far behind its log accepts no messages (`ARCHIVE_BEHIND`).
//!
//! The log deletes records by its own retention, archived or not. A record that is deleted before it is archived is a
//! hole that no owner can pass. So nothing more is appended once the lag reaches half of the retention; the other half
//! is the time to repair the archive. No client got an ack for the unarchived records (ADR 11): their sends ended
//! *unknown*.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::routes::PartitionLag;

/// A longer gap between updates does not count towards lag: while the routes are unavailable, no owner reports arrive.
const UPDATE_GAP_MAX: Duration = Duration::from_secs(10);

/// Largest allowed lag of an archive behind its log: half of what the log retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LagLimit {
    /// Limit on the age of the oldest unarchived record.
    pub time: Duration,
    /// Limit on the unarchived bytes of one partition; `None` if the log has no bound in bytes.
    pub bytes: Option<u64>,
}

impl LagLimit {
    /// Returns the limit for a log with this retention by time, and by bytes per partition (0: no bound in bytes).
    pub fn of(retention: Duration, retention_bytes: u64) -> Self {
        Self { time: retention / 2, bytes: (retention_bytes > 0).then_some(retention_bytes / 2) }
    }

    fn is_passed(&self, by: &PartitionLag) -> bool {
        u128::from(by.behind_ms) >= self.time.as_millis()
            || self.bytes.is_some_and(|limit| by.behind_bytes >= limit)
    }
}

/// Lags that owners report, and the partitions that are refused because of them. The default refuses none.
#[derive(Debug, Default)]
pub struct Lags {
    limit: Option<LagLimit>,
    behind: Box<[AtomicBool]>,
    count: AtomicUsize,
    updates: Mutex<LagUpdates>,
}

#[derive(Debug, Default)]
struct LagUpdates {
    last: Option<Instant>,
    /// Last time that each partition had an owner within the limit.
    within_limit: Vec<Option<Instant>>,
}

impl Lags {
    /// Creates the state for a log with that many partitions.
    pub fn new(partitions: u32, limit: LagLimit) -> Self {
        Self {
            limit: Some(limit),
            behind: (0..partitions).map(|_| AtomicBool::new(false)).collect(),
            count: AtomicUsize::new(0),
            updates: Mutex::default(),
        }
    }

    /// Returns the number of refused partitions; cheap enough to call before each send.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns whether the partition is refused.
    pub fn is_behind(&self, partition: u32) -> bool {
        self.count() > 0 && self.behind.get(partition as usize).is_some_and(|it| it.load(Ordering::Relaxed))
    }

    /// Lists the refused partitions, in order.
    pub fn list(&self) -> Vec<u32> {
        (0..)
            .zip(&self.behind)
            .filter(|(_, it)| it.load(Ordering::Relaxed))
            .map(|(number, _)| number)
            .collect()
    }

    /// Updates the refused partitions from the lags that all live owners report, this node's included. A partition
    /// without a report has no owner.
    pub fn update(&self, reports: impl IntoIterator<Item = PartitionLag>, now: Instant) {
        let Some(limit) = &self.limit else { return };
        // An evicted owner may still report: of two owners, the one with the higher position counts.
        let mut newest: BTreeMap<u32, PartitionLag> = BTreeMap::new();
        for it in reports {
            let other = newest.entry(it.partition).or_insert(it);
            if it.position > other.position {
                *other = it;
            }
        }
        let mut updates = self.updates.lock();
        let gap =
            updates.last.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        updates.within_limit.resize(self.behind.len(), None);
        for ((number, flag), within_limit) in (0..).zip(&self.behind).zip(&mut updates.within_limit) {
            let since = within_limit.get_or_insert(now);
            if gap > UPDATE_GAP_MAX {
                *since += gap;
            }
            let is_behind = match newest.get(&number) {
                Some(report) if limit.is_passed(report) => true,
                Some(_) => {
                    *since = now;
                    false
                }
                None => now.saturating_duration_since(*since) >= limit.time,
            };
            self.set(number, flag, is_behind);
        }
    }

    fn set(&self, partition: u32, flag: &AtomicBool, is_behind: bool) {
        if flag.swap(is_behind, Ordering::Relaxed) == is_behind {
            return;
        }
        if is_behind {
            self.count.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                partition,
                "archive lag reached half of the log's retention; refusing sends with ARCHIVE_BEHIND"
            );
        } else {
            self.count.fetch_sub(1, Ordering::Relaxed);
            tracing::info!(partition, "archive caught up; accepting sends again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn lags() -> Lags {
        Lags::new(3, LagLimit::of(2 * HOUR, 2_000))
    }

    fn report(partition: u32, behind: Duration, behind_bytes: u64) -> PartitionLag {
        let behind_ms = behind.as_millis() as u64;
        PartitionLag { partition, position: 5, end: 9, behind_ms, behind_bytes }
    }

    /// Updates every three seconds, as a node does.
    fn updates(lags: &Lags, reports: &[PartitionLag], from: Instant, time: Duration) -> Instant {
        let end = from + time;
        let mut now = from;
        while now < end {
            now += Duration::from_secs(3);
            lags.update(reports.iter().copied(), now);
        }
        now
    }

    #[test]
    fn limit_is_half_of_the_retention_by_time_and_by_bytes() {
        let (lags, now) = (lags(), Instant::now());
        let almost = HOUR - Duration::from_millis(1);
        lags.update([report(0, almost, 999), report(1, HOUR, 0), report(2, Duration::ZERO, 1_000)], now);
        assert_eq!((lags.list(), lags.count()), (vec![1, 2], 2));
        assert!(!lags.is_behind(0) && lags.is_behind(1) && lags.is_behind(2) && !lags.is_behind(3));
        lags.update([report(0, HOUR, 0), report(1, almost, 0), report(2, HOUR, 0)], now);
        assert_eq!((lags.list(), lags.count()), (vec![0, 2], 2), "it recovers automatically");
    }

    #[test]
    fn partition_without_an_owner_is_refused_after_the_limit() {
        let (lags, now) = (lags(), Instant::now());
        let others = [report(0, Duration::ZERO, 0), report(2, Duration::ZERO, 0)];
        let now = updates(&lags, &others, now, HOUR - Duration::from_secs(6));
        assert_eq!(lags.list(), [0_u32; 0]);
        let now = updates(&lags, &others, now, Duration::from_secs(12));
        assert_eq!(lags.list(), [1]);
        let all = [others[0], report(1, Duration::from_secs(9), 0), others[1]];
        let now = updates(&lags, &all, now, Duration::from_secs(3));
        assert_eq!(lags.list(), [0_u32; 0]);
        updates(&lags, &others, now, HOUR - Duration::from_secs(6));
        assert_eq!(lags.list(), [0_u32; 0], "the time starts again");
    }

    #[test]
    fn gaps_between_updates_do_not_count() {
        let (lags, now) = (lags(), Instant::now());
        let now = updates(&lags, &[], now, HOUR / 2);
        let now = updates(&lags, &[], now + 5 * HOUR, HOUR / 4);
        assert_eq!(lags.count(), 0);
        updates(&lags, &[], now, HOUR / 4 + Duration::from_secs(9));
        assert_eq!(lags.count(), 3);
    }

    #[test]
    fn of_two_owners_the_higher_position_counts() {
        let (lags, now) = (lags(), Instant::now());
        let evicted = PartitionLag { position: 3, ..report(1, HOUR, 0) };
        lags.update([evicted, report(1, Duration::ZERO, 0)], now);
        lags.update([report(1, Duration::ZERO, 0), evicted], now);
        assert_eq!(lags.count(), 0);
    }

    #[test]
    fn default_refuses_nothing() {
        let lags = Lags::default();
        lags.update([report(0, 1_000 * HOUR, u64::MAX)], Instant::now());
        assert_eq!((lags.count(), lags.is_behind(0)), (0, false));
    }
}
