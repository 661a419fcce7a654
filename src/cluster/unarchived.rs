//! What the owners of this node have told anybody and not archived yet: readers of the store wait until it is (ADR 16).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{self, Instant},
};

use crate::link::{Level, Settled, Told, UpTo};

/// For so long it is remembered what an owner told that did not archive it: longer than others need to take over.
const OWED: Duration = Duration::from_secs(60);

/// How far owners are ahead of their archives; cheap to ask where nobody is.
#[derive(Debug, Default)]
pub struct Ahead {
    owners: Mutex<Owners>,
    moved: Notify,
    is_allowed: AtomicBool,
}

#[derive(Debug, Default)]
struct Owners {
    /// By a number that no two of them share.
    ahead: BTreeMap<u64, Place>,
    last: u64,
    /// By partition: what was told here and not archived here, and since when nobody here could.
    owed: BTreeMap<u32, (u64, Instant)>,
}

/// Of one owner: everything below these offsets.
#[derive(Clone, Copy, Debug)]
struct Place {
    partition: u32,
    told: u64,
    archived: u64,
    /// The end of the log when it took over: no owner before it can have told more.
    level: u64,
}

/// One owner's part of it; what it told and did not archive is for its successor to tell again, once this is gone.
#[derive(Debug)]
pub struct Teller {
    all: Arc<Ahead>,
    number: u64,
}

impl Ahead {
    /// From here on owners may be ahead of their archives, here and on other nodes.
    pub fn allow(&self) {
        self.is_allowed.store(true, Ordering::Relaxed);
    }

    /// Whether owners may be.
    pub fn is_allowed(&self) -> bool {
        self.is_allowed.load(Ordering::Relaxed)
    }

    /// An owner begins, having told nothing: its partition is archived up to there, and the log ends there.
    pub fn begin(self: &Arc<Self>, partition: u32, archived: u64, end: u64) -> Teller {
        let mut owners = self.owners();
        owners.last += 1;
        let number = owners.last;
        owners.ahead.insert(number, Place { partition, told: 0, archived, level: end });
        Teller { all: Arc::clone(self), number }
    }

    /// What was told and is not archived now, in one partition or in all.
    pub fn told(&self, partition: Option<u32>) -> Vec<Told> {
        let owners = self.owners();
        let is_asked = |it: &Place| partition.is_none_or(|partition| it.partition == partition);
        let ahead = owners.ahead.iter().filter(|(_, it)| it.told > it.archived && is_asked(it));
        ahead.map(|(number, place)| Told { owner: *number, to: place.told }).collect()
    }

    /// Waits until all of that is archived, or told by an owner that is no more. Ready at once for nothing.
    pub async fn settled(&self, told: &[Told]) {
        for Told { owner, to } in told {
            loop {
                let mut moved = std::pin::pin!(self.moved.notified());
                // Before the look, so that nothing is missed between the two.
                moved.as_mut().enable();
                if self.owners().ahead.get(owner).is_none_or(|place| place.archived >= *to) {
                    break;
                }
                moved.await;
            }
        }
    }

    /// How far the owners here are who have archived what any owner before them can have told by their take-over; and what
    /// those told lately who are no more, which one may have done after it was put out.
    pub fn level(&self) -> Level {
        let mut owners = self.owners();
        owners.owed.retain(|_, (_, since)| since.elapsed() < OWED);
        let up_to = |partition: &u32, offset| UpTo { partition: *partition, offset };
        let is_behind = |it: &&Place| it.archived < it.level;
        // One that was lost and waits for what became of its archive may be here beside its successor.
        let behind: BTreeSet<u32> = owners.ahead.values().filter(is_behind).map(|it| it.partition).collect();
        let level = owners.ahead.values().filter(|it| !behind.contains(&it.partition));
        Level {
            archived: level.map(|it| up_to(&it.partition, it.archived)).collect(),
            owed: owners.owed.iter().map(|(partition, (told, _))| up_to(partition, *told)).collect(),
        }
    }

