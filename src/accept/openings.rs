//! Thread for the first bytes of connections, so that neither the acceptor nor a shard waits for a handshake or computes
//! one.

use std::{
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, net::TcpStream};
use slab::Slab;
use tidegate_protocol::Code;

use super::{
    fairness::{Fairness, NetworkPlace},
    opening::{Expected, Opening, Progress},
    placement::Placement,
    refuse, refuse_banned,
    screen::AcceptScreen,
};
use crate::{
    budget::ConnectionPermit,
    live::Live,
    log_limit::log_limited,
    metrics::Metrics,
    net::{
        tcp::{Arrival, FOREIGN_PROXY_HEADER},
        tls::{CertificateName, Certificates},
    },
    networks::Networks,
    shard::newcomer::Newcomer,
};

/// Longest time between two looks at the deadlines.
const TICK: Duration = Duration::from_millis(100);

const WAKER: Token = Token(usize::MAX);

/// Settings of the first bytes.
#[derive(Clone)]
pub struct OpeningSettings {
    /// Certificates, if TLS is offered.
    pub certificates: Option<Arc<Certificates>>,
    /// Part that a reload replaces.
    pub policy: Arc<Live<FirstBytesPolicy>>,
    /// Part of a client's certificate that names its user.
    pub client_name: Option<CertificateName>,
    /// Time from the accept to the end of the handshake.
    pub deadline: Duration,
    /// Most connections of one thread whose first bytes are awaited.
    pub openings_max: usize,
}

/// Part of the settings that a reload replaces.
#[derive(Clone, Debug, Default)]
pub struct FirstBytesPolicy {
    /// Whether connections without TLS are refused.
    pub is_tls_required: bool,
    /// Networks whose connections begin with a PROXY header.
    pub proxies: Networks,
    /// Networks of proxies that name their client later, in an HTTP header.
    pub forwarders: Networks,
}

/// Accepted connection on its way to the thread.
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) permit: ConnectionPermit,
    /// Place among the connections of its network; `None` for that of a proxy.
    pub(super) place: Option<NetworkPlace>,
    /// Whether a PROXY header comes first.
    pub(super) is_from_proxy: bool,
    /// Time of the accept.
    pub(super) at: Instant,
}

/// Connections that wait until their thread takes them.
const QUEUE_MAX: usize = 256;

/// Connections that are looked at to find one to close for a new one.
const SAMPLED: usize = 16;

/// Sending side of the queue of a thread.
pub(super) struct OpeningQueue {
    queue: SyncSender<Accepted>,
    waker: Arc<mio::Waker>,
}

impl OpeningQueue {
    /// Offers a connection without waiting; returns it if the queue is full.
    pub(super) fn offer(&self, accepted: Accepted) -> Result<(), Box<Accepted>> {
        match self.queue.try_send(accepted) {
            Ok(()) => {
                if let Err(error) = self.waker.wake() {
                    log_limited!(warn, %error, "failed to wake the thread of handshakes; it continues within 100 ms");
                }
                Ok(())
            }
            Err(TrySendError::Full(accepted) | TrySendError::Disconnected(accepted)) => {
                Err(Box::new(accepted))
            }
        }
    }
}

/// Connection whose first bytes are awaited.
struct Entry {
    opening: Opening,
    address: SocketAddr,
    permit: ConnectionPermit,
    place: Option<NetworkPlace>,
    deadline: Instant,
}

/// Work of one thread.
pub(super) struct Openings {
    poll: Poll,
    queue: Receiver<Accepted>,
    entries: Slab<Entry>,
    /// Next entry to look at when one has to be closed.
    next_sample: usize,
    placement: Placement,
    settings: OpeningSettings,
    fairness: Arc<Fairness>,
    screen: AcceptScreen,
    metrics: Metrics,
    stop: Arc<AtomicBool>,
}

