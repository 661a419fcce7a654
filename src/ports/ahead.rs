//! What the owners of this node have told anybody and not archived yet: readers of the store wait until it is (ADR 16).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

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
}

/// Of one owner: everything below these offsets.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    told: u64,
    archived: u64,
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

    /// An owner begins, having told nothing.
    pub fn begin(self: &Arc<Self>) -> Teller {
        let mut owners = self.owners();
        owners.last += 1;
        let number = owners.last;
        owners.ahead.insert(number, Place::default());
        Teller { all: Arc::clone(self), number }
    }

    /// Waits until everything that was told when this was called is archived, or told by an owner that is no more. Ready at
    /// once where nobody is ahead.
    pub async fn settled(&self) {
        let ahead: Vec<(u64, u64)> = self
            .owners()
            .ahead
            .iter()
            .filter(|(_, place)| place.told > place.archived)
            .map(|(number, place)| (*number, place.told))
            .collect();
        for (number, told) in ahead {
            loop {
                let mut moved = std::pin::pin!(self.moved.notified());
                // Before the look, so that nothing is missed between the two.
                moved.as_mut().enable();
                if self.owners().ahead.get(&number).is_none_or(|place| place.archived >= told) {
                    break;
                }
                moved.await;
            }
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
        self.all.owners().ahead.remove(&self.number);
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
        assert!(ahead.settled().now_or_never().is_some(), "nobody is there");
        let (one, other) = (ahead.begin(), ahead.begin());
        assert!(ahead.settled().now_or_never().is_some(), "nothing was told");
        one.tells(10);
        other.tells(5);
        let mut asked = std::pin::pin!(ahead.settled());
        assert!(asked.as_mut().now_or_never().is_none());
        one.tells(20);
        one.archived(9);
        other.archived(5);
        assert!(asked.as_mut().now_or_never().is_none());
        one.archived(10);
        assert!(asked.now_or_never().is_some(), "what came later is not waited for");
        assert!(ahead.settled().now_or_never().is_none());
        one.archived(20);
        assert!(ahead.settled().now_or_never().is_some());
    }

    #[tokio::test]
    async fn nobody_waits_for_an_owner_that_is_no_more_nor_for_its_successor_here() {
        let ahead = Arc::new(Ahead::default());
        let owner = ahead.begin();
        owner.tells(10);
        let mut asked = std::pin::pin!(ahead.settled());
        assert!(asked.as_mut().now_or_never().is_none());
        drop(owner);
        let successor = ahead.begin();
        successor.tells(3);
        assert!(asked.now_or_never().is_some());
        assert!(ahead.settled().now_or_never().is_none());
    }
}
