//! Peers: the node list as this node last fetched it, which callers of the routes compare with.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use tidegate_protocol::machine::ledger::LEDGER_NEWEST;
use tokio::sync::Notify;

use super::Lags;
use crate::{
    cluster::barrier_calls::BarrierCalls,
    link::LeaseStatus,
    routes::{Lease, NodeBoot, NodeRow, PartitionLag},
};

/// Node list, refreshed by the node's lease. Reading never waits: while the routes are unavailable, the last list
/// stays.
#[derive(Debug)]
pub struct Peers {
    snapshot: Mutex<PeerSnapshot>,
    versions: Arc<Versions>,
    refresh: Notify,
    lags: Lags,
    pub(crate) barrier_calls: BarrierCalls,
    /// Version of the ledger's rules that this node announces.
    own_rules: AtomicU32,
}

/// Counter of the snapshots. Waiters wake in the order in which they began to wait, unlike those of a `watch` channel.
#[derive(Debug, Default)]
struct Versions {
    current: AtomicU64,
    changed: Notify,
}

/// Subscription to changes of the snapshot.
pub struct PeerChanges {
    versions: Arc<Versions>,
    seen: u64,
}

impl PeerChanges {
    /// Waits until the snapshot has changed since the last call, or since the subscription.
    pub async fn changed(&mut self) {
        loop {
            let mut changed = pin!(self.versions.changed.notified());
            changed.as_mut().enable();
            let current = self.versions.current.load(Ordering::Acquire);
            if std::mem::replace(&mut self.seen, current) != current {
                return;
            }
            changed.await;
        }
    }
}

/// Snapshot of the node list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSnapshot {
    /// All rows of the last successful fetch, this node's included.
    pub rows: Arc<[NodeRow]>,
    /// Live runs of other nodes. A run that a loss of routes removed from the list stays until it has had time to
    /// renew.
    pub others: Arc<[NodeRow]>,
    /// Whether the routes have failed to answer since that fetch.
    pub stale: bool,
    /// Whether a lookup in the routes may be incomplete: they are unavailable, or lost data that not all nodes have had
    /// time to re-assert. Until then a message that must reach all its nodes is sent to the peers too.
    pub may_be_incomplete: bool,
    /// Number of times that the routes lost data, or may have; what was written there before must be written again.
    pub losses: u64,
}

impl Default for Peers {
    fn default() -> Self {
        Self::new(Lags::default())
    }
}

impl Peers {
    /// Creates an empty list; `lags` is updated with each fetch.
    pub fn new(lags: Lags) -> Self {
        Self {
            snapshot: Mutex::default(),
            versions: Arc::default(),
            refresh: Notify::new(),
            lags,
            barrier_calls: BarrierCalls::default(),
            own_rules: AtomicU32::new(LEDGER_NEWEST),
        }
    }

    /// Returns the archive lags, and with them the partitions that are refused.
    pub fn lags(&self) -> &Lags {
        &self.lags
    }

    /// Returns the last snapshot.
    pub fn snapshot(&self) -> PeerSnapshot {
        self.lock().clone()
    }

    /// Sets the version of the ledger's rules that this node announces, of which a single node has no list.
    pub fn set_own_rules(&self, version: u32) {
        self.own_rules.store(version, Ordering::Relaxed);
    }

    /// Returns whether every node that may run, this one included, announces at least that version of the ledger's rules. A
    /// node whose lease has expired may come back until it is retired. Partitions switch some time later; their owners refuse
    /// what is too early.
    pub fn all_follow(&self, version: u32) -> bool {
        if self.own_rules.load(Ordering::Relaxed) < version {
            return false;
        }
        let snapshot = self.lock();
        let unretired = snapshot.rows.iter().filter(|row| row.lease != Lease::Retired);
        unretired.chain(snapshot.others.iter()).all(|row| row.info.rules >= version)
    }

    /// Returns the live runs of other nodes, as of the last snapshot.
    pub fn others(&self) -> Arc<[NodeRow]> {
        Arc::clone(&self.lock().others)
    }

    /// Returns the same runs, without their announcements.
    pub fn runs(&self) -> Vec<NodeBoot> {
        self.lock().others.iter().map(|row| row.info.boot.clone()).collect()
    }

    /// Returns whether a lookup in the routes may be incomplete; then address [`Self::others`] too.
    pub fn may_be_incomplete(&self) -> bool {
        self.lock().may_be_incomplete
    }

    /// Returns the number of times that the routes lost data, or may have.
    pub fn losses(&self) -> u64 {
        self.lock().losses
    }

