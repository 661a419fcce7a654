//! Unarchived offsets: what this node's owners have published but not archived. Readers of the store wait for it (ADR
//! 16).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{self, Instant},
};

use crate::link::{ArchiveStatus, ArchivedUpTo, PartitionOffset, PublishedMark};

/// How long the unarchived offset of an ended owner is remembered: longer than its successor needs to take over.
const ENDED_OWNER_RETENTION: Duration = Duration::from_secs(60);

/// Offsets that owners have published but not archived. Cheap to query when there are none.
#[derive(Debug, Default)]
pub struct Unarchived {
    owners: Mutex<Owners>,
    moved: Notify,
    is_allowed: AtomicBool,
}

#[derive(Debug, Default)]
struct Owners {
    /// Offsets of each owner, by a number that is unique in this run.
    marks: BTreeMap<u64, OwnerOffsets>,
    last: u64,
    /// By partition: the highest offset that an ended owner published but did not archive, and when the last one ended.
    ended: BTreeMap<u32, (u64, Instant)>,
}

/// Offsets of one owner; each covers everything below it.
#[derive(Clone, Copy, Debug)]
struct OwnerOffsets {
    partition: u32,
    published: u64,
    archived: u64,
    /// End of the log at the take-over: no earlier owner can have published more.
    caught_up_at: u64,
}

/// Entry of one owner. Dropping it leaves the unarchived records to the successor, which publishes them again.
#[derive(Debug)]
pub struct UnarchivedMark {
    all: Arc<Unarchived>,
    number: u64,
}

impl Unarchived {
    /// Lets owners publish before they archive, on this node and on others.
    pub fn allow(&self) {
        self.is_allowed.store(true, Ordering::Relaxed);
    }

    /// Returns whether owners may publish before they archive.
    pub fn is_allowed(&self) -> bool {
        self.is_allowed.load(Ordering::Relaxed)
    }

    /// Adds an owner that has published nothing: the partition is archived up to `archived`, and the log ends at `end`.
    pub fn begin(self: &Arc<Self>, partition: u32, archived: u64, end: u64) -> UnarchivedMark {
        let mut owners = self.owners();
        owners.last += 1;
        let number = owners.last;
        owners.marks.insert(number, OwnerOffsets { partition, published: 0, archived, caught_up_at: end });
        UnarchivedMark { all: Arc::clone(self), number }
    }

    /// Returns what is published but not archived now, in one partition or in all.
    pub fn published(&self, partition: Option<u32>) -> Vec<PublishedMark> {
        let owners = self.owners();
        let is_queried = |it: &OwnerOffsets| partition.is_none_or(|partition| it.partition == partition);
        let unarchived = owners.marks.iter().filter(|(_, it)| it.published > it.archived && is_queried(it));
        unarchived.map(|(number, offsets)| PublishedMark { owner: *number, to: offsets.published }).collect()
    }

    /// Waits until all marks are archived or their owners have ended; returns at once if there are none.
    pub async fn wait_archived(&self, marks: &[PublishedMark]) {
        for PublishedMark { owner, to } in marks {
            loop {
                let mut moved = std::pin::pin!(self.moved.notified());
                // Enabled before the check, so that no change in between is missed.
                moved.as_mut().enable();
                if self.owners().marks.get(owner).is_none_or(|offsets| offsets.archived >= *to) {
                    break;
                }
                moved.await;
            }
        }
    }

    /// Waits until a local owner of the partition has archived everything below an offset.
    pub async fn wait_offset(&self, partition: u32, offset: u64) {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            // Enabled before the check, so that no change in between is missed.
            moved.as_mut().enable();
            let has_archived = |it: &OwnerOffsets| it.partition == partition && it.archived >= offset;
            if self.owners().marks.values().any(has_archived) {
                return;
            }
            moved.await;
        }
    }

    /// Returns the archived offsets of local owners that have archived all that a predecessor can have published. Also
    /// returns the unarchived offsets of recently ended owners, some published after eviction.
    pub fn archived_up_to(&self) -> ArchivedUpTo {
        let mut owners = self.owners();
        owners.ended.retain(|_, (_, since)| since.elapsed() < ENDED_OWNER_RETENTION);
        let up_to = |partition: &u32, offset| PartitionOffset { partition: *partition, offset };
        let is_behind = |it: &&OwnerOffsets| it.archived < it.caught_up_at;
        // An evicted owner that waits for the outcome of its transaction may coexist with its successor.
        let behind: BTreeSet<u32> = owners.marks.values().filter(is_behind).map(|it| it.partition).collect();
        let caught_up = owners.marks.values().filter(|it| !behind.contains(&it.partition));
        ArchivedUpTo {
            archived: caught_up.map(|it| up_to(&it.partition, it.archived)).collect(),
            unarchived: owners
                .ended
                .iter()
                .map(|(partition, (published, _))| up_to(partition, *published))
                .collect(),
        }
    }

    /// Replies to a peer that waits for these marks, or for everything published by now if there are none; waits at
    /// most `within`.
    pub async fn answer(&self, marks: Vec<PublishedMark>, within: Duration) -> ArchiveStatus {
        let marks = if marks.is_empty() { self.published(None) } else { marks };
        match time::timeout(within, self.wait_archived(&marks)).await {
            Ok(()) => ArchiveStatus::ArchivedUpTo(self.archived_up_to()),
            Err(_) => ArchiveStatus::NotYet(marks),
        }
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock()
    }
}

