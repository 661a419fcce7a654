//! Read barrier: before a client read, waits until the store shows everything that live owners had already published
//! (ADR 16).
//!
//! An owner notes what it is about to publish before it looks up the recipients' routes, and a client is in the routes
//! before it reads. So either the owner finds the client, or the client's barrier waits for the message.
//!
//! Records that an ended owner published are archived by its successor, which then publishes them again to the clients
//! in the routes by then. So readers do not wait for those records, and they arrive late. A caller whose change would
//! be permanent checks that the store shows them too ([`Cluster::barrier_of`]).

use std::collections::HashMap;

use futures_util::future::join_all;

use super::Cluster;
use crate::{
    link::{ArchivedUpTo, PartitionOffset},
    routes::NodeRow,
};

/// What nodes reported of all partitions after the read barrier.
#[derive(Debug, Default)]
pub struct PublishedOffsets {
    /// Offset below which its owner has archived each partition, as far as it is known.
    archived: HashMap<u32, u64>,
    /// Offsets that ended owners had published but not archived.
    unarchived: HashMap<u32, u64>,
    /// Whether each node that may own a partition has replied.
    have_all_replied: bool,
    /// Number of partitions.
    partitions: u32,
}

impl PublishedOffsets {
    fn add(&mut self, up_to: &ArchivedUpTo) {
        for (found, all) in [(&mut self.archived, &up_to.archived), (&mut self.unarchived, &up_to.unarchived)]
        {
            for it in all {
                let offset = found.entry(it.partition).or_default();
                *offset = it.offset.max(*offset);
            }
        }
    }

    /// Returns whether everything that can have been published is archived below offsets that are known: each partition
    /// has an owner that has caught up with earlier ones, and no node is silent.
    pub fn are_complete(&self) -> bool {
        let is_known = |partition: u32| {
            let archived = self.archived.get(&partition);
            archived.is_some() && archived >= self.unarchived.get(&partition)
        };
        self.have_all_replied && (0..self.partitions).all(is_known)
    }

    /// Returns whether a store that has archived partitions below these offsets lacks something that owners have
    /// archived: it fell back to an older state.
    pub fn are_above(&self, stored: &HashMap<u32, u64>) -> bool {
        self.archived.iter().any(|(partition, offset)| stored.get(partition).copied().unwrap_or(0) < *offset)
    }
}

impl Cluster {
    /// Waits until the store shows everything that live owners, on all nodes, had published when this was called. A
    /// node that reports unarchived records is waited for as long as it takes, a peer without a reply at most a second.
    /// Returns at once if all owners archive first.
    pub async fn barrier(&self) {
        if self.owned.unarchived().is_allowed() {
            let runs = self.peers.runs();
            self.peers.barrier_calls.retain(|run| runs.contains(run), runs.len());
            join_all(runs.iter().map(|run| self.peers.barrier_calls.call(&self.ports.link, run))).await;
            self.wait_local(None).await;
        }
    }

    /// Like [`Self::barrier`], for a read of one partition: others may be slow. An owner that its node has not
    /// announced yet archives first.
    pub async fn barrier_in(&self, partition: u32) {
        if self.owned.unarchived().is_allowed() {
            let snapshot = self.peers.snapshot();
            let is_queried =
                |row: &&NodeRow| snapshot.may_be_incomplete || row.info.owns.contains(&partition);
            let queried = snapshot.others.iter().filter(is_queried);
            join_all(queried.map(|row| self.peers.barrier_calls.call(&self.ports.link, &row.info.boot)))
                .await;
            self.wait_local(Some(partition)).await;
        }
    }

    /// Like [`Self::barrier`]; returns the offset below which everything that can have been published in the partition
    /// is archived, or `None` if it is not known. Some node must have an owner that has caught up with earlier ones, and
    /// no silent node may own the partition. A store that fell back to an older state has archived less.
    pub async fn barrier_of(&self, partition: u32) -> Option<u64> {
        let snapshot = self.peers.snapshot();
        let replies = join_all(
            snapshot.others.iter().map(|row| self.peers.barrier_calls.call(&self.ports.link, &row.info.boot)),
        )
        .await;
        let own = self.wait_local(None).await;
        let of = |all: &[PartitionOffset]| {
            all.iter().filter(|it| it.partition == partition).map(|it| it.offset).max()
        };
        let (mut archived, mut unarchived) = (of(&own.archived), of(&own.unarchived));
        for (row, reply) in snapshot.others.iter().zip(replies) {
            match reply {
                Some(up_to) => {
                    archived = archived.max(of(&up_to.archived));
                    unarchived = unarchived.max(of(&up_to.unarchived));
                }
                None if row.info.owns.contains(&partition) => return None,
                None => {}
            }
        }
        // A node that is not visible may have published anything.
        archived.filter(|_| archived >= unarchived && !snapshot.may_be_incomplete && !snapshot.stale)
    }

    /// Like [`Self::barrier`]; returns what nodes reported of all partitions.
    pub async fn barrier_of_all(&self) -> PublishedOffsets {
        let snapshot = self.peers.snapshot();
        let replies = join_all(
            snapshot.others.iter().map(|row| self.peers.barrier_calls.call(&self.ports.link, &row.info.boot)),
        )
        .await;
        let mut published = PublishedOffsets {
            partitions: self.ports.bus.partitions(),
            // A node that is not visible may have published anything.
            have_all_replied: !snapshot.may_be_incomplete && !snapshot.stale,
            ..PublishedOffsets::default()
        };
        published.add(&self.wait_local(None).await);
        for (row, reply) in snapshot.others.iter().zip(&replies) {
            match reply {
                Some(up_to) => published.add(up_to),
                None => published.have_all_replied &= row.info.owns.is_empty(),
            }
        }
        published
    }

    async fn wait_local(&self, partition: Option<u32>) -> ArchivedUpTo {
        let unarchived = self.owned.unarchived();
        unarchived.wait_archived(&unarchived.published(partition)).await;
        unarchived.archived_up_to()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(archived: &[(u32, u64)], unarchived: &[(u32, u64)]) -> PublishedOffsets {
        let offsets = |all: &[(u32, u64)]| {
            all.iter()
                .map(|(partition, offset)| PartitionOffset { partition: *partition, offset: *offset })
                .collect()
        };
        let mut published =
            PublishedOffsets { partitions: 2, have_all_replied: true, ..PublishedOffsets::default() };
        published.add(&ArchivedUpTo { archived: offsets(archived), unarchived: offsets(unarchived) });
        published
    }

    #[test]
    fn offsets_are_complete_only_with_a_caught_up_owner_of_each_partition() {
        assert!(published(&[(0, 5), (1, 0)], &[]).are_complete());
        assert!(published(&[(0, 5), (1, 3)], &[(0, 5)]).are_complete());
        assert!(!published(&[(0, 5)], &[]).are_complete(), "no owner");
        assert!(!published(&[(0, 5), (1, 3)], &[(1, 4)]).are_complete(), "an ended owner was ahead");
        let silent = PublishedOffsets { have_all_replied: false, ..published(&[(0, 5), (1, 0)], &[]) };
        assert!(!silent.are_complete());
    }

    #[test]
    fn store_that_fell_back_lacks_what_owners_archived() {
        let published = published(&[(0, 5), (1, 0)], &[]);
        assert!(!published.are_above(&HashMap::from([(0, 5)])));
        assert!(!published.are_above(&HashMap::from([(0, 9), (1, 1)])));
        assert!(published.are_above(&HashMap::from([(0, 4), (1, 1)])));
        assert!(published.are_above(&HashMap::new()));
    }
}
