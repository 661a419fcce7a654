//! `Link` adapter for gRPC (tonic): one connection to each peer with three streams, and many calls per frame.
//!
//! A peer is named by its run (node, boot) and reached at its advertised address. Calls wait in queues bounded in
//! bytes. Without a connection they fail at once, and reconnects are tried with growing delays. The handshake
//! (`grpc/handshake.rs`) checks that the peer is that run of that node, and that both sides have the shared secret.

use std::{collections::HashMap, hash::BuildHasher as _, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use tidegate_protocol::pb;

use super::{
    AckQuery, Answer, AnswerStatus, ArchiveStatus, Ask, BestEffortMessage, CloseOrder, ConnectionPage,
    ConnectionQuery, DeviceAck, Landing, LeaseStatus, Link, LinkError, PeerPush, PublishedMark, RoomRemoval,
    RoomsPage, RoomsQuery, RoutedSession,
};
use crate::{
    config,
    figures::{FiguresPage, FiguresQuery},
    metrics::Metrics,
    net::tls::WatchedCertificates,
    private,
    revocation::Revocation,
    routes::NodeBoot,
    storms::{StormsPage, StormsQuery},
    trace::{TraceEvent, TraceFilter},
};

mod acks;
mod call_queue;
mod connection_limit;
mod connections;
mod convert;
mod figures;
mod first_messages;
mod handshake;
mod link_stream;
mod listener;
mod peer;
mod rooms;
mod service;
mod storms;
mod strangers;
mod tls;
mod traces;

pub use handshake::Secret;
pub use listener::Listener;
pub use tls::{LinkFiles, Tls, TlsMode};

use self::call_queue::{CallBody, CallQueue, ReplyBody};
use peer::Peer;

/// Timeout of [`Link::stop_sessions`], if the configured one is longer: a login waits for it.
const STOP_TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// Timeout from the connection to the end of the handshakes, on both sides.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of both ends of the link.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Shared secret that both ends must prove to have; `None` if no proof is required.
    pub secret: Option<Secret>,
    /// Mutual TLS; `None` if connections are neither encrypted nor authenticated by certificates.
    pub tls: Option<Tls>,
    /// Limit on the bytes of calls in flight on each of a peer's three streams.
    pub queue_bytes: usize,
    /// Timeout of a call, until its reply.
    pub timeout: Duration,
    /// Timeout of a new connection, until both ends are authenticated.
    pub handshake: Duration,
}

/// Client end of the link. Calls to nodes other than those of [`GrpcLink::set_peers`] are `Unavailable`.
pub struct GrpcLink {
    me: NodeBoot,
    settings: Arc<Settings>,
    metrics: Metrics,
    seed: u64,
    peers: Mutex<HashMap<NodeBoot, Peer>>,
}

impl Settings {
    /// Creates the settings from the configuration, and reads the files that it names.
    ///
    /// # Errors
    /// A file can't be read, or the secret is too short; the text names the setting, the file and the cure.
    pub fn read(section: &config::LinkConfig) -> Result<Self, String> {
        let is_set = |path: &Path| !path.as_os_str().is_empty();
        let secret = if is_set(&section.secret_file) {
            let at = |why| private::unusable("link.secret_file", &section.secret_file, why);
            let text = private::read(&section.secret_file).map_err(|error| at(error.to_string()))?;
            Some(Secret::from_file_text(&text).map_err(at)?)
        } else {
            None
        };
        let tls = is_set(&section.tls_ca).then(|| Self::tls(section)).transpose();
        let tls = tls.map_err(|error| format!("{error:#}"))?;
        let timeout = Duration::from_millis(section.timeout_ms);
        Ok(Self { secret, tls, queue_bytes: section.queue_bytes, timeout, handshake: HANDSHAKE_TIMEOUT })
    }

    fn tls(section: &config::LinkConfig) -> anyhow::Result<Tls> {
        let files = LinkFiles {
            certificate: section.tls_cert.clone(),
            key: section.tls_key.clone(),
            authority: section.tls_ca.clone(),
        };
        let tls = Tls::open(files)?.with_mode(TlsMode::named(&section.tls_mode));
        if section.tls_name.is_empty() { Ok(tls) } else { tls.with_name(&section.tls_name) }
    }
}

impl GrpcLink {
    /// Creates a link without peers. `seed` determines the jitter of the reconnect delays.
    pub fn new(me: NodeBoot, settings: Settings, seed: u64, metrics: Metrics) -> Self {
        Self { me, settings: Arc::new(settings), metrics, seed, peers: Mutex::default() }
    }

