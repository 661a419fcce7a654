//! Which nodes there are, as this one saw them last: the copy that callers of the routes compare with.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::{Lags, barrier::Rounds};
use crate::routes::{Lease, NodeBoot, NodeRow, Standing};

/// The nodes by the last look, kept by the node's lease (`member`). Reading never waits, also while the routes are away: the
/// last known list stays.
#[derive(Debug)]
pub struct Peers {
    seen: watch::Sender<Seen>,
    bell: Notify,
    lags: Lags,
    pub(crate) rounds: Rounds,
}

/// One look at the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// All rows of the last look that succeeded, this node's own among them.
    pub rows: Arc<[NodeRow]>,
    /// The live runs of other nodes. One that a loss of the routes took off the list stays until it had time to renew.
    pub others: Arc<[NodeRow]>,
    /// Whether the routes did not answer since.
    pub stale: bool,
    /// Whether a look-up in the routes may name too few: they are away, or were lost and not all nodes have had the time to
    /// put theirs back. Who must reach everybody asks the peers too until then (DESIGN 7).
    pub doubtful: bool,
    /// How often the routes lost something, or may have: what was put there before is to be put there again.
    pub losses: u64,
}

impl Default for Peers {
    fn default() -> Self {
        Self::new(Lags::default())
    }
}

impl Peers {
    /// Nobody was seen yet; `lags` is told of each look.
    pub fn new(lags: Lags) -> Self {
        Self { seen: watch::Sender::default(), bell: Notify::new(), lags, rounds: Rounds::default() }
    }

    /// Which partitions take no messages, by what their owners said last.
    pub fn lags(&self) -> &Lags {
        &self.lags
    }

    /// The last look.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// The live runs of other nodes, as of the last look.
    pub fn others(&self) -> Arc<[NodeRow]> {
        Arc::clone(&self.seen.borrow().others)
    }

    /// The same without what they say of themselves.
    pub fn runs(&self) -> Vec<NodeBoot> {
        self.seen.borrow().others.iter().map(|row| row.info.boot.clone()).collect()
    }

    /// Whether a look-up in the routes may name too few: then ask [`Self::others`] too.
    pub fn doubtful(&self) -> bool {
        self.seen.borrow().doubtful
    }

    /// Whether all nodes see that run, as far as is known here: its lease lives, and nothing was lost lately.
    pub fn sees(&self, run: &NodeBoot) -> bool {
        let seen = self.seen.borrow();
        !seen.stale && !seen.doubtful && seen.lease_of(run) == Some(Lease::Live)
    }

    /// Whether that run is a live other node, as of the last look.
    pub fn is_live(&self, run: &NodeBoot) -> bool {
        self.seen.borrow().others.iter().any(|row| row.info.boot == *run)
    }

    /// The other nodes that say that they own the partition: one, or none while it moves, or two when the old owner has not
    /// heard yet. Who gets "not the owner" from all of them calls [`Self::look_again`] and waits for [`Self::changes`].
    pub fn owners_of(&self, partition: u32) -> Vec<NodeBoot> {
        let seen = self.seen.borrow();
        let owners = seen.others.iter().filter(|row| row.info.owns.contains(&partition));
        owners.map(|row| row.info.boot.clone()).collect()
    }

    /// Told of every look from here on.
    pub fn changes(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// Asks for a look soon, not only at the next renewal.
    pub fn look_again(&self) {
        self.bell.notify_one();
    }

    /// Waits until somebody asks for a look; for the keeper.
    pub async fn asked(&self) {
        self.bell.notified().await;
    }

    /// A new look; for the keeper. Says whether it differs from the one before.
    pub fn set(&self, now: Seen) -> bool {
        self.seen.send_if_modified(|seen| {
            let differs = *seen != now;
            *seen = now;
            differs
        })
    }
}

impl Seen {
    /// The addresses of the others, for the link.
    pub fn addresses(&self) -> Vec<(NodeBoot, String)> {
        self.others.iter().map(|row| (row.info.boot.clone(), row.info.peer_address.clone())).collect()
    }

    /// How far the owners on other nodes are.
    pub fn standings(&self) -> impl Iterator<Item = Standing> {
        self.others.iter().flat_map(|row| row.info.stands.iter().copied())
    }

    /// Whether that run's lease lives.
    pub fn lease_of(&self, run: &NodeBoot) -> Option<Lease> {
        self.rows.iter().find(|row| row.info.boot == *run).map(|row| row.lease)
    }
}
