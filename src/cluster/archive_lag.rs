//! Which partitions take no messages for now, because their archive is too far behind the log (`ARCHIVE_BEHIND`).
//!
//! The log forgets by its own retention, archived or not. What it forgot before it was archived is a hole that no owner
//! gets over, so nothing new is appended from half of the retention on, and the other half is there to mend what is
//! broken. Nobody was told `ok` of what waits (ADR 11): its clients heard *unknown*.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::routes::Standing;

/// Between two looks at most, for the time between them to count: while the routes are away nobody hears what owners say.
const LOOKS_MAX: Duration = Duration::from_secs(10);

/// How far an archive may be behind its log: half of what the log keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LagLimit {
    /// By the age of the oldest record that waits.
    pub time: Duration,
    /// By the bytes that wait, in one partition; none = the log has no bound in bytes.
    pub bytes: Option<u64>,
}

impl LagLimit {
    /// The limit of a log that keeps records for so long, and so many bytes of each partition (0 = no bound but time).
    pub fn of(retention: Duration, retention_bytes: u64) -> Self {
        Self { time: retention / 2, bytes: (retention_bytes > 0).then_some(retention_bytes / 2) }
    }

    fn is_passed(&self, by: &Standing) -> bool {
        u128::from(by.behind_ms) >= self.time.as_millis()
            || self.bytes.is_some_and(|most| by.behind_bytes >= most)
    }
}

/// What the owners say of their archives, and which partitions are refused for it. By default none ever is.
#[derive(Debug, Default)]
pub struct Lags {
    limit: Option<LagLimit>,
    behind: Box<[AtomicBool]>,
    count: AtomicUsize,
    seen: Mutex<Looks>,
}

#[derive(Debug, Default)]
struct Looks {
    last: Option<Instant>,
    /// When each partition was last seen to have an owner that is not too far behind.
    fine: Vec<Option<Instant>>,
}

impl Lags {
    /// Of a log of so many partitions.
    pub fn new(partitions: u32, limit: LagLimit) -> Self {
        Self {
            limit: Some(limit),
            behind: (0..partitions).map(|_| AtomicBool::new(false)).collect(),
            count: AtomicUsize::new(0),
            seen: Mutex::default(),
        }
    }

    /// How many partitions take no messages now; cheap, to be asked before each send.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether that partition takes none now.
    pub fn is_behind(&self, partition: u32) -> bool {
        self.count() > 0 && self.behind.get(partition as usize).is_some_and(|it| it.load(Ordering::Relaxed))
    }

    /// Those partitions, in order.
    pub fn list(&self) -> Vec<u32> {
        (0..)
            .zip(&self.behind)
            .filter(|(_, it)| it.load(Ordering::Relaxed))
            .map(|(number, _)| number)
            .collect()
    }

    /// What all live owners say now, this node's among them. A partition of which nobody says anything has no owner.
    pub fn look(&self, said: impl IntoIterator<Item = Standing>, now: Instant) {
        let Some(limit) = &self.limit else { return };
        // Of two owners, one that was put out and has not heard of it yet: the one that is further on.
        let mut best: BTreeMap<u32, Standing> = BTreeMap::new();
        for it in said {
            let other = best.entry(it.partition).or_insert(it);
            if it.position > other.position {
                *other = it;
            }
        }
        let mut looks = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let gap = looks.last.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        looks.fine.resize(self.behind.len(), None);
        for ((number, flag), fine) in (0..).zip(&self.behind).zip(&mut looks.fine) {
            let since = fine.get_or_insert(now);
            if gap > LOOKS_MAX {
                *since += gap;
            }
            let is_behind = match best.get(&number) {
                Some(said) if limit.is_passed(said) => true,
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
                "the archive is behind by half of what the log keeps: sends are refused ARCHIVE_BEHIND until it has caught up"
            );
        } else {
            self.count.fetch_sub(1, Ordering::Relaxed);
            tracing::info!(partition, "the archive has caught up: sends are taken again");
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

    fn said(partition: u32, behind: Duration, behind_bytes: u64) -> Standing {
        let behind_ms = behind.as_millis() as u64;
        Standing { partition, position: 5, end: 9, behind_ms, behind_bytes }
    }

    /// Looks every three seconds, as a node does.
    fn looks(lags: &Lags, said: &[Standing], from: Instant, time: Duration) -> Instant {
        let end = from + time;
        let mut now = from;
        while now < end {
            now += Duration::from_secs(3);
            lags.look(said.iter().copied(), now);
        }
        now
    }

    #[test]
    fn half_of_the_retention_is_too_far_behind_by_time_and_by_bytes() {
        let (lags, now) = (lags(), Instant::now());
        let almost = HOUR - Duration::from_millis(1);
        lags.look([said(0, almost, 999), said(1, HOUR, 0), said(2, Duration::ZERO, 1_000)], now);
        assert_eq!((lags.list(), lags.count()), (vec![1, 2], 2));
        assert!(!lags.is_behind(0) && lags.is_behind(1) && lags.is_behind(2) && !lags.is_behind(3));
        lags.look([said(0, HOUR, 0), said(1, almost, 0), said(2, HOUR, 0)], now);
        assert_eq!((lags.list(), lags.count()), (vec![0, 2], 2), "it recovers by itself");
    }

    #[test]
    fn a_partition_that_nobody_owns_for_so_long_is_too_far_behind_until_somebody_does() {
        let (lags, now) = (lags(), Instant::now());
        let others = [said(0, Duration::ZERO, 0), said(2, Duration::ZERO, 0)];
        let now = looks(&lags, &others, now, HOUR - Duration::from_secs(6));
        assert_eq!(lags.list(), [0_u32; 0]);
        let now = looks(&lags, &others, now, Duration::from_secs(12));
        assert_eq!(lags.list(), [1]);
        let all = [others[0], said(1, Duration::from_secs(9), 0), others[1]];
        let now = looks(&lags, &all, now, Duration::from_secs(3));
        assert_eq!(lags.list(), [0_u32; 0]);
        looks(&lags, &others, now, HOUR - Duration::from_secs(6));
        assert_eq!(lags.list(), [0_u32; 0], "counted anew");
    }

    #[test]
    fn time_in_which_nobody_could_be_heard_does_not_count() {
        let (lags, now) = (lags(), Instant::now());
        let now = looks(&lags, &[], now, HOUR / 2);
        let now = looks(&lags, &[], now + 5 * HOUR, HOUR / 4);
        assert_eq!(lags.count(), 0);
        looks(&lags, &[], now, HOUR / 4 + Duration::from_secs(9));
        assert_eq!(lags.count(), 3);
    }

    #[test]
    fn of_two_owners_the_one_that_is_further_on_is_believed() {
        let (lags, now) = (lags(), Instant::now());
        let put_out = Standing { position: 3, ..said(1, HOUR, 0) };
        lags.look([put_out, said(1, Duration::ZERO, 0)], now);
        lags.look([said(1, Duration::ZERO, 0), put_out], now);
        assert_eq!(lags.count(), 0);
    }

    #[test]
    fn by_default_nothing_is_too_far_behind() {
        let lags = Lags::default();
        lags.look([said(0, 1_000 * HOUR, u64::MAX)], Instant::now());
        assert_eq!((lags.count(), lags.is_behind(0)), (0, false));
    }
}
