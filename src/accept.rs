//! Client listener: accepts connections, refuses those over a limit with a code, and
//! spreads the rest evenly over shards. A busy shard never delays it.
//!
//! With TLS, and for connections of proxies, the first bytes come between the accept and the shard, on threads of their
//! own.

mod fairness;
mod opening;
mod openings;
mod placement;
mod screen;

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, net::TcpListener, net::TcpStream};
use tidegate_protocol::{Code, codec::Wire, pb, pb::server_frame::Body};

pub use self::{
    fairness::Fairness,
    openings::{FirstBytesPolicy, OpeningSettings},
    screen::AcceptScreen,
};
use self::{
    openings::{Accepted, OpeningQueue, Openings},
    placement::Placement,
};
use crate::{
    bans::BanRefusal,
    budget::Admission,
    config,
    live::Live,
    log_limit::log_limited,
    metrics::Metrics,
    net::{sockopt, tcp::Arrival, transfer},
    shard::{DriverQueue, newcomer::Newcomer},
    supervised,
};

/// Pause of accepting when the process has no file descriptor left; clients wait in the kernel's backlog.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);

/// Acceptor of one listener, run on its own thread.
pub struct Acceptor {
    poll: Poll,
    listener: TcpListener,
    admission: Arc<Admission>,
    placement: Placement,
    openings: Option<OpeningThreads>,
    screen: AcceptScreen,
    socket: config::SocketConfig,
    metrics: Metrics,
    stop: Arc<AtomicBool>,
    paused_until: Option<Instant>,
}

/// Threads for the first bytes of connections.
struct OpeningThreads {
    queues: Vec<OpeningQueue>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    policy: Arc<Live<FirstBytesPolicy>>,
    has_tls: bool,
    fairness: Arc<Fairness>,
    next: usize,
}

/// What comes between the accept and the shard.
pub struct FirstBytes {
    /// TLS, policy, deadline and bound.
    pub settings: OpeningSettings,
    /// Number of threads.
    pub threads: usize,
    /// Shares of the networks.
    pub fairness: Arc<Fairness>,
}

/// Handle that stops an [`Acceptor`].
#[derive(Clone)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Arc<mio::Waker>,
}

impl Stopper {
    /// Stops accepting and closes the listener.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            tracing::warn!(%error, "failed to wake the acceptor; it stops at the next connection");
        }
    }
}

