//! Thread for the first bytes of connections, so that neither the acceptor nor a shard waits for a handshake or computes
//! one.

use std::{
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, net::TcpStream};
use slab::Slab;
use tidegate_protocol::Code;

use super::{
    opening::{Expected, Opening, Progress},
    placement::Placement,
    refuse,
};
use crate::{
    budget::ConnectionPermit, log_limit::log_limited, metrics::Metrics, net::tls::Certificates,
    networks::Networks, shard::newcomer::Newcomer,
};

/// Longest time between two looks at the deadlines.
const TICK: Duration = Duration::from_millis(100);

const WAKER: Token = Token(usize::MAX);

/// Settings of the first bytes.
#[derive(Clone)]
pub struct OpeningSettings {
    /// Certificates, if TLS is offered.
    pub certificates: Option<Arc<Certificates>>,
    /// Whether connections without TLS are refused.
    pub is_tls_required: bool,
    /// Time from the accept to the end of the handshake.
    pub deadline: Duration,
    /// Networks of proxies that name their client later, in an HTTP header.
    pub forwarders: Networks,
    /// Most connections of one thread whose first bytes are awaited.
    pub openings_max: usize,
}

/// Accepted connection on its way to the thread.
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) permit: ConnectionPermit,
    /// Whether a PROXY header comes first.
    pub(super) is_from_proxy: bool,
    /// Time of the accept.
    pub(super) at: Instant,
}

/// Sending side of the queue of a thread.
pub(super) struct OpeningQueue {
    queue: SyncSender<(Accepted, Place)>,
    waker: Arc<mio::Waker>,
    taken: Arc<AtomicUsize>,
    openings_max: usize,
}

/// Place of a connection among those of a thread, in its queue or under way; free again on drop.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl OpeningQueue {
    /// Offers a connection without waiting; returns it if the thread has as many as it may.
    pub(super) fn offer(&self, accepted: Accepted) -> Result<(), Accepted> {
        let place = Place(Arc::clone(&self.taken));
        if self.taken.fetch_add(1, Ordering::Relaxed) >= self.openings_max {
            return Err(accepted);
        }
        match self.queue.try_send((accepted, place)) {
            Ok(()) => {
                if let Err(error) = self.waker.wake() {
                    log_limited!(warn, %error, "failed to wake the thread of handshakes; it continues within 100 ms");
                }
                Ok(())
            }
            Err(TrySendError::Full((accepted, _)) | TrySendError::Disconnected((accepted, _))) => {
                Err(accepted)
            }
        }
    }
}

/// Connection whose first bytes are awaited.
struct Entry {
    opening: Opening,
    address: SocketAddr,
    permit: ConnectionPermit,
    deadline: Instant,
    _place: Place,
}

/// Work of one thread.
pub(super) struct Openings {
    poll: Poll,
    queue: Receiver<(Accepted, Place)>,
    entries: Slab<Entry>,
    placement: Placement,
    settings: OpeningSettings,
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
        metrics: Metrics,
        stop: Arc<AtomicBool>,
    ) -> io::Result<(Self, OpeningQueue)> {
        let poll = Poll::new()?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
        let (sender, queue) = sync_channel(settings.openings_max);
        let openings_max = settings.openings_max;
        let openings = Self { poll, queue, entries: Slab::new(), placement, settings, metrics, stop };
        let taken = Arc::default();
        Ok((openings, OpeningQueue { queue: sender, waker, taken, openings_max }))
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
        Ok(())
    }

    fn take_accepted(&mut self) {
        while let Ok((accepted, place)) = self.queue.try_recv() {
            self.add(accepted, place);
        }
    }

    fn add(&mut self, accepted: Accepted, place: Place) {
        let Accepted { stream, address, permit, is_from_proxy, at } = accepted;
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
        entry.insert(Entry { opening, address, permit, deadline, _place: place });
        self.advance(slot);
    }

    fn advance(&mut self, slot: usize) {
        let expected = Expected {
            tls: self.settings.certificates.as_ref().map(|certificates| certificates.config()),
            is_tls_required: self.settings.is_tls_required,
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
                    entry.address = client;
                    if !self.settings.forwarders.contains(client.ip())
                        && let Err(code) = entry.permit.move_to(client.ip())
                    {
                        let Some(entry) = self.remove(slot) else { return };
                        return self.refuse(entry.opening.into_stream(), code, "");
                    }
                }
                Progress::Complete(mut arrival) => {
                    let Some(entry) = self.remove(slot) else { return };
                    if let Err(error) = self.poll.registry().deregister(&mut arrival.stream) {
                        tracing::debug!(%error, "failed to stop watching a connection");
                    }
                    if arrival.tls.is_some() {
                        self.metrics.tls_handshakes.increment(1);
                    }
                    let Entry { address, permit, .. } = entry;
                    if let Err(refused) =
                        self.placement.offer(Newcomer { arrival: *arrival, address, permit })
                    {
                        let stream = refused.arrival.tls.is_none().then_some(refused.arrival.stream);
                        self.refuse(stream, Code::Overloaded, "");
                    } else {
                        self.metrics.accepted.increment(1);
                    }
                    return;
                }
                Progress::Refused(stream, code, reason) => {
                    self.remove(slot);
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
