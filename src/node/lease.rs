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
pub(super) struct Said<'a> {
    pub(super) ports: &'a Arc<Ports>,
    pub(super) addresses: &'a Addresses,
    pub(super) peer_address: String,
    pub(super) admission: &'a Arc<Admission>,
    pub(super) drainer: &'a Arc<Drainer>,
}

impl Said<'_> {
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
        let (ports, lease) = (Arc::clone(self.ports), super::ports::leases().node);
        let mut member = Member::new(ports, lease, shards, self.info(), tell, metrics.clone());
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

    fn info(&self) -> impl Fn() -> NodeInfo + Send + Sync + use<> {
        let (boot, owned) = (self.ports.me.clone(), Arc::clone(&self.ports.owned));
        let (admission, drainer) = (Arc::clone(self.admission), Arc::clone(self.drainer));
        let client_addresses = vec![self.addresses.client.to_string()];
        let peer_address = self.peer_address.clone();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        move || NodeInfo {
            boot: boot.clone(),
            peer_address: peer_address.clone(),
            client_addresses: client_addresses.clone(),
            state: match drainer.phase() {
                Phase::Starting | Phase::Ready => NodeState::Ready,
                Phase::Cordoned => NodeState::Cordoned,
                Phase::Noticing | Phase::Draining | Phase::Flushing | Phase::Done => NodeState::Draining,
            },
            conns: count(admission.conns()),
            capacity: count(admission.conns_max()),
            owns: owned.list(),
        }
    }
}