impl Openings {
    /// Creates the work of a thread, and the queue of its connections.
    ///
    /// # Errors
    /// Fails if the kernel can't create the poll or its waker.
    pub(super) fn new(
        placement: Placement,
        settings: OpeningSettings,
        fairness: Arc<Fairness>,
        screen: AcceptScreen,
        metrics: Metrics,
        stop: Arc<AtomicBool>,
    ) -> io::Result<(Self, OpeningQueue)> {
        let poll = Poll::new()?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
        let (sender, queue) = sync_channel(QUEUE_MAX);
        let entries = Slab::new();
        let openings = Self {
            poll,
            queue,
            entries,
            next_sample: 0,
            placement,
            settings,
            fairness,
            screen,
            metrics,
            stop,
        };
        Ok((openings, OpeningQueue { queue: sender, waker }))
    }

    /// Works until the acceptor stops.
    ///
    /// # Errors
    /// Fails if polling fails.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        let mut next_tick = Instant::now() + TICK;
        while !self.stop.load(Ordering::Acquire) {
            match self.poll.poll(&mut events, Some(next_tick.saturating_duration_since(Instant::now()))) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            let ready: Vec<Token> = events.iter().map(mio::event::Event::token).collect();
            for token in ready.into_iter().filter(|token| *token != WAKER) {
                self.advance(token.0);
            }
            self.take_accepted();
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                self.end_late();
            }
        }
        self.end_all();
        Ok(())
    }

    /// Refuses the connections that are there when the node stops. Those in a handshake get no code: they read TLS alone.
    fn end_all(&mut self) {
        for entry in std::mem::take(&mut self.entries) {
            self.refuse(entry.1.opening.into_plain_stream(), Code::Draining, "");
        }
        while let Ok(accepted) = self.queue.try_recv() {
            self.refuse(Some(accepted.stream), Code::Draining, "");
        }
    }

    fn take_accepted(&mut self) {
        while let Ok(accepted) = self.queue.try_recv() {
            if self.entries.len() >= self.settings.openings_max && !self.make_room(&accepted) {
                self.refuse(Some(accepted.stream), Code::Overloaded, "");
            } else {
                self.add(accepted);
            }
        }
    }

    /// Closes a connection of a network that has more of them than that of the new one. Looks at a few, so that a flood
    /// costs little: the networks that flood have most of them.
    fn make_room(&mut self, accepted: &Accepted) -> bool {
        let taken = |place: &Option<NetworkPlace>| place.as_ref().map_or(1, NetworkPlace::taken);
        let own = taken(&accepted.place);
        let capacity = self.entries.capacity().max(1);
        let slots = (0..capacity).map(|step| (self.next_sample + step) % capacity);
        let sampled = slots.filter(|slot| self.entries.contains(*slot)).take(SAMPLED);
        let fullest = sampled.map(|slot| (taken(&self.entries[slot].place), slot)).max();
        let Some((count, slot)) = fullest.filter(|(count, _)| *count > own) else { return false };
        self.next_sample = slot + 1;
        tracing::debug!(count, "handshake closed for one of a network that has fewer");
        if let Some(entry) = self.remove(slot) {
            self.refuse(entry.opening.into_plain_stream(), Code::Overloaded, "");
        }
        true
    }

    fn add(&mut self, accepted: Accepted) {
        let Accepted { stream, address, permit, place, is_from_proxy, at } = accepted;
        let mut opening = Opening::new(stream, is_from_proxy);
        let entry = self.entries.vacant_entry();
        let (slot, interests) = (entry.key(), Interest::READABLE | Interest::WRITABLE);
        if let Some(stream) = opening.stream_mut()
            && let Err(error) = self.poll.registry().register(stream, Token(slot), interests)
        {
            log_limited!(warn, %error, "failed to watch a new connection; closing it");
            return;
        }
        let deadline = at + self.settings.deadline;
        entry.insert(Entry { opening, address, permit, place, deadline });
        self.advance(slot);
    }

    fn advance(&mut self, slot: usize) {
        let policy = self.settings.policy.get();
        let expected = Expected {
            tls: self.settings.certificates.as_ref().map(|certificates| certificates.config()),
            is_tls_required: policy.is_tls_required,
            client_name: self.settings.client_name,
        };
        loop {
            let Some(entry) = self.entries.get_mut(slot) else { return };
            let advanced = catch_unwind(AssertUnwindSafe(|| entry.opening.advance(&expected)));
            let Ok(progress) = advanced else {
                self.metrics.panics.increment(1);
                log_limited!(error, "panic in a handshake; closing its connection, please report this");
                self.remove(slot);
                return;
            };
            match progress {
                Progress::Waiting => return,
                Progress::Named(client) => {
                    if let Some(refusal) = self.screen.bans.refusal_of_address(client.ip()) {
                        let entry = self.remove(slot);
                        let stream = entry.and_then(|entry| entry.opening.into_plain_stream());
                        return refuse_banned(stream, refusal, &self.metrics);
                    }
                    if let Err(code) = self.count_for(slot, client, &policy) {
                        return self.end(slot, code);
                    }
                }
                Progress::Begins => {
                    let is_forwarder = policy.forwarders.contains(entry.address.ip());
                    if !is_forwarder && let Err(code) = self.fairness.begin(entry.address.ip()) {
                        return self.end(slot, code);
                    }
                }
                Progress::Complete(arrival, user) => return self.hand_over(slot, *arrival, user),
                Progress::Refused(stream, code, reason) => {
                    self.remove(slot);
                    let is_foreign = reason == FOREIGN_PROXY_HEADER;
                    self.metrics.proxy_headers_foreign.increment(u64::from(is_foreign));
                    return self.refuse(Some(stream), code, reason);
                }
                Progress::Failed(reason) => {
                    if let Some(entry) = self.remove(slot) {
                        self.metrics.tls_failures.increment(1);
                        tracing::debug!(address = %entry.address, %reason, "TLS handshake failed");
                    }
                    return;
                }
                Progress::Gone => {
                    self.remove(slot);
                    return;
                }
            }
        }
    }

    /// Counts a connection of a proxy for the client that it names.
    fn count_for(&mut self, slot: usize, client: SocketAddr, policy: &FirstBytesPolicy) -> Result<(), Code> {
        let Some(entry) = self.entries.get_mut(slot) else { return Ok(()) };
        entry.address = client;
        if !policy.forwarders.contains(client.ip()) {
            entry.place = Some(self.fairness.enter(client.ip())?);
            entry.permit.move_to(client.ip())?;
        }
        Ok(())
    }

    fn hand_over(&mut self, slot: usize, mut arrival: Arrival, certified_user: Option<Box<str>>) {
        let Some(entry) = self.remove(slot) else { return };
        if let Err(error) = self.poll.registry().deregister(&mut arrival.stream) {
            tracing::debug!(%error, "failed to stop watching a connection");
        }
        if arrival.tls.is_some() {
            self.metrics.tls_handshakes.increment(1);
        }
        let Entry { address, permit, .. } = entry;
        match self.placement.offer(Newcomer { arrival, address, permit, certified_user }) {
            Ok(()) => self.metrics.accepted.increment(1),
            Err(refused) => {
                let stream = refused.arrival.tls.is_none().then_some(refused.arrival.stream);
                self.refuse(stream, Code::Overloaded, "");
            }
        }
    }

    /// Removes a connection, and refuses it.
    fn end(&mut self, slot: usize, code: Code) {
        if let Some(entry) = self.remove(slot) {
            self.screen.note(code, entry.address.ip());
            self.refuse(entry.opening.into_plain_stream(), code, "");
        }
    }

    fn remove(&mut self, slot: usize) -> Option<Entry> {
        self.entries.try_remove(slot)
    }

    fn refuse(&self, stream: Option<TcpStream>, code: Code, reason: &str) {
        self.metrics.refused.increment(1);
        self.metrics.codes.count(code);
        if let Some(stream) = stream {
            refuse(stream, code, reason);
        }
    }

    /// Ends connections whose first bytes are late.
    fn end_late(&mut self) {
        let now = Instant::now();
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.deadline > now);
        for _ in self.entries.len()..before {
            self.metrics.codes.count(Code::HandshakeTimeout);
            self.metrics.openings_late.increment(1);
        }
    }
}
