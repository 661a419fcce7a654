//! Stall detection: a node whose archive stalls while those of peers progress releases its partitions.
//!
//! A node that can't reach the store, or only a part of it, would keep the clients of its partitions waiting until the
//! outage ends. If no archive progresses, or none has anything to do, a release would not help. Nor would it help if
//! the log can't be read: its partition would move from node to node, and each would release its other partitions too.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::{cluster::OwnerProgress, routes::PartitionLag};

/// Longest stall of an archive while peers progress; after it, the node leaves the owners group.
pub(super) const ARCHIVE_STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Progress of the archives here and on peers, as last reported. Pure machine: time is an argument.
#[derive(Debug, Default)]
pub(super) struct StallDetector {
    mine: HashMap<u32, StallState>,
    others: HashMap<u32, u64>,
    last_peer_progress: Option<Instant>,
}

#[derive(Debug)]
struct StallState {
    position: Option<u64>,
    /// Last time at which the archive progressed or had nothing to do.
    since: Instant,
}

impl StallDetector {
    /// Updates the progress of local and peer archives; returns the partition that stalled for too long while peers
    /// progressed, if any.
    ///
    /// A local partition has its progress (`None` before the take-over), and whether its owner waits for the log.
    pub(super) fn update(
        &mut self,
        owned: impl IntoIterator<Item = (u32, Option<OwnerProgress>, bool)>,
        others: impl IntoIterator<Item = PartitionLag>,
        now: Instant,
    ) -> Option<u32> {
        let mut before = std::mem::take(&mut self.mine);
        for (partition, progress, at_log) in owned {
            let position = progress.map(|it| it.position);
            let waits = !at_log && progress.is_none_or(|it| it.waits.is_some());
            let same = before.remove(&partition).filter(|it| waits && it.position == position);
            let since = same.map_or(now, |it| it.since);
            self.mine.insert(partition, StallState { position, since });
        }
        for it in others {
            if self.others.insert(it.partition, it.position).is_some_and(|before| it.position > before) {
                self.last_peer_progress = Some(now);
            }
        }
        let moved = self
            .last_peer_progress
            .filter(|moved| now.saturating_duration_since(*moved) < ARCHIVE_STALL_TIMEOUT / 2)?;
        let stuck = |it: &StallState| {
            now.saturating_duration_since(it.since) >= ARCHIVE_STALL_TIMEOUT && moved > it.since
        };
        self.mine.iter().filter(|(_, it)| stuck(it)).map(|(partition, _)| *partition).min()
    }

    /// Returns whether a partition has stalled for half the timeout, so that waiting for its owner is useless.
    pub(super) fn is_stalling(&self, partition: u32, now: Instant) -> bool {
        let half = |it: &StallState| now.saturating_duration_since(it.since) >= ARCHIVE_STALL_TIMEOUT / 2;
        self.mine.get(&partition).is_some_and(half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn progress(position: u64, now: Instant, waits: bool) -> Option<OwnerProgress> {
        let waits = waits.then_some((now, Duration::ZERO));
        Some(OwnerProgress { position, end: position + 1, record_bytes: 1, waits })
    }

    fn other(position: u64) -> PartitionLag {
        PartitionLag { partition: 9, position, end: position, ..PartitionLag::default() }
    }

    /// Updates the detector each second; returns the first partition to release, and when.
    fn watch(
        stall: &mut StallDetector,
        seconds: u64,
        mine: impl Fn(u64, Instant) -> Option<OwnerProgress>,
        others: impl Fn(u64) -> u64,
    ) -> Option<(u32, u64)> {
        let begun = Instant::now();
        (0..seconds).find_map(|n| {
            let now = begun + SECOND * n as u32;
            let idle = progress(4, now, false);
            let owned = [(1, idle, true), (2, mine(n, now), false)];
            stall.update(owned, [other(others(n))], now).map(|it| (it, n))
        })
    }

    #[test]
    fn archive_stalled_for_10_s_while_peers_progress_gives_up() {
        let stuck = |_, now| progress(7, now, true);
        assert_eq!(watch(&mut StallDetector::default(), 60, stuck, |n| n), Some((2, 10)));
        assert_eq!(
            watch(&mut StallDetector::default(), 60, |_, _| None, |n| n),
            Some((2, 10)),
            "the take-over does not succeed"
        );
        // Peers progress only from second 30 on.
        assert_eq!(watch(&mut StallDetector::default(), 60, stuck, |n| n.saturating_sub(30)), Some((2, 31)));
    }

    #[test]
    fn slow_idle_or_cluster_wide_stalled_archive_stays() {
        let (mut it, stuck) = (StallDetector::default(), |_: u64, now| progress(7, now, true));
        assert_eq!(
            watch(&mut it, 60, |_, now| progress(7, now, false), |n| n),
            None,
            "nothing is unarchived"
        );
        assert_eq!(
            watch(&mut it, 60, |n, now| progress(7 + n / 9, now, true), |n| n),
            None,
            "slow, but progressing"
        );
        let mut it = StallDetector::default();
        assert_eq!(watch(&mut it, 60, stuck, |_| 5), None, "no archive progresses");
        let mut it = StallDetector::default();
        assert_eq!(watch(&mut it, 60, stuck, |n| n.min(2)), None, "peers stalled too");
    }

    #[test]
    fn waiting_for_the_log_is_no_stall_and_restarts_the_timeout() {
        for taken in [true, false] {
            let (mut it, begun) = (StallDetector::default(), Instant::now());
            let mut update = |n: u32, at_log| {
                let now = begun + SECOND * n;
                let mine = if taken { progress(7, now, true) } else { None };
                it.update([(2, mine, at_log)], [other(n.into())], now)
            };
            assert_eq!((0..60).find_map(|n| update(n, true)), None);
            assert_eq!((60..80).find(|n| update(*n, false).is_some()), Some(69));
        }
    }

    #[test]
    fn reassigned_partition_starts_a_new_timeout() {
        let (mut it, begun) = (StallDetector::default(), Instant::now());
        for n in 0..40 {
            let now = begun + SECOND * n;
            let owned = (n % 9 != 0).then(|| (2, progress(7, now, true), false));
            assert_eq!(it.update(owned, [other(n.into())], now), None);
        }
        assert!(!it.is_stalling(2, begun + SECOND * 40) && it.is_stalling(2, begun + SECOND * 44));
    }
}
