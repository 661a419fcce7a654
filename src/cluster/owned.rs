//! Owned partitions: those that this node owns, and its progress in each. The lease announces both to the other nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::Instant};

use super::{FeedBoard, Unarchived};
use crate::routes::PartitionLag;

/// Set of owned partitions, whose changes can be awaited.
#[derive(Debug)]
pub struct Owned {
    set: watch::Sender<BTreeSet<u32>>,
    progress: Mutex<BTreeMap<u32, OwnerProgress>>,
    at_log: Mutex<BTreeSet<u32>>,
    unarchived: Arc<Unarchived>,
    feeds: FeedBoard,
}

/// Progress of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerProgress {
    /// Offset below which everything is archived.
    pub position: u64,
    /// End of the log, as far as the owner knows.
    pub end: u64,
    /// Log bytes of one record in this partition, rather too high than too low.
    pub record_bytes: u64,
    /// When a record was first seen to wait for the archive, and the oldest one's age then; `None` if none waits.
    pub waits: Option<(Instant, Duration)>,
}

impl OwnerProgress {
    /// Returns the age of the oldest unarchived record.
    pub fn behind(&self, now: Instant) -> Duration {
        self.waits.map_or(Duration::ZERO, |(since, age)| age + now.saturating_duration_since(since))
    }
}

impl Default for Owned {
    fn default() -> Self {
        Self {
            set: watch::Sender::new(BTreeSet::new()),
            progress: Mutex::default(),
            at_log: Mutex::default(),
            unarchived: Arc::default(),
            feeds: FeedBoard::default(),
        }
    }
}

impl Owned {
    /// Sets whether the partition is owned; a change triggers a lease renewal that announces it. Set it once the
    /// take-over is done, and unset it before the partition is released.
    pub fn set(&self, partition: u32, owned: bool) {
        if !owned {
            self.progress().remove(&partition);
            self.set_at_log(partition, false);
            self.feeds.end(partition);
        }
        self.set.send_if_modified(|set| if owned { set.insert(partition) } else { set.remove(&partition) });
    }

    /// Lists the owned partitions, in order.
    pub fn list(&self) -> Vec<u32> {
        self.set.borrow().iter().copied().collect()
    }

    /// Returns whether the partition is owned.
    pub fn has(&self, partition: u32) -> bool {
        self.set.borrow().contains(&partition)
    }

    /// Subscribes to changes of the set.
    pub fn changes(&self) -> watch::Receiver<BTreeSet<u32>> {
        self.set.subscribe()
    }

    /// Starts tracking an owner's progress; [`Self::set`] announces the partition.
    pub fn begin(&self, partition: u32, now: OwnerProgress) {
        self.progress().insert(partition, now);
    }

    /// Updates an owner's progress; the next renewal announces it.
    pub fn update(&self, partition: u32, change: impl FnOnce(&mut OwnerProgress)) {
        if let Some(progress) = self.progress().get_mut(&partition) {
            change(progress);
        }
    }

    /// Returns the progress of the partition's owner.
    pub fn progress_of(&self, partition: u32) -> Option<OwnerProgress> {
        self.progress().get(&partition).copied()
    }

    /// Sets whether the partition's owner waits for the log: a stall is then not caused by the store.
    pub fn set_at_log(&self, partition: u32, at_log: bool) {
        let mut all = self.at_log.lock();
        if at_log {
            all.insert(partition)
        } else {
            all.remove(&partition)
        };
    }

    /// Returns whether the partition's owner waits for the log.
    pub fn is_at_log(&self, partition: u32) -> bool {
        self.at_log.lock().contains(&partition)
    }

    /// Returns the feeds of the owned partitions.
    pub const fn feeds(&self) -> &FeedBoard {
        &self.feeds
    }

    /// Returns the offsets that local owners have published but not archived.
    pub fn unarchived(&self) -> &Arc<Unarchived> {
        &self.unarchived
    }

    /// Returns the archive lag of each owned partition, in order.
    pub fn partition_lags(&self) -> Vec<PartitionLag> {
        let now = Instant::now();
        let lag = |(partition, it): (&u32, &OwnerProgress)| PartitionLag {
            partition: *partition,
            position: it.position,
            end: it.end.max(it.position),
            behind_ms: u64::try_from(it.behind(now).as_millis()).unwrap_or(u64::MAX),
            behind_bytes: it.end.saturating_sub(it.position).saturating_mul(it.record_bytes),
        };
        self.progress().iter().map(lag).collect()
    }

    fn progress(&self) -> MutexGuard<'_, BTreeMap<u32, OwnerProgress>> {
        self.progress.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_partitions_are_listed_in_order_with_changes_only() {
        let owned = Owned::default();
        let mut changes = owned.changes();
        assert!(owned.list().is_empty());
        for partition in [7, 2, 5] {
            owned.set(partition, true);
        }
        owned.set(5, false);
        assert_eq!(owned.list(), [2, 7]);
        assert!(owned.has(2) && !owned.has(5));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        owned.set(2, true);
        owned.set(9, false);
        assert!(!changes.has_changed().unwrap(), "nothing changed");
        owned.set(2, false);
        assert!(changes.has_changed().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn pending_records_age_and_unowned_partitions_have_no_lag() {
        let owned = Owned::default();
        let waits = Some((Instant::now(), Duration::from_secs(3)));
        owned.set(2, true);
        owned.begin(2, OwnerProgress { position: 10, end: 14, record_bytes: 100, waits });
        owned.begin(5, OwnerProgress { position: 7, end: 7, record_bytes: 0, waits: None });
        tokio::time::advance(Duration::from_secs(4)).await;
        let [slow, idle] = owned.partition_lags()[..] else { panic!("two partitions") };
        let expected =
            PartitionLag { partition: 2, position: 10, end: 14, behind_ms: 7_000, behind_bytes: 400 };
        assert_eq!((slow, slow.behind()), (expected, 4));
        assert_eq!(idle, PartitionLag { partition: 5, position: 7, end: 7, ..PartitionLag::default() });
        owned.set(2, false);
        assert_eq!(owned.partition_lags(), [idle]);
    }
}
