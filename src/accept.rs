//! Client listener: accepts connections, refuses those over a limit with a code, and
//! spreads the rest evenly over shards. A busy shard never delays it.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, net::TcpListener, net::TcpStream};
use tidegate_protocol::{Code, codec::Wire, pb, pb::server_frame::Body};

use crate::{
    budget::Admission,
    config,
    log_limit::log_limited,
    metrics::Metrics,
    net::sockopt,
    shard::newcomer::{Newcomer, NewcomerQueue},
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
    shards: Vec<NewcomerQueue<TcpStream>>,
    socket: config::SocketConfig,
    metrics: Metrics,
    next: usize,
    stop: Arc<AtomicBool>,
    paused_until: Option<Instant>,
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
    /// Creates an acceptor, and the handle that stops it.
    ///
    /// # Errors
    /// Fails if the kernel can't create the poll or its waker.
    pub fn new(
        listener: std::net::TcpListener,
        admission: Arc<Admission>,
        shards: Vec<NewcomerQueue<TcpStream>>,
        socket: config::SocketConfig,
        metrics: Metrics,
    ) -> io::Result<(Self, Stopper)> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
        let stop = Arc::new(AtomicBool::new(false));
        let stopper = Stopper { stop: Arc::clone(&stop), waker };
        let acceptor =
            Self { poll, listener, admission, shards, socket, metrics, next: 0, stop, paused_until: None };
        Ok((acceptor, stopper))
    }

    /// Accepts until [`Stopper::stop`] is called.
    ///
    /// # Errors
    /// Fails if polling fails.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(16);
        while !self.stop.load(Ordering::Acquire) {
            let pause = self.paused_until.map(|until| until.saturating_duration_since(Instant::now()));
            match self.poll.poll(&mut events, pause) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if self.paused_until.is_none_or(|until| until <= Instant::now()) {
                self.paused_until = None;
                self.accept_all();
            }
        }
        Ok(())
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
        let permit = match self.admission.admit(address.ip()) {
            Ok(permit) => permit,
            Err(code) => return self.refuse(stream, code),
        };
        if let Err(error) = sockopt::tune(&stream, &self.socket) {
            tracing::debug!(%error, "connection lost before it was served");
            return;
        }
        match self.offer(Newcomer { stream, address, permit }) {
            Ok(()) => self.metrics.accepted.increment(1),
            Err(newcomer) => self.refuse(newcomer.stream, Code::Overloaded),
        }
    }

    /// Offers a connection to the shard with the fewest connections, then to the others; returns it if all are full.
    fn offer(&mut self, newcomer: Newcomer<TcpStream>) -> Result<(), Newcomer<TcpStream>> {
        let (first, count) = (self.least_loaded(), self.shards.len());
        let mut refused = newcomer;
        for step in 0..count {
            match self.shards[(first + step) % count].offer(refused) {
                Ok(()) => return Ok(()),
                Err(newcomer) => refused = newcomer,
            }
        }
        Err(refused)
    }

    fn refuse(&self, stream: TcpStream, code: Code) {
        self.metrics.refused.increment(1);
        self.metrics.codes.count(code);
        refuse(stream, code);
    }

    /// Returns the shard with the fewest connections; rotates among equals.
    fn least_loaded(&mut self) -> usize {
        let count = self.shards.len();
        self.next = (self.next + 1) % count;
        (0..count)
            .map(|step| (self.next + step) % count)
            .min_by_key(|at| self.shards[*at].shard().conns())
            .unwrap_or(0)
    }
}

/// Sends a `Close` as a JSON line, which needs no handshake, and closes the connection. The client may not read it.
fn refuse(mut stream: TcpStream, code: Code) {
    let close = pb::ServerFrame { id: 0, body: Some(Body::Close(code.close("", REFUSED_RETRY_MS))) };
    let line = tidegate_protocol::codec::encode_frame(&close, Wire::JsonLine);
    if let Err(error) = stream.write(&line) {
        tracing::debug!(%error, "failed to send the refusal code to a client");
    }
}

/// Delay before a refused client should reconnect.
const REFUSED_RETRY_MS: u32 = 5_000;

fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    exhausted.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
