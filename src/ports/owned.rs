//! The partitions that this node owns now: its owners say so, its lease tells the others.

use std::collections::BTreeSet;

use tokio::sync::watch;

/// A set of partitions that can be waited on.
#[derive(Debug)]
pub struct Owned(watch::Sender<BTreeSet<u32>>);

impl Default for Owned {
    fn default() -> Self {
        Self(watch::Sender::new(BTreeSet::new()))
    }
}

impl Owned {
    /// From here on the partition is owned, or not; the other nodes hear of it with the next renewal, which a change
    /// brings forward. To be set once the take-over is done, and unset before the partition is released.
    pub fn set(&self, partition: u32, owned: bool) {
        self.0.send_if_modified(|set| if owned { set.insert(partition) } else { set.remove(&partition) });
    }

    /// What is owned now, in order.
    pub fn list(&self) -> Vec<u32> {
        self.0.borrow().iter().copied().collect()
    }

    /// Whether that one is.
    pub fn has(&self, partition: u32) -> bool {
        self.0.borrow().contains(&partition)
    }

    /// Told of every change from here on.
    pub fn changes(&self) -> watch::Receiver<BTreeSet<u32>> {
        self.0.subscribe()
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
}
