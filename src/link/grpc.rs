//! `Link` over gRPC (tonic): one connection to each peer, three lanes in it, many calls to a frame.
//!
//! A peer is named by its run (node, boot) and reached at the address that it advertises. Calls wait in a queue bounded in
//! bytes; while there is no connection they fail at once, and it is tried again with growing pauses. The handshake
//! (`grpc/handshake.rs`) finds out whether it is that run of that node, and that both know the shared secret.

use std::{
    collections::HashMap,
    fmt, fs,
    hash::BuildHasher as _,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tidegate_protocol::pb;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

use super::{Answer, Ask, Delivery, Landing, Link, LinkError, Session, Settled, Stray, Told, Word};
use crate::{
    config,
    metrics::Metrics,
    private,
    routes::NodeBoot,
    trace::{Event, Query},
};

mod call_queue;
mod connection_limit;
mod convert;
mod handshake;
mod listener;
mod peer;
mod service;
mod traces;

pub use handshake::Secret;
pub use listener::Listener;

use self::call_queue::{Asked, Lane, Replied};
use peer::Peer;

/// Longest wait of [`Link::stop_sessions`], whatever is configured (DESIGN 6.3).
const STOP_MAX: Duration = Duration::from_secs(1);

/// From a connection to its lanes being agreed on, on both sides.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// What both ends of the link are told by the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What peers must prove to have, both ways; none = it is not asked for.
    pub secret: Option<Secret>,
    /// Encrypts, and proves both ends by certificates; none = neither.
    pub tls: Option<Tls>,
    /// Bytes of calls that may be under way on each of a peer's three lanes.
    pub queue_bytes: usize,
    /// How long a call waits for its reply.
    pub timeout: Duration,
    /// How long a connection may take until both ends know each other.
    pub handshake: Duration,
}

/// Mutual TLS: this node's certificate and whose certificates its peers must have.
#[derive(Clone)]
pub struct Tls {
    identity: Identity,
    authority: Certificate,
}

/// The calling end. Peers are told to it ([`GrpcLink::set_peers`]); one that it was not told of is `Unavailable`.
pub struct GrpcLink {
    me: NodeBoot,
    settings: Arc<Settings>,
    metrics: Metrics,
    seed: u64,
    peers: Mutex<HashMap<NodeBoot, Peer>>,
}

impl Settings {
    /// Reads the files that the section names.
    ///
    /// # Errors
    /// Says which file can't be read, or what is wrong with the secret.
    pub fn read(section: &config::Link) -> Result<Self, String> {
        let given = |path: &Path| !path.as_os_str().is_empty();
        let secret = given(&section.secret_file).then(|| Secret::read(&section.secret_file)).transpose()?;
        let tls = if given(&section.tls_ca) {
            let at = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
            let read = |path: &Path| fs::read(path).map_err(|error| at(path, error));
            let key = private::read(&section.tls_key).map_err(|error| at(&section.tls_key, error))?;
            Some(Tls::new(&read(&section.tls_cert)?, &key, &read(&section.tls_ca)?))
        } else {
            None
        };
        let timeout = Duration::from_millis(section.timeout_ms);
        Ok(Self { secret, tls, queue_bytes: section.queue_bytes, timeout, handshake: HANDSHAKE })
    }
}

impl Tls {
    /// From PEM: the certificate (chain) and key of this node, and the authority that signed those of all nodes. A peer's
    /// certificate must be for the host in its address.
    pub fn new(certificate: &[u8], key: &[u8], authority: &[u8]) -> Self {
        Self { identity: Identity::from_pem(certificate, key), authority: Certificate::from_pem(authority) }
    }

    fn client(&self) -> ClientTlsConfig {
        ClientTlsConfig::new().identity(self.identity.clone()).ca_certificate(self.authority.clone())
    }

    fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new().identity(self.identity.clone()).client_ca_root(self.authority.clone())
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

impl GrpcLink {
    /// Knows no peer yet. `seed` gives the jitter of its pauses.
    pub fn new(me: NodeBoot, settings: Settings, seed: u64, metrics: Metrics) -> Self {
        Self { me, settings: Arc::new(settings), metrics, seed, peers: Mutex::default() }
    }

    /// From here on these are the peers, each with its address (`host:port`): new ones are connected to, others are
    /// given up, what is under way to the rest goes on. To be called with all live nodes whenever they change, in a
    /// runtime; the node itself is left out.
    pub fn set_peers(&self, peers: Vec<(NodeBoot, String)>) {
        let mut known = self.lock();
        let wanted: HashMap<_, _> = peers.into_iter().filter(|(node, _)| *node != self.me).collect();
        known.retain(|node, peer| wanted.get(node) == Some(&peer.address));
        for (node, address) in wanted {
            known.entry(node).or_insert_with_key(|node| {
                let seed = self.seed ^ foldhash::fast::FixedState::default().hash_one(node);
                Peer::start(self.me.clone(), node.clone(), address, &self.settings, seed, &self.metrics)
            });
        }
    }

