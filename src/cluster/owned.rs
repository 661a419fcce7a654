//! The partitions that this node owns now, and how far it is in each: its owners say so, its lease tells the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::Ahead;
use crate::routes::Standing;

/// A set of partitions that can be waited on.
#[derive(Debug)]
pub struct Owned {
    set: watch::Sender<BTreeSet<u32>>,
    progress: Mutex<BTreeMap<u32, Progress>>,
    at_log: Mutex<BTreeSet<u32>>,
    ahead: Arc<Ahead>,
}

/// How far an owner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Everything below is archived.
    pub position: u64,
    /// The end of the log, as far as it was heard.
    pub end: u64,
    /// What a record of this partition takes in the log, rather too much than too little.
    pub record_bytes: u64,
    /// When it was seen that something waits for the archive, and how old the oldest of it was then; none = nothing waits.
    pub waits: Option<(Instant, Duration)>,
}

impl Progress {
    /// For how long the oldest record waits that is not archived.
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
            ahead: Arc::default(),
        }
    }
}

impl Owned {
    /// From here on the partition is owned, or not; the other nodes hear of it with the next renewal, which a change
    /// brings forward. To be set once the take-over is done, and unset before the partition is released.
    pub fn set(&self, partition: u32, owned: bool) {
        if !owned {
            self.progress().remove(&partition);
            self.set_at_log(partition, false);
        }
        self.set.send_if_modified(|set| if owned { set.insert(partition) } else { set.remove(&partition) });
    }

    /// What is owned now, in order.
    pub fn list(&self) -> Vec<u32> {
        self.set.borrow().iter().copied().collect()
    }

    /// Whether that one is.
    pub fn has(&self, partition: u32) -> bool {
        self.set.borrow().contains(&partition)
    }

    /// Told of every change from here on.
    pub fn changes(&self) -> watch::Receiver<BTreeSet<u32>> {
        self.set.subscribe()
    }

    /// An owner begins, here; its node hears of it by [`Self::set`].
    pub fn begin(&self, partition: u32, now: Progress) {
        self.progress().insert(partition, now);
    }

    /// The owner of a partition went on; the others hear of it with the next renewal.
    pub fn update(&self, partition: u32, change: impl FnOnce(&mut Progress)) {
        if let Some(progress) = self.progress().get_mut(&partition) {
            change(progress);
        }
    }

    /// How far the owner of that partition said it is.
    pub fn progress_of(&self, partition: u32) -> Option<Progress> {
        self.progress().get(&partition).copied()
    }

    /// Whether the owner of that partition waits for the log from here on: what stands still then is not for want of the
    /// store.
    pub fn set_at_log(&self, partition: u32, at_log: bool) {
        let mut all = self.at_log.lock().unwrap_or_else(PoisonError::into_inner);
        if at_log {
            all.insert(partition)
        } else {
            all.remove(&partition)
        };
    }

    /// Whether its owner said so last.
    pub fn is_at_log(&self, partition: u32) -> bool {
        self.at_log.lock().unwrap_or_else(PoisonError::into_inner).contains(&partition)
    }

    /// What its owners told and did not archive yet.
    pub fn ahead(&self) -> &Arc<Ahead> {
        &self.ahead
    }

    /// How far this node is in what it owns, in the order of the partitions.
    pub fn standings(&self) -> Vec<Standing> {
        let now = Instant::now();
        let standing = |(partition, it): (&u32, &Progress)| Standing {
            partition: *partition,
            position: it.position,
            end: it.end.max(it.position),
            behind_ms: u64::try_from(it.behind(now).as_millis()).unwrap_or(u64::MAX),
            behind_bytes: it.end.saturating_sub(it.position).saturating_mul(it.record_bytes),
        };
        self.progress().iter().map(standing).collect()
    }

    fn progress(&self) -> MutexGuard<'_, BTreeMap<u32, Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lists_what_is_owned_in_order_and_tells_changes_only() {
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
        assert!(!changes.has_changed().unwrap(), "nothing is another than before");
        owned.set(2, false);
        assert!(changes.has_changed().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_grows_older_and_what_is_not_owned_has_no_standing() {
        let owned = Owned::default();
        let waits = Some((Instant::now(), Duration::from_secs(3)));
        owned.set(2, true);
        owned.begin(2, Progress { position: 10, end: 14, record_bytes: 100, waits });
        owned.begin(5, Progress { position: 7, end: 7, record_bytes: 0, waits: None });
        tokio::time::advance(Duration::from_secs(4)).await;
        let [slow, idle] = owned.standings()[..] else { panic!("two are noted") };
        let expected = Standing { partition: 2, position: 10, end: 14, behind_ms: 7_000, behind_bytes: 400 };
        assert_eq!((slow, slow.behind()), (expected, 4));
        assert_eq!(idle, Standing { partition: 5, position: 7, end: 7, ..Standing::default() });
        owned.set(2, false);
        assert_eq!(owned.standings(), [idle]);
    }
}
