//! The cluster as one node knows it: its own run, the ports that the nodes share, peers, owned partitions, unarchived
//! records and archive lags.
//!
//! A single node is a cluster without peers.

use std::sync::Arc;

use crate::{events::Events, figures::Figures, ports::Ports, routes::NodeBoot, trace::Tracer};

mod archive_lag;
mod barrier;
pub(crate) mod barrier_calls;
mod interest;
mod owned;
mod peers;
mod unarchived;

pub use archive_lag::{LagLimit, Lags};
pub use owned::{Owned, OwnerProgress};
pub use peers::{PeerSnapshot, Peers};
pub use unarchived::{Unarchived, UnarchivedMark};

/// Ports of a node, and the state that its layers share: a call of a port may wait or fail, the rest is in memory.
pub struct Cluster {
    /// Run of this node.
    pub me: NodeBoot,
    /// Adapters.
    pub ports: Ports,
    /// Partitions that this node owns; owners update them, and the lease announces them.
    pub owned: Arc<Owned>,
    /// Other nodes, as the lease last fetched them; kept while the routes are unavailable.
    pub peers: Arc<Peers>,
    /// Steps of messages on this node, as far as they are recorded.
    pub trace: Arc<Tracer>,
    /// Events of this node: online and offline devices, read marks, blocked chains.
    pub events: Arc<Events>,
    /// Figures of this node: values by second, codes given to clients, clients that moved.
    pub figures: Arc<Figures>,
}

impl Cluster {
    /// Creates the state of a node that has discovered no peer, owns nothing, records no steps and publishes no
    /// events.
    pub fn new(me: NodeBoot, ports: Ports) -> Self {
        Self {
            me,
            ports,
            owned: Arc::default(),
            peers: Arc::default(),
            trace: Arc::default(),
            events: Arc::default(),
            figures: Arc::default(),
        }
    }
}