    /// Returns whether all nodes see that run: its lease is live, and the routes lost nothing recently.
    pub fn sees(&self, run: &NodeBoot) -> bool {
        let snapshot = self.lock();
        !snapshot.stale && !snapshot.may_be_incomplete && snapshot.lease_of(run) == Some(Lease::Live)
    }

    /// Returns whether that run is a live run of another node, as of the last snapshot.
    pub fn is_live(&self, run: &NodeBoot) -> bool {
        self.lock().others.iter().any(|row| row.info.boot == *run)
    }

    /// Returns whether this node renews its lease, and whether it lists the other run as live; for that run, when it
    /// can't reach the routes itself.
    pub fn lease_status(&self, of: &NodeBoot) -> LeaseStatus {
        let snapshot = self.lock();
        let lists_caller = snapshot.others.iter().any(|row| row.info.boot == *of);
        LeaseStatus { renews: !snapshot.stale && !snapshot.rows.is_empty(), lists_caller }
    }

    /// Returns the other nodes that announce the partition: one, none while it moves, or two until an evicted owner
    /// learns of it. A caller that gets "not the owner" from all of them calls [`Self::request_refresh`] and waits for
    /// [`Self::changes`].
    pub fn owners_of(&self, partition: u32) -> Vec<NodeBoot> {
        let snapshot = self.lock();
        let owners = snapshot.others.iter().filter(|row| row.info.owns.contains(&partition));
        owners.map(|row| row.info.boot.clone()).collect()
    }

    /// Subscribes to changes of the snapshot.
    pub fn changes(&self) -> PeerChanges {
        let versions = Arc::clone(&self.versions);
        PeerChanges { seen: versions.current.load(Ordering::Acquire), versions }
    }

    /// Requests a refresh soon, before the next lease renewal.
    pub fn request_refresh(&self) {
        self.refresh.notify_one();
    }

    /// Waits for a requested refresh; for the lease.
    pub async fn refresh_requested(&self) {
        self.refresh.notified().await;
    }

    /// Replaces the snapshot, and returns whether it changed; for the lease.
    pub fn set(&self, now: PeerSnapshot) -> bool {
        let mut snapshot = self.lock();
        if *snapshot == now {
            return false;
        }
        *snapshot = now;
        drop(snapshot);
        self.versions.current.fetch_add(1, Ordering::AcqRel);
        self.versions.changed.notify_waiters();
        true
    }

    fn lock(&self) -> MutexGuard<'_, PeerSnapshot> {
        self.snapshot.lock()
    }
}

impl PeerSnapshot {
    /// Returns the addresses of the other nodes, for the link.
    pub fn addresses(&self) -> Vec<(NodeBoot, String)> {
        self.others.iter().map(|row| (row.info.boot.clone(), row.info.peer_address.clone())).collect()
    }

    /// Returns the archive lags that owners on other nodes announce.
    pub fn partition_lags(&self) -> impl Iterator<Item = PartitionLag> {
        self.others.iter().flat_map(|row| row.info.partition_lags.iter().copied())
    }

    /// Returns the state of that run's lease; `None` if the run is not listed.
    pub fn lease_of(&self, run: &NodeBoot) -> Option<Lease> {
        self.rows.iter().find(|row| row.info.boot == *run).map(|row| row.lease)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::NodeId;

    use super::*;
    use crate::routes::NodeInfo;

    fn row(name: &str, rules: u32, lease: Lease) -> NodeRow {
        let boot = NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 };
        NodeRow::new(NodeInfo { rules, ..NodeInfo::new(boot) }, lease)
    }

    #[test]
    fn x10_node_of_a_former_version_counts_until_it_is_retired() {
        let all_announce = |rows: &[NodeRow], others: &[NodeRow]| {
            let peers = Peers::default();
            peers.set(PeerSnapshot { rows: rows.into(), others: others.into(), ..PeerSnapshot::default() });
            peers.all_follow(4)
        };
        let me = || row("a", 4, Lease::Live);
        assert!(all_announce(&[], &[]), "a single node has no list");
        let held_back = Peers::default();
        held_back.set_own_rules(3);
        assert!(!held_back.all_follow(4) && held_back.all_follow(3), "its operator holds the rules back");
        assert!(all_announce(&[me(), row("b", 5, Lease::Live)], &[row("b", 5, Lease::Live)]));
        assert!(all_announce(&[me(), row("b", 3, Lease::Retired)], &[]));
        assert!(!all_announce(&[me(), row("b", 3, Lease::Lapsed)], &[]), "it may come back");
        assert!(
            !all_announce(&[me()], &[row("b", 3, Lease::Live)]),
            "a loss of routes removed it from the list"
        );
        assert!(!all_announce(&[row("a", 3, Lease::Live)], &[]), "its operator holds the rules back");
    }
}
