//! Announcement of a node to its peers with each renewal of its lease.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::machine::drain::NodePhase;

use super::Broker;
use crate::{
    budget::Admission,
    drain::Drainer,
    lease::NodeLease,
    partition::rules,
    routes::{NodeBoot, NodeDescription, NodeInfo, NodeState},
};

/// Sources of what a node announces.
pub struct NodeAnnouncement {
    /// Broker of the node.
    pub broker: Arc<Broker>,
    /// Addresses for clients, best first.
    pub client_addresses: Vec<String>,
    /// Address for peers; empty on a single node.
    pub peer_address: String,
    /// Number of connections, and their limit.
    pub admission: Arc<Admission>,
    /// Drain of the node.
    pub drainer: Arc<Drainer>,
    /// Rules of the ledger that the node supports.
    pub rules: rules::Settings,
}

impl NodeAnnouncement {
    /// Creates the lease of this run, not announced yet. `lease` is how long the routes grant it, and `on_peers` gets
    /// the peers' addresses after each renewal.
    pub fn into_member(
        self,
        lease: Duration,
        on_peers: impl Fn(Vec<(NodeBoot, String)>) + Send + Sync + 'static,
    ) -> NodeLease {
        let broker = Arc::clone(&self.broker);
        if broker.is_clustered {
            let drainer = Arc::clone(&self.drainer);
            // Clients that a drain closes are about to reconnect elsewhere.
            broker.cluster.events.hold_while(move || drainer.is_closing());
        }
        let (cluster, shards) = (Arc::clone(&broker.cluster), broker.shards().to_vec());
        NodeLease::new(cluster, lease, shards, move || self.info(), on_peers, broker.metrics.clone())
            .with_devices(broker.devices)
    }

    fn info(&self) -> NodeInfo {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (cluster, assigner) = (&self.broker.cluster, &self.broker.assigner);
        let (conns, capacity) = self.admission.load();
        let (drain, node_topic) = (self.drainer.progress(), cluster.ports.bus.node_lag());
        let mut description = NodeDescription { drain, node_topic, ..assigner.description() };
        if conns >= capacity {
            // A full node accepts no clients from draining nodes either.
            description.accepts = 0;
        }
        let info = NodeInfo {
            boot: cluster.me.clone(),
            peer_address: self.peer_address.clone(),
            client_addresses: self.client_addresses.clone(),
            state: match self.drainer.phase() {
                NodePhase::Starting | NodePhase::Ready => NodeState::Ready,
                NodePhase::Cordoned => NodeState::Cordoned,
                NodePhase::Noticing | NodePhase::Draining | NodePhase::Flushing | NodePhase::Done => {
                    NodeState::Draining
                }
            },
            conns: count(conns),
            capacity: count(capacity),
            owns: cluster.owned.list(),
            partition_lags: cluster.owned.partition_lags(),
            // Set by the lease.
            asserting: false,
            description,
            rules: self.rules.announced(),
        };
        assigner.set_announced(&info);
        info
    }
}