    /// What a peer hears that asks for what was told: that, or by now, when it is empty; within that time.
    pub async fn answer(&self, told: Vec<Told>, within: Duration) -> Settled {
        let told = if told.is_empty() { self.told(None) } else { told };
        match time::timeout(within, self.settled(&told)).await {
            Ok(()) => Settled::Level(self.level()),
            Err(_) => Settled::NotYet(told),
        }
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Teller {
    /// Everything below `to` is about to be told; to be said before it is looked up whom it is for.
    pub fn tells(&self, to: u64) {
        if let Some(place) = self.all.owners().ahead.get_mut(&self.number) {
            place.told = to;
        }
    }

    /// Everything below `to` is archived.
    pub fn archived(&self, to: u64) {
        if let Some(place) = self.all.owners().ahead.get_mut(&self.number) {
            place.archived = to;
        }
        self.all.moved.notify_waiters();
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        let mut owners = self.all.owners();
        if let Some(place) = owners.ahead.remove(&self.number).filter(|it| it.told > it.archived) {
            let owed = owners.owed.entry(place.partition).or_insert((0, Instant::now()));
            *owed = (owed.0.max(place.told), Instant::now());
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
    async fn who_asks_waits_for_what_was_told_before_and_for_nothing_after() {
        let ahead = Arc::new(Ahead::default());
        assert!(ahead.told(None).is_empty(), "nobody is there");
        let (one, other) = (ahead.begin(1, 7, 7), ahead.begin(2, 0, 0));
        assert!(ahead.told(None).is_empty(), "nothing was told");
        one.tells(10);
        other.tells(5);
        assert_eq!(ahead.told(Some(2)), [Told { owner: 2, to: 5 }]);
        let told = ahead.told(None);
        let mut asked = std::pin::pin!(ahead.settled(&told));
        assert!(asked.as_mut().now_or_never().is_none());
        one.tells(20);
        one.archived(9);
        other.archived(5);
        assert!(asked.as_mut().now_or_never().is_none());
        one.archived(10);
        assert!(asked.now_or_never().is_some(), "what came later is not waited for");
        assert!(ahead.settled(&ahead.told(None)).now_or_never().is_none());
        one.archived(20);
        assert!(ahead.told(None).is_empty());
    }

    fn archived(level: &Level) -> Vec<(u32, u64)> {
        level.archived.iter().map(|it| (it.partition, it.offset)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_an_owner_that_is_no_more_nor_for_its_successor_here() {
        let ahead = Arc::new(Ahead::default());
        let owner = ahead.begin(1, 0, 0);
        owner.tells(10);
        let told = ahead.told(None);
        let mut asked = std::pin::pin!(ahead.settled(&told));
        assert!(asked.as_mut().now_or_never().is_none());
        drop(owner);
        let successor = ahead.begin(1, 0, 4);
        successor.tells(3);
        assert!(asked.now_or_never().is_some());
        let answer = |told| ahead.answer(told, Duration::from_millis(400));
        let owed = vec![UpTo { partition: 1, offset: 10 }];
        let level = |offset| vec![UpTo { partition: 1, offset }];
        assert_eq!(
            answer(told.clone()).await,
            Settled::Level(Level { archived: vec![], owed: owed.clone() })
        );
        let now = vec![Told { owner: 2, to: 3 }];
        assert_eq!(answer(Vec::new()).await, Settled::NotYet(now.clone()));
        successor.tells(8);
        successor.archived(4);
        let said = answer(now).await;
        assert_eq!(said, Settled::Level(Level { archived: level(4), owed }), "not of what came since");
        time::advance(OWED).await;
        assert_eq!(ahead.level(), Level { archived: level(4), owed: vec![] });
    }

    #[test]
    fn an_owner_is_level_when_it_has_archived_the_log_as_it_was_when_it_took_over() {
        let ahead = Arc::new(Ahead::default());
        let (behind, idle) = (ahead.begin(3, 5, 9), ahead.begin(1, 4, 4));
        assert_eq!(archived(&ahead.level()), [(1, 4)]);
        behind.archived(8);
        assert_eq!(archived(&ahead.level()), [(1, 4)]);
        behind.archived(9);
        assert_eq!(archived(&ahead.level()), [(3, 9), (1, 4)]);
        let again = ahead.begin(3, 9, 12);
        assert_eq!(archived(&ahead.level()), [(1, 4)], "both are of it for a moment");
        again.archived(12);
        drop((behind, idle));
        assert_eq!(ahead.level(), Level { archived: vec![UpTo { partition: 3, offset: 12 }], owed: vec![] });
    }
}