impl Acceptor {
    /// Creates an acceptor, and the handle that stops it. With `first_bytes`, connections of proxies and, if TLS is
    /// offered, all connections pass threads that this starts.
    ///
    /// # Errors
    /// Fails if the kernel can't create a poll, its waker or a thread.
    pub fn new(
        listener: std::net::TcpListener,
        admission: Arc<Admission>,
        shards: Vec<DriverQueue>,
        first_bytes: Option<FirstBytes>,
        screen: AcceptScreen,
        socket: config::SocketConfig,
        metrics: Metrics,
    ) -> io::Result<(Self, Stopper)> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
        let stop = Arc::new(AtomicBool::new(false));
        let stopper = Stopper { stop: Arc::clone(&stop), waker };
        let placement = Placement::new(shards);
        let start = |first: FirstBytes| OpeningThreads::start(first, &placement, &screen, &metrics, &stopper);
        let openings = first_bytes.map(start).transpose()?;
        let acceptor = Self {
            poll,
            listener,
            admission,
            placement,
            openings,
            screen,
            socket,
            metrics,
            stop,
            paused_until: None,
        };
        Ok((acceptor, stopper))
    }

    /// Accepts until [`Stopper::stop`] is called.
    ///
    /// # Errors
    /// Fails if polling fails, or a thread for first bytes ends.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(16);
        while !self.stop.load(Ordering::Acquire) {
            let pause = self.paused_until.map(|until| until.saturating_duration_since(Instant::now()));
            match self.poll.poll(&mut events, pause) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if let Some(error) = self.openings.as_mut().and_then(OpeningThreads::failure)
                && !self.stop.load(Ordering::Acquire)
            {
                return Err(error);
            }
            if self.paused_until.is_none_or(|until| until <= Instant::now()) {
                self.paused_until = None;
                self.accept_all();
            }
        }
        self.openings.take().map_or(Ok(()), OpeningThreads::end)
    }

    fn accept_all(&mut self) {
        loop {
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            match self.listener.accept() {
                Ok((stream, address)) => self.admit(stream, address),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_exhausted(&error) => {
                    self.metrics.accept_pauses.increment(1);
                    log_limited!(warn, %error, "no file descriptor left; accepting paused");
                    self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
                // Other errors concern this one connection, whose peer has closed it already.
                Err(error) => tracing::debug!(%error, "connection lost before it was accepted"),
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, address: SocketAddr) {
        let policy = self.openings.as_ref().map(|openings| openings.policy.get());
        let is_from_proxy = policy.as_ref().is_some_and(|it| it.proxies.contains(address.ip()));
        let is_from_forwarder = policy.is_some_and(|it| it.forwarders.contains(address.ip()));
        if !is_from_proxy
            && !is_from_forwarder
            && let Some(refusal) = self.screen.bans.refusal_of_address(address.ip())
        {
            return refuse_banned(Some(stream), refusal, &self.metrics);
        }
        let admitted = if is_from_proxy || is_from_forwarder {
            self.admission.admit_from_proxy()
        } else {
            self.admission.admit(address.ip())
        };
        let permit = match admitted {
            Ok(permit) => permit,
            Err(code) => {
                self.screen.note(code, address.ip());
                return self.refuse(stream, code);
            }
        };
        if let Err(error) = sockopt::tune(&stream, &self.socket) {
            tracing::debug!(%error, "connection lost before it was served");
            return;
        }
        if let Some(openings) = &mut self.openings
            && (is_from_proxy || openings.has_tls)
        {
            let counted =
                (!is_from_proxy && !is_from_forwarder).then(|| openings.fairness.enter(address.ip()));
            let place = match counted.transpose() {
                Ok(place) => place,
                Err(code) => {
                    self.screen.note(code, address.ip());
                    return self.refuse(stream, code);
                }
            };
            let accepted = Accepted { stream, address, permit, place, is_from_proxy, at: Instant::now() };
            if let Err(accepted) = openings.offer(accepted) {
                self.refuse(accepted.stream, Code::Overloaded);
            }
            return;
        }
        let arrival = Arrival { stream, tls: None };
        match self.placement.offer(Newcomer { arrival, address, permit, certified_user: None }) {
            Ok(()) => self.metrics.accepted.increment(1),
            Err(newcomer) => self.refuse(newcomer.arrival.stream, Code::Overloaded),
        }
    }

    fn refuse(&self, stream: TcpStream, code: Code) {
        self.metrics.refused.increment(1);
        self.metrics.codes.count(code);
        refuse(stream, code, "");
    }
}

impl OpeningThreads {
    fn start(
        first: FirstBytes,
        placement: &Placement,
        screen: &AcceptScreen,
        metrics: &Metrics,
        stopper: &Stopper,
    ) -> io::Result<Self> {
        let FirstBytes { settings, threads: count, fairness } = first;
        let (has_tls, policy) = (settings.certificates.is_some(), Arc::clone(&settings.policy));
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for index in 0..count.max(1) {
            let (openings, queue) = Openings::new(
                placement.clone(),
                settings.clone(),
                Arc::clone(&fairness),
                screen.clone(),
                metrics.clone(),
                Arc::clone(&stopper.stop),
            )?;
            let waker = Arc::clone(&stopper.waker);
            let run = move || {
                let ended = openings.run();
                // The acceptor looks at its threads.
                waker.wake().and(ended)
            };
            threads.push(supervised::spawn_thread(format!("tidegate-tls-{index}"), run)?);
            queues.push(queue);
        }
        Ok(Self { queues, threads, policy, has_tls, fairness, next: 0 })
    }

    /// Returns why a thread has ended, if one has. The node must end then: the others can't do its work.
    fn failure(&mut self) -> Option<io::Error> {
        let at = self.threads.iter().position(JoinHandle::is_finished)?;
        let ended = self.threads.swap_remove(at).join();
        let why = || io::Error::other("a thread for the first bytes of connections ended unexpectedly");
        Some(ended.map_or_else(|_| why(), |ended| ended.err().unwrap_or_else(why)))
    }

    /// Hands a connection to one of the threads; returns it if all have as many as they may.
    fn offer(&mut self, accepted: Accepted) -> Result<(), Box<Accepted>> {
        let count = self.queues.len();
        self.next = (self.next + 1) % count;
        let mut refused = accepted;
        for step in 0..count {
            match self.queues[(self.next + step) % count].offer(refused) {
                Ok(()) => return Ok(()),
                Err(accepted) => refused = *accepted,
            }
        }
        Err(Box::new(refused))
    }

    /// Waits for the threads, which end when the acceptor stops.
    fn end(self) -> io::Result<()> {
        for thread in self.threads {
            thread.join().unwrap_or(Ok(()))?;
        }
        Ok(())
    }
}

/// Refuses a connection with a code.
fn refuse(stream: TcpStream, code: Code, reason: &str) {
    let retry_ms = if code.temporary() { REFUSED_RETRY_MS } else { 0 };
    refuse_with(stream, code.close(reason, retry_ms));
}

/// Refuses a connection because of a ban; `None` if it can't read a code.
fn refuse_banned(stream: Option<TcpStream>, refusal: BanRefusal, metrics: &Metrics) {
    metrics.refused.increment(1);
    metrics.ban_refusals.increment(1);
    metrics.codes.count(Code::Banned);
    if let Some(stream) = stream {
        refuse_with(stream, refusal.close());
    }
}

/// Sends a `Close` as a JSON line, which needs no handshake, and closes the connection. The client may not read it.
fn refuse_with(mut stream: TcpStream, close: pb::Close) {
    // A close with unread input would send a reset, which destroys what is written.
    let mut input = [0; 4_096];
    for _ in 0..REFUSED_READS_MAX {
        if !matches!(transfer::read(&stream, &mut input), Ok(received) if received == input.len()) {
            break;
        }
    }
    let close = pb::ServerFrame { id: 0, body: Some(Body::Close(close)) };
    let line = tidegate_protocol::codec::encode_frame(&close, Wire::JsonLine);
    if let Err(error) = stream.write(&line) {
        tracing::debug!(%error, "failed to send the refusal code to a client");
    }
}

/// Reads of what a refused client has sent already.
const REFUSED_READS_MAX: usize = 4;

/// Delay before a refused client should reconnect.
const REFUSED_RETRY_MS: u32 = 5_000;

fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    exhausted.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn ended_thread_of_first_bytes_ends_the_acceptor_with_its_reason() {
        let (ended, runs) = (
            || Err(io::Error::other("the poll failed")),
            || -> io::Result<()> {
                thread::park();
                Ok(())
            },
        );
        let mut threads = OpeningThreads {
            queues: Vec::new(),
            threads: vec![thread::spawn(runs)],
            policy: Arc::default(),
            has_tls: true,
            fairness: Arc::new(Fairness::new(0, 0)),
            next: 0,
        };
        let running = threads.threads[0].thread().clone();
        assert!(threads.failure().is_none(), "it runs");
        let ended = thread::spawn(ended);
        while !ended.is_finished() {
            std::hint::spin_loop();
        }
        threads.threads.push(ended);
        let failure = threads.failure().unwrap();
        assert_eq!(failure.to_string(), "the poll failed");
        running.unpark();
        threads.end().unwrap();
    }
}
