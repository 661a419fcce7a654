//! What the node says of itself to the others, and holding the lease for as long as it lives.

use std::sync::Arc;

use tidegate_protocol::machine::drain::Phase;
use tokio::{sync::watch, task::JoinHandle};

use super::{ids::Claim, ports::Broken};
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
    routes::{About, NodeInfo, NodeState},
};

/// What the node says of itself comes from here.
pub(super) struct Said {
    ports: Arc<Ports>,
    assigner: Arc<Assigner>,
    clients: Vec<String>,
    peer_address: String,
    admission: Arc<Admission>,
    drainer: Arc<Drainer>,
    rules: u32,
}

impl Said {
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

    /// Announces the node, then renews beside everything else; the peers are told to `link`. The second part says why
    /// once the node must end. From the announcement on the lease holds the node's id, and not the claim any more.
    ///
    /// # Errors
    /// The run of the node is over before it began.
    pub(super) async fn hold(
        self,
        link: Option<Arc<GrpcLink>>,
        shards: Vec<ShardHandle>,
        claim: Option<&Claim>,
        metrics: &Metrics,
    ) -> anyhow::Result<(JoinHandle<()>, Broken)> {
        if link.is_some() {
            let drainer = Arc::clone(&self.drainer);
            // Who is closed by a drain is about to come back elsewhere.
            self.ports.events.hold_while(move || drainer.is_closing());
        }
        let tell = move |peers| {
            if let Some(link) = &link {
                link.set_peers(peers);
            }
        };
        let (ports, lease) = (Arc::clone(&self.ports), super::ports::leases().node);
        let me = ports.me.clone();
        let mut member = Member::new(ports, lease, shards, move || self.info(), tell, metrics.clone());
        member.announce().await.map_err(anyhow::Error::msg)?;
        if let Some(claim) = claim {
            claim.settle(&me).await;
        }
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
        let (conns, capacity) = self.admission.load();
        let (drain, node_topic) = (self.drainer.progress(), self.ports.bus.node_lag());
        let mut about = About { drain, node_topic, ..self.assigner.about() };
        if conns >= capacity {
            // Nor from those who leave.
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
            stands: self.ports.owned.standings(),
            // The lease knows.
            asserting: false,
            about,
            rules: self.rules,
        };
        self.assigner.said(&info);
        info
    }
}
