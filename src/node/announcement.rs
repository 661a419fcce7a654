//! Announcement of the node to its peers, and the task that renews its lease.

use std::sync::Arc;

use tidegate_protocol::machine::drain::Phase;
use tokio::{sync::watch, task::JoinHandle};

use super::{ids::IdClaim, ports::FailureWatch};
use crate::{
    assign::Assigner,
    budget::Admission,
    drain::Drainer,
    lease::Member,
    link::GrpcLink,
    mail::ShardHandle,
    metrics::Metrics,
    partition::rules,
    ports::Ports,
    routes::{NodeDescription, NodeInfo, NodeState},
};

/// Sources of the description that the node publishes with each lease renewal.
pub(super) struct NodeAnnouncement {
    ports: Arc<Ports>,
    assigner: Arc<Assigner>,
    clients: Vec<String>,
    peer_address: String,
    admission: Arc<Admission>,
    drainer: Arc<Drainer>,
    rules: u32,
}

impl NodeAnnouncement {
    pub(super) fn new(
        assigner: &Arc<Assigner>,
        (clients, peer_address): (Vec<String>, String),
        (admission, drainer): (&Arc<Admission>, &Arc<Drainer>),
        ports: &Arc<Ports>,
        rules: rules::Settings,
    ) -> Self {
        Self {
            ports: Arc::clone(ports),
            assigner: Arc::clone(assigner),
            clients,
            peer_address,
            admission: Arc::clone(admission),
            drainer: Arc::clone(drainer),
            rules: rules.announced(),
        }
    }

    /// Announces the node, then renews its lease in the background and passes the peers to `link`.
    ///
    /// Returns the renewing task, and the reason once the node must end. After the announcement the lease holds the
    /// node's id, so the claim is confirmed.
    ///
    /// # Errors
    /// This run of the node is already retired.
    pub(super) async fn hold(
        self,
        link: Option<Arc<GrpcLink>>,
        shards: Vec<ShardHandle>,
        claim: Option<&IdClaim>,
        metrics: &Metrics,
    ) -> anyhow::Result<(JoinHandle<()>, FailureWatch)> {
        if link.is_some() {
            let drainer = Arc::clone(&self.drainer);
            // Clients that a drain closes are about to reconnect elsewhere.
            self.ports.events.hold_while(move || drainer.is_closing());
        }
        let update_link = move |peers| {
            if let Some(link) = &link {
                link.set_peers(peers);
            }
        };
        let (ports, lease) = (Arc::clone(&self.ports), super::ports::leases().node);
        let me = ports.me.clone();
        let mut member = Member::new(ports, lease, shards, move || self.info(), update_link, metrics.clone());
        member.announce().await.map_err(anyhow::Error::msg)?;
        if let Some(claim) = claim {
            claim.confirm(&me).await;
        }
        let (failed, failure) = watch::channel(None);
        let task = tokio::spawn(async move {
            let why = Box::pin(member.run()).await;
            tracing::error!(why, "run of this node has ended; shutting down");
            failed.send_replace(Some(why));
            // Stays until the shutdown, which aborts this task.
            failed.closed().await;
        });
        Ok((task, failure))
    }

    fn info(&self) -> NodeInfo {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (conns, capacity) = self.admission.load();
        let (drain, node_topic) = (self.drainer.progress(), self.ports.bus.node_lag());
        let mut about = NodeDescription { drain, node_topic, ..self.assigner.description() };
        if conns >= capacity {
            // A full node accepts no clients from draining nodes either.
            about.accepts = 0;
        }
        let info = NodeInfo {
            boot: self.ports.me.clone(),
            peer_address: self.peer_address.clone(),
            client_addresses: self.clients.clone(),
            state: match self.drainer.phase() {
                Phase::Starting | Phase::Ready => NodeState::Ready,
                Phase::Cordoned => NodeState::Cordoned,
                Phase::Noticing | Phase::Draining | Phase::Flushing | Phase::Done => NodeState::Draining,
            },
            conns: count(conns),
            capacity: count(capacity),
            owns: self.ports.owned.list(),
            partition_lags: self.ports.owned.partition_lags(),
            // Set by the lease.
            asserting: false,
            about,
            rules: self.rules,
        };
        self.assigner.set_announced(&info);
        info
    }
}