    fn lane(&self, to: &NodeBoot, which: impl Fn(&Peer) -> &Arc<Lane>) -> Result<Arc<Lane>, LinkError> {
        let unknown = || LinkError::Unavailable(format!("{} is not among the peers", to.node));
        self.lock().get(to).map(|peer| Arc::clone(which(peer))).ok_or_else(unknown)
    }

    /// A call whose order counts.
    async fn tell(&self, to: &NodeBoot, body: Asked) -> Result<Replied, LinkError> {
        let lane = self.lane(to, |peer| &peer.ordered)?;
        lane.call(body, self.settings.timeout).await
    }

    async fn ask(&self, to: &NodeBoot, body: Asked, time: Duration) -> Result<Replied, LinkError> {
        let lane = self.lane(to, |peer| &peer.asked)?;
        lane.call(body, time).await
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeBoot, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reply is for each item, or for nothing.
fn for_each<T>(replies: Vec<T>, asked: usize) -> Result<Vec<T>, LinkError> {
    if replies.len() == asked { Ok(replies) } else { Err(wrong()) }
}

fn wrong() -> LinkError {
    LinkError::Unknown("the peer's reply is not to what it was asked".to_owned())
}

#[async_trait]
impl Link for GrpcLink {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        if answers.is_empty() {
            return Ok(());
        }
        let answers = answers.into_iter().map(convert::put_answer).collect();
        match self.tell(to, Asked::Answers(pb::LinkAnswers { answers })).await? {
            Replied::Taken(_) => Ok(()),
            _ => Err(wrong()),
        }
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<Delivery>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        if deliveries.is_empty() {
            return Ok(Vec::new());
        }
        let targets: Vec<usize> = deliveries.iter().map(|delivery| delivery.to.len()).collect();
        let deliveries = deliveries.into_iter().map(convert::put_delivery).collect();
        match self.tell(to, Asked::Deliveries(pb::LinkDeliveries { deliveries })).await? {
            Replied::Landings(sent) => {
                let landings = for_each(sent.landings, targets.len())?;
                let each = landings.into_iter().zip(targets);
                each.map(|(landings, targets)| for_each(convert::landings(landings), targets)).collect()
            }
            _ => Err(wrong()),
        }
    }

    async fn stop_sessions(&self, to: &NodeBoot, sessions: Vec<Session>) -> Result<Vec<bool>, LinkError> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let (asked, time) = (sessions.len(), self.settings.timeout.min(STOP_MAX));
        let sessions = sessions.into_iter().map(convert::put_session).collect();
        match self.ask(to, Asked::Stops(pb::LinkStops { sessions }), time).await? {
            Replied::Stopped(sent) => for_each(sent.now, asked),
            _ => Err(wrong()),
        }
    }

    async fn settled(
        &self,
        to: &NodeBoot,
        told: Vec<Told>,
        patience: Duration,
    ) -> Result<Settled, LinkError> {
        let told = told.into_iter().map(convert::put_told).collect();
        let patience = patience.min(self.settings.timeout / 2).as_millis();
        let asked = pb::LinkSettle { told, patience_ms: u32::try_from(patience).unwrap_or(u32::MAX) };
        match self.ask(to, Asked::Settle(asked), self.settings.timeout).await? {
            Replied::Settled(sent) => Ok(convert::settled(sent)),
            _ => Err(wrong()),
        }
    }

    /// A lane says who asks: the run that it was opened by.
    async fn answers_again(
        &self,
        _: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<Word>, LinkError> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        let asked = asks.len();
        let asks = asks.into_iter().map(convert::put_ask).collect();
        match self.ask(to, Asked::Asks(pb::LinkAsks { asks }), self.settings.timeout).await? {
            Replied::Told(sent) => {
                convert::all(for_each(sent.words, asked)?, convert::word).map_err(LinkError::from)
            }
            _ => Err(wrong()),
        }
    }

    async fn strays(&self, to: &NodeBoot, strays: Vec<Stray>) -> Result<(), LinkError> {
        if strays.is_empty() {
            return Ok(());
        }
        let strays = strays.into_iter().map(convert::put_stray).collect();
        let lane = self.lane(to, |peer| &peer.strays)?;
        match lane.call(Asked::Strays(pb::LinkStrays { strays }), self.settings.timeout).await? {
            Replied::Taken(_) => Ok(()),
            _ => Err(wrong()),
        }
    }

    async fn traces(&self, to: &NodeBoot, query: Query) -> Result<Vec<Event>, LinkError> {
        match self.ask(to, Asked::Traces(traces::put_query(query)), self.settings.timeout).await? {
            Replied::Steps(sent) => Ok(traces::steps(sent)),
            _ => Err(wrong()),
        }
    }
}
