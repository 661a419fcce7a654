//! What the node says of itself to the others, and holding the lease for as long as it lives.

use std::sync::Arc;

use tidegate_protocol::machine::drain::Phase;
use tokio::{sync::watch, task::JoinHandle};

use super::{Addresses, ports::Broken};
use crate::{
    budget::Admission,
    drain::Drainer,
    link::GrpcLink,
    mail::ShardHandle,
    member::Member,
    metrics::Metrics,
    ports::Ports,
    routes::{NodeInfo, NodeState},
};

/// What the node says of itself comes from here.
pub(super) struct Said {
    ports: Arc<Ports>,
    clients: Vec<String>,
    peer_address: String,
    admission: Arc<Admission>,
    drainer: Arc<Drainer>,
}

impl Said {
    pub(super) fn new(
        ports: &Arc<Ports>,
        addresses: &Addresses,
        peer_address: String,
        (admission, drainer): (&Arc<Admission>, &Arc<Drainer>),
    ) -> Self {
        Self {
            ports: Arc::clone(ports),
            clients: vec![addresses.client.to_string()],
            peer_address,
            admission: Arc::clone(admission),
            drainer: Arc::clone(drainer),
        }
    }

    /// Announces the node, then renews beside everything else; the peers are told to `link`. The second part says why
    /// once the node must end.
    ///
    /// # Errors
    /// The run of the node is over before it began.
    pub(super) async fn hold(
        self,
        link: Option<Arc<GrpcLink>>,
        shards: Vec<ShardHandle>,
        metrics: &Metrics,
    ) -> anyhow::Result<(JoinHandle<()>, Broken)> {
        let tell = move |peers| {
            if let Some(link) = &link {
                link.set_peers(peers);
            }
        };
        let (ports, lease) = (Arc::clone(&self.ports), super::ports::leases().node);
        let mut member = Member::new(ports, lease, shards, move || self.info(), tell, metrics.clone());
        member.announce().await.map_err(anyhow::Error::msg)?;
        let (lost, broken) = watch::channel(None);
        let task = tokio::spawn(async move {
            let why = Box::pin(member.run()).await;
            tracing::error!(why, "the node ends");
            lost.send_replace(Some(why));
            // Until everything was taken down.
            lost.closed().await;
        });
        Ok((task, broken))
    }

    fn info(&self) -> NodeInfo {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        NodeInfo {
            boot: self.ports.me.clone(),
            peer_address: self.peer_address.clone(),
            client_addresses: self.clients.clone(),
            state: match self.drainer.phase() {
                Phase::Starting | Phase::Ready => NodeState::Ready,
                Phase::Cordoned => NodeState::Cordoned,
                Phase::Noticing | Phase::Draining | Phase::Flushing | Phase::Done => NodeState::Draining,
            },
            conns: count(self.admission.conns()),
            capacity: count(self.admission.conns_max()),
            owns: self.ports.owned.list(),
            stands: self.ports.owned.standings(),
            // The lease knows.
            asserting: false,
        }
    }
}
