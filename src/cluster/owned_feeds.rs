//! Feeds of the partitions that this node owns, as those see them that deliver from them.
//!
//! Owners only note that they have archived, so no delivery ever delays one.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::store::Fence;

/// Feeds of the partitions that this node owns, by partition.
pub type OwnedFeeds = BTreeMap<u32, OwnedFeed>;

/// Feed of a partition that this node owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedFeed {
    /// Fence of the owner.
    pub fence: Fence,
    /// Counts the archives of the owner; a change means that the feed may have grown.
    pub archives: u64,
    /// Whether the partition is handed over: requests in flight get a moment to end.
    pub is_leaving: bool,
}

/// Board on which the owners of a node note what their feeds do.
#[derive(Debug)]
pub struct FeedBoard(watch::Sender<OwnedFeeds>);

impl Default for FeedBoard {
    fn default() -> Self {
        Self(watch::Sender::new(OwnedFeeds::new()))
    }
}

impl FeedBoard {
    /// Notes that an owner has taken a partition over.
    pub fn begin(&self, partition: u32, fence: Fence) {
        let feed = OwnedFeed { fence, archives: 0, is_leaving: false };
        self.0.send_modify(|feeds| {
            feeds.insert(partition, feed);
        });
    }

    /// Notes that the owner has archived.
    pub fn archived(&self, partition: u32, fence: Fence) {
        self.change(partition, fence, |feed| feed.archives += 1);
    }

    /// Notes that the owner is about to release the partition.
    pub fn leave(&self, partition: u32, fence: Fence) {
        self.change(partition, fence, |feed| feed.is_leaving = true);
    }

    /// Notes that this node no longer owns the partition.
    pub fn end(&self, partition: u32) {
        self.0.send_if_modified(|feeds| feeds.remove(&partition).is_some());
    }

    /// Subscribes to the feeds.
    pub fn subscribe(&self) -> watch::Receiver<OwnedFeeds> {
        self.0.subscribe()
    }

    fn change(&self, partition: u32, fence: Fence, change: impl FnOnce(&mut OwnedFeed)) {
        self.0.send_if_modified(|feeds| {
            let feed = feeds.get_mut(&partition).filter(|feed| feed.fence == fence);
            feed.map(change).is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_owner_changes_nothing_of_the_next_one() {
        let board = FeedBoard::default();
        let feeds = board.subscribe();
        let feed = |number: u32| feeds.borrow().get(&number).copied();
        board.archived(3, Fence(1));
        assert_eq!(feed(3), None, "nobody owns it");
        board.begin(3, Fence(1));
        board.archived(3, Fence(1));
        assert_eq!(feed(3), Some(OwnedFeed { fence: Fence(1), archives: 1, is_leaving: false }));
        board.begin(3, Fence(2));
        board.archived(3, Fence(1));
        board.leave(3, Fence(1));
        assert_eq!(feed(3), Some(OwnedFeed { fence: Fence(2), archives: 0, is_leaving: false }));
        board.leave(3, Fence(2));
        assert!(feed(3).is_some_and(|feed| feed.is_leaving));
        board.end(3);
        assert_eq!(feed(3), None);
    }
}