    /// Returns the settings, which the listener shares.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the certificates of both ends, if there are any.
    pub fn certificates(&self) -> Option<Arc<dyn WatchedCertificates>> {
        self.settings.tls.as_ref().map(Tls::watched)
    }

    /// Sets the peers, each with its address (`host:port`). Connects to new ones and drops removed ones; calls to the
    /// rest continue. To be called in a runtime, with all live nodes, whenever they change. Ignores this node itself.
    pub fn set_peers(&self, peers: Vec<(NodeBoot, String)>) {
        let mut current = self.lock();
        let wanted: HashMap<_, _> = peers.into_iter().filter(|(node, _)| *node != self.me).collect();
        current.retain(|node, peer| wanted.get(node) == Some(&peer.address));
        for (node, address) in wanted {
            current.entry(node).or_insert_with_key(|node| {
                let seed = self.seed ^ foldhash::fast::FixedState::default().hash_one(node);
                Peer::start(self.me.clone(), node.clone(), address, &self.settings, seed, &self.metrics)
            });
        }
    }

    fn queue(
        &self,
        to: &NodeBoot,
        which: impl Fn(&Peer) -> &Arc<CallQueue>,
    ) -> Result<Arc<CallQueue>, LinkError> {
        let unknown = || LinkError::Unavailable(format!("{} is not among the peers", to.node));
        self.lock().get(to).map(|peer| Arc::clone(which(peer))).ok_or_else(unknown)
    }

    /// Sends a call that must keep its order.
    async fn call_ordered(&self, to: &NodeBoot, body: CallBody) -> Result<ReplyBody, LinkError> {
        let queue = self.queue(to, |peer| &peer.ordered)?;
        queue.call(body, self.settings.timeout).await
    }

    async fn query(&self, to: &NodeBoot, body: CallBody, timeout: Duration) -> Result<ReplyBody, LinkError> {
        let queue = self.queue(to, |peer| &peer.queries)?;
        queue.call(body, timeout).await
    }

