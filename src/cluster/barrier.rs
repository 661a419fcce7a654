//! Read barrier: before a client read, waits until the store shows everything that live owners had already published
//! (ADR 16).
//!
//! An owner notes what it is about to publish before it looks up the recipients' routes, and a client is in the routes
//! before it reads. So either the owner finds the client, or the client's barrier waits for the message.
//!
//! Records that an ended owner published are archived by its successor, which then publishes them again to the clients
//! in the routes by then. So readers do not wait for those records, and they arrive late. A caller whose change would
//! be permanent checks that the store shows them too ([`Cluster::barrier_of`]).

use futures_util::future::join_all;

use super::Cluster;
use crate::{
    link::{ArchivedUpTo, PartitionOffset},
    routes::NodeRow,
};

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

    async fn wait_local(&self, partition: Option<u32>) -> ArchivedUpTo {
        let unarchived = self.owned.unarchived();
        unarchived.wait_archived(&unarchived.published(partition)).await;
        unarchived.archived_up_to()
    }
}