impl UnarchivedMark {
    /// Notes that everything below `to` is about to be published. Call it before the recipients are looked up.
    pub fn set_published(&self, to: u64) {
        if let Some(offsets) = self.all.owners().marks.get_mut(&self.number) {
            offsets.published = to;
        }
    }

    /// Notes that everything below `to` is archived.
    pub fn archived(&self, to: u64) {
        if let Some(offsets) = self.all.owners().marks.get_mut(&self.number) {
            offsets.archived = to;
        }
        self.all.moved.notify_waiters();
    }
}

impl Drop for UnarchivedMark {
    fn drop(&mut self) {
        let mut owners = self.all.owners();
        if let Some(offsets) = owners.marks.remove(&self.number).filter(|it| it.published > it.archived) {
            let ended = owners.ended.entry(offsets.partition).or_insert((0, Instant::now()));
            *ended = (ended.0.max(offsets.published), Instant::now());
        }
        drop(owners);
        self.all.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn waiter_waits_only_for_what_was_published_before() {
        let unarchived = Arc::new(Unarchived::default());
        assert!(unarchived.published(None).is_empty(), "there is no owner");
        let (one, other) = (unarchived.begin(1, 7, 7), unarchived.begin(2, 0, 0));
        assert!(unarchived.published(None).is_empty(), "nothing is published");
        one.set_published(10);
        other.set_published(5);
        assert_eq!(unarchived.published(Some(2)), [PublishedMark { owner: 2, to: 5 }]);
        let marks = unarchived.published(None);
        let mut waiter = std::pin::pin!(unarchived.wait_archived(&marks));
        assert!(waiter.as_mut().now_or_never().is_none());
        one.set_published(20);
        one.archived(9);
        other.archived(5);
        assert!(waiter.as_mut().now_or_never().is_none());
        one.archived(10);
        assert!(waiter.now_or_never().is_some(), "later records are not waited for");
        assert!(unarchived.wait_archived(&unarchived.published(None)).now_or_never().is_none());
        one.archived(20);
        assert!(unarchived.published(None).is_empty());
    }

    fn archived(up_to: &ArchivedUpTo) -> Vec<(u32, u64)> {
        up_to.archived.iter().map(|it| (it.partition, it.offset)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn ended_owner_and_its_successor_delay_no_waiter() {
        let unarchived = Arc::new(Unarchived::default());
        let owner = unarchived.begin(1, 0, 0);
        owner.set_published(10);
        let marks = unarchived.published(None);
        let mut waiter = std::pin::pin!(unarchived.wait_archived(&marks));
        assert!(waiter.as_mut().now_or_never().is_none());
        drop(owner);
        let successor = unarchived.begin(1, 0, 4);
        successor.set_published(3);
        assert!(waiter.now_or_never().is_some());
        let answer = |marks| unarchived.answer(marks, Duration::from_millis(400));
        let left = vec![PartitionOffset { partition: 1, offset: 10 }];
        let level = |offset| vec![PartitionOffset { partition: 1, offset }];
        assert_eq!(
            answer(marks.clone()).await,
            ArchiveStatus::ArchivedUpTo(ArchivedUpTo { archived: vec![], unarchived: left.clone() })
        );
        let now = vec![PublishedMark { owner: 2, to: 3 }];
        assert_eq!(answer(Vec::new()).await, ArchiveStatus::NotYet(now.clone()));
        successor.set_published(8);
        successor.archived(4);
        let status = answer(now).await;
        assert_eq!(
            status,
            ArchiveStatus::ArchivedUpTo(ArchivedUpTo { archived: level(4), unarchived: left }),
            "later records are not included"
        );
        time::advance(ENDED_OWNER_RETENTION).await;
        assert_eq!(unarchived.archived_up_to(), ArchivedUpTo { archived: level(4), unarchived: vec![] });
    }

    #[test]
    fn owner_catches_up_by_archiving_the_log_end_at_take_over() {
        let unarchived = Arc::new(Unarchived::default());
        let (behind, idle) = (unarchived.begin(3, 5, 9), unarchived.begin(1, 4, 4));
        assert_eq!(archived(&unarchived.archived_up_to()), [(1, 4)]);
        behind.archived(8);
        assert_eq!(archived(&unarchived.archived_up_to()), [(1, 4)]);
        behind.archived(9);
        assert_eq!(archived(&unarchived.archived_up_to()), [(3, 9), (1, 4)]);
        let again = unarchived.begin(3, 9, 12);
        assert_eq!(archived(&unarchived.archived_up_to()), [(1, 4)], "two owners exist for a moment");
        again.archived(12);
        drop((behind, idle));
        assert_eq!(
            unarchived.archived_up_to(),
            ArchivedUpTo { archived: vec![PartitionOffset { partition: 3, offset: 12 }], unarchived: vec![] }
        );
    }
}