    /// Sends a call whose reply is a number of closed connections.
    async fn count(&self, to: &NodeBoot, body: CallBody) -> Result<u64, LinkError> {
        match self.query(to, body, self.settings.timeout).await? {
            ReplyBody::Closed(pb::LinkClosed { count }) => Ok(count),
            _ => Err(mismatched()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeBoot, Peer>> {
        self.peers.lock()
    }
}

/// Checks that there is one reply per item.
fn check_count<T>(replies: Vec<T>, items: usize) -> Result<Vec<T>, LinkError> {
    if replies.len() == items { Ok(replies) } else { Err(mismatched()) }
}

fn mismatched() -> LinkError {
    LinkError::Unknown("the reply does not match the call".to_owned())
}

#[async_trait]
impl Link for GrpcLink {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        if answers.is_empty() {
            return Ok(());
        }
        let answers = answers.into_iter().map(convert::put_answer).collect();
        match self.call_ordered(to, CallBody::Answers(pb::LinkAnswers { answers })).await? {
            ReplyBody::Taken(_) => Ok(()),
            _ => Err(mismatched()),
        }
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<PeerPush>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        if deliveries.is_empty() {
            return Ok(Vec::new());
        }
        let targets: Vec<usize> = deliveries.iter().map(|delivery| delivery.to.len()).collect();
        let deliveries = deliveries.into_iter().map(convert::put_delivery).collect();
        match self.call_ordered(to, CallBody::Deliveries(pb::LinkDeliveries { deliveries })).await? {
            ReplyBody::Landings(sent) => {
                let landings = check_count(sent.landings, targets.len())?;
                let each = landings.into_iter().zip(targets);
                each.map(|(landings, targets)| check_count(convert::landings(landings), targets)).collect()
            }
            _ => Err(mismatched()),
        }
    }

    async fn stop_sessions(
        &self,
        to: &NodeBoot,
        sessions: Vec<RoutedSession>,
    ) -> Result<Vec<bool>, LinkError> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let (count, timeout) = (sessions.len(), self.settings.timeout.min(STOP_TIMEOUT_MAX));
        let sessions = sessions.into_iter().map(convert::put_session).collect();
        match self.query(to, CallBody::Stops(pb::LinkStops { sessions }), timeout).await? {
            ReplyBody::Stopped(sent) => check_count(sent.now, count),
            _ => Err(mismatched()),
        }
    }

    async fn archive_status(
        &self,
        to: &NodeBoot,
        marks: Vec<PublishedMark>,
        within: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        let told = marks.into_iter().map(convert::put_published_mark).collect();
        let within = within.min(self.settings.timeout / 2).as_millis();
        let query = pb::LinkSettle { told, patience_ms: u32::try_from(within).unwrap_or(u32::MAX) };
        match self.query(to, CallBody::Settle(query), self.settings.timeout).await? {
            ReplyBody::Settled(sent) => Ok(convert::archive_status(sent)),
            _ => Err(mismatched()),
        }
    }

    /// Ignores `from`: the stream's handshake names the calling run.
    async fn answers_again(
        &self,
        _: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        let count = asks.len();
        let asks = asks.into_iter().map(convert::put_ask).collect();
        match self.query(to, CallBody::Asks(pb::LinkAsks { asks }), self.settings.timeout).await? {
            ReplyBody::Told(sent) => {
                convert::all(check_count(sent.words, count)?, convert::answer_status).map_err(LinkError::from)
            }
            _ => Err(mismatched()),
        }
    }

    /// Ignores `from`: the stream's handshake names the calling run.
    async fn lease_status(&self, _: &NodeBoot, to: &NodeBoot) -> Result<LeaseStatus, LinkError> {
        match self.query(to, CallBody::Lease(pb::LinkLeaseQuery {}), self.settings.timeout).await? {
            ReplyBody::Lease(pb::LinkLeaseStatus { renews, lists_caller }) => {
                Ok(LeaseStatus { renews, lists_caller })
            }
            _ => Err(mismatched()),
        }
    }

    async fn send_best_effort(
        &self,
        to: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        if messages.is_empty() {
            return Ok(());
        }
        let strays = messages.into_iter().map(convert::put_best_effort).collect();
        let queue = self.queue(to, |peer| &peer.best_effort)?;
        match queue.call(CallBody::Strays(pb::LinkStrays { strays }), self.settings.timeout).await? {
            ReplyBody::Taken(_) => Ok(()),
            _ => Err(mismatched()),
        }
    }

    async fn traces(&self, to: &NodeBoot, query: TraceFilter) -> Result<Vec<TraceEvent>, LinkError> {
        match self.query(to, CallBody::Traces(traces::put_query(query)), self.settings.timeout).await? {
            ReplyBody::Steps(sent) => Ok(traces::steps(sent)),
            _ => Err(mismatched()),
        }
    }

    async fn figures(&self, to: &NodeBoot, query: FiguresQuery) -> Result<FiguresPage, LinkError> {
        match self.query(to, CallBody::Figures(figures::put_query(query)), self.settings.timeout).await? {
            ReplyBody::Figures(sent) => Ok(figures::page(sent)?),
            _ => Err(mismatched()),
        }
    }

    async fn storms(&self, to: &NodeBoot, query: StormsQuery) -> Result<StormsPage, LinkError> {
        match self.query(to, CallBody::Storms(storms::put_query(query)), self.settings.timeout).await? {
            ReplyBody::Storms(sent) => Ok(storms::page(sent)?),
            _ => Err(mismatched()),
        }
    }

    async fn connections(&self, to: &NodeBoot, query: ConnectionQuery) -> Result<ConnectionPage, LinkError> {
        let call = CallBody::Connections(connections::put_query(&query));
        match self.query(to, call, self.settings.timeout).await? {
            ReplyBody::Connections(sent) => Ok(connections::page(sent, query.limit)?),
            _ => Err(mismatched()),
        }
    }

    async fn acks(&self, to: &NodeBoot, queries: Vec<AckQuery>) -> Result<Vec<Vec<DeviceAck>>, LinkError> {
        let count = queries.len();
        match self.query(to, CallBody::Acks(acks::put_queries(queries)), self.settings.timeout).await? {
            ReplyBody::Acks(sent) => check_count(acks::devices(sent)?, count),
            _ => Err(mismatched()),
        }
    }

    async fn rooms(&self, to: &NodeBoot, query: RoomsQuery) -> Result<RoomsPage, LinkError> {
        match self.query(to, CallBody::Rooms(rooms::put_query(query.clone())), self.settings.timeout).await? {
            ReplyBody::Rooms(sent) => Ok(rooms::page(sent, &query)?),
            _ => Err(mismatched()),
        }
    }

    async fn close_connections(&self, to: &NodeBoot, order: CloseOrder) -> Result<u64, LinkError> {
        self.count(to, CallBody::Close(connections::put_order(order))).await
    }

    async fn remove_from_room(&self, to: &NodeBoot, removal: RoomRemoval) -> Result<u64, LinkError> {
        self.count(to, CallBody::RoomRemoval(rooms::put_removal(removal))).await
    }

    async fn revoke(&self, to: &NodeBoot, revocation: Revocation) -> Result<u64, LinkError> {
        self.count(to, CallBody::Revoke(connections::put_revocation(revocation))).await
    }
}
