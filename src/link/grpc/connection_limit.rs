//! Connection limits of the link listener. Each connection holds one of the places of strangers until it is
//! authenticated, and then one of those of peers.
//!
//! Until a connection is authenticated, it may send few bytes, and it is closed at its deadline, which counts from its
//! acceptance and covers TLS, HTTP/2 and the handshake, or earlier for another stranger. So silent callers can't keep
//! peers out, and the memory that they can use is bounded below TLS, whatever they send.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot},
    time::{Sleep, sleep},
};
use tonic::transport::server::Connected;

use super::strangers::{Place, Strangers};
use crate::metrics::Metrics;

/// Limit on concurrent connections that are authenticated. A peer has one, or two while it reconnects.
const PEERS_MAX: usize = 256;

/// Limit on the bytes read from a connection before its authentication: certificates, HTTP/2 frames, hello and proof.
const UNAUTHENTICATED_BYTES_MAX: usize = 64 * 1024;

/// Limit on concurrent handshakes of one connection; a peer opens three streams.
const HANDSHAKES_PER_CONNECTION_MAX: usize = 3;

/// Admits the connections of the listener.
pub(super) struct ConnectionLimit {
    strangers: Strangers,
    peers: Arc<Semaphore>,
    handshake: Duration,
    metrics: Metrics,
}

/// Connection that holds a place, with limits until its authentication.
pub(super) struct PermittedConnection {
    stream: TcpStream,
    authenticated: Authenticated,
    /// Limits until the authentication; `None` once it has succeeded.
    probation: Option<Probation>,
    metrics: Metrics,
}

/// Limits of a connection until its authentication.
struct Probation {
    deadline: Pin<Box<Sleep>>,
    /// Gets a value when the connection is closed for another stranger; `None` once its place is left.
    closed: Option<oneshot::Receiver<()>>,
    has_closed: bool,
    bytes_left: usize,
    /// Whether a limit was exceeded.
    has_failed: bool,
}

/// Authentication of a connection, set when a peer's handshake succeeds; the connection's requests carry it.
#[derive(Clone, Default)]
pub(super) struct Authenticated(Arc<AuthenticationState>);

struct AuthenticationState {
    is_set: AtomicBool,
    standing: Mutex<Standing>,
    peers: Arc<Semaphore>,
    handshakes: Semaphore,
}

/// Place that a connection holds.
enum Standing {
    Stranger(Place),
    Peer {
        _permit: OwnedSemaphorePermit,
    },
    /// None: the connection has ended.
    Ended,
}

impl ConnectionLimit {
    /// Creates the limits, with all places free. Each connection must be authenticated within `handshake`.
    pub(super) fn new(handshake: Duration, metrics: Metrics) -> Self {
        let peers = Arc::new(Semaphore::new(PEERS_MAX));
        Self { strangers: Strangers::default(), peers, handshake, metrics }
    }

    /// Admits a connection. Returns `None` if there is no free place for its network; dropping the stream closes the
    /// connection.
    pub(super) fn admit(&self, stream: TcpStream) -> Option<PermittedConnection> {
        let (place, closed) = self.strangers.enter(stream.peer_addr().ok()?.ip())?;
        let state = AuthenticationState::new(Standing::Stranger(place), Arc::clone(&self.peers));
        let probation = Probation {
            deadline: Box::pin(sleep(self.handshake)),
            closed: Some(closed),
            has_closed: false,
            bytes_left: UNAUTHENTICATED_BYTES_MAX,
            has_failed: false,
        };
        Some(PermittedConnection {
            stream,
            authenticated: Authenticated(Arc::new(state)),
            probation: Some(probation),
            metrics: self.metrics.clone(),
        })
    }
}

impl AuthenticationState {
    fn new(standing: Standing, peers: Arc<Semaphore>) -> Self {
        let handshakes = Semaphore::new(HANDSHAKES_PER_CONNECTION_MAX);
        Self { is_set: AtomicBool::new(false), standing: Mutex::new(standing), peers, handshakes }
    }
}

impl Default for AuthenticationState {
    fn default() -> Self {
        Self::new(Standing::Ended, Arc::new(Semaphore::new(0)))
    }
}

impl Authenticated {
    /// Marks the connection as authenticated, and moves it from the strangers to the peers.
    ///
    /// # Errors
    /// The connection has ended or lost its place to another stranger, or there are too many peers.
    pub(super) fn set(&self) -> Result<(), &'static str> {
        let mut standing = self.0.standing.lock();
        match &*standing {
            Standing::Peer { .. } => return Ok(()),
            Standing::Ended => return Err("the connection has ended"),
            Standing::Stranger(place) => {
                let permit = Arc::clone(&self.0.peers).try_acquire_owned();
                let permit = permit.map_err(|_| "too many peers are connected")?;
                if !place.leave() {
                    return Err("the connection is closed for another caller");
                }
                *standing = Standing::Peer { _permit: permit };
            }
        }
        self.0.is_set.store(true, Ordering::Release);
        drop(standing);
        Ok(())
    }

    /// Returns whether the connection is authenticated.
    pub(super) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Acquire)
    }

    /// Returns a permit for one more concurrent handshake on the connection, if there is one.
    pub(super) fn begin_handshake(&self) -> Option<SemaphorePermit<'_>> {
        self.0.handshakes.try_acquire().ok()
    }
}

impl PermittedConnection {
    /// Returns the address of the caller.
    pub(super) fn caller(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    /// Waits for the first byte, and leaves it to be read.
    ///
    /// # Errors
    /// The connection has ended, or exceeds a limit.
    pub(super) async fn first_byte(&mut self) -> io::Result<u8> {
        std::future::poll_fn(|context| {
            self.check_deadline(context)?;
            let mut byte = [0];
            let mut into = ReadBuf::new(&mut byte);
            match ready!(self.stream.poll_peek(context, &mut into))? {
                0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                _ => Poll::Ready(Ok(byte[0])),
            }
        })
        .await
    }

    /// Checks that the connection is authenticated, or before its deadline and not closed for another. Called by reads and writes: a caller that
    /// accepts no bytes is not read from.
    fn check_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.authenticated.is_set() {
            self.probation = None;
        }
        let Some(probation) = &mut self.probation else { return Ok(()) };
        if let Some(closed) = &mut probation.closed
            && let Poll::Ready(reason) = Pin::new(closed).poll(context)
        {
            probation.has_closed = reason.is_ok();
            probation.closed = None;
        }
        if probation.has_closed
            || probation.has_failed
            || probation.deadline.as_mut().poll(context).is_ready()
        {
            return Err(self.refused(io::ErrorKind::TimedOut));
        }
        Ok(())
    }

    /// Counts bytes that were read, and checks that they are few or the connection is authenticated.
    fn count_read(&mut self, bytes: usize) -> io::Result<()> {
        let Some(probation) = &mut self.probation else { return Ok(()) };
        match probation.bytes_left.checked_sub(bytes) {
            Some(left) => probation.bytes_left = left,
            // The peer may have authenticated since the check before the read.
            None if self.authenticated.is_set() => self.probation = None,
            None => return Err(self.refused(io::ErrorKind::QuotaExceeded)),
        }
        Ok(())
    }

    fn refused(&mut self, why: io::ErrorKind) -> io::Error {
        let failed_before =
            self.probation.as_mut().is_some_and(|it| std::mem::replace(&mut it.has_failed, true));
        self.metrics.link_refused.increment(u64::from(!failed_before));
        why.into()
    }
}

impl Drop for PermittedConnection {
    fn drop(&mut self) {
        // Requests that outlive the connection hold its state, too.
        *self.authenticated.0.standing.lock() = Standing::Ended;
    }
}

impl Connected for PermittedConnection {
    type ConnectInfo = Authenticated;

    fn connect_info(&self) -> Authenticated {
        self.authenticated.clone()
    }
}

impl AsyncRead for PermittedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_deadline(context)?;
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, into);
        self.count_read(into.filled().len() - before)?;
        polled
    }
}

impl AsyncWrite for PermittedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::{link::grpc::strangers::PER_NETWORK_MAX, metrics};

    async fn connections(limit: &ConnectionLimit) -> (TcpStream, Option<PermittedConnection>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (caller, limit.admit(listener.accept().await.unwrap().0))
    }

    #[tokio::test]
    async fn x15_deadline_holds_for_a_caller_that_reads_nothing() {
        let limit = ConnectionLimit::new(Duration::from_millis(50), metrics::install().0);
        let (_caller, connection) = connections(&limit).await;
        // Far more than the buffers of both sockets.
        let sent = connection.unwrap().write_all(&vec![0; 64 << 20]).await;
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn x15_caller_may_send_few_bytes_until_it_is_authenticated() {
        let limit = ConnectionLimit::new(Duration::from_secs(600), metrics::install().0);
        let many = vec![0; UNAUTHENTICATED_BYTES_MAX + 1];
        for is_authenticated in [true, false] {
            let (mut caller, connection) = connections(&limit).await;
            let mut connection = connection.unwrap();
            if is_authenticated {
                connection.authenticated.set().unwrap();
            }
            let mut read = vec![0; many.len()];
            let (sent, received) = tokio::join!(caller.write_all(&many), connection.read_exact(&mut read));
            sent.unwrap();
            let refused = received.err().map(|error| error.kind());
            assert_eq!(refused, (!is_authenticated).then_some(io::ErrorKind::QuotaExceeded));
        }
    }

    #[tokio::test]
    async fn x15_places_of_a_network_are_released_by_authentication_and_by_the_end() {
        let limit = ConnectionLimit::new(Duration::from_secs(600), metrics::install().0);
        let mut open = Vec::new();
        for _ in 0..PER_NETWORK_MAX {
            open.push(connections(&limit).await.1.unwrap());
        }
        assert!(connections(&limit).await.1.is_none(), "all places are taken");
        open[0].authenticated.set().unwrap();
        open.push(connections(&limit).await.1.unwrap());
        assert!(connections(&limit).await.1.is_none(), "all places are taken again");
        drop(open.pop());
        open.push(connections(&limit).await.1.unwrap());
        assert_eq!(limit.peers.available_permits(), PEERS_MAX - 1);
        let state = open[0].authenticated.clone();
        drop(open);
        assert_eq!(state.set(), Err("the connection has ended"));
        assert_eq!((limit.strangers.count(), limit.peers.available_permits()), (0, PEERS_MAX));
    }

    #[tokio::test]
    async fn s73_authenticated_connections_are_limited_apart_from_the_others() {
        let limit = ConnectionLimit::new(Duration::from_secs(600), metrics::install().0);
        let (_caller, connection) = connections(&limit).await;
        let connection = connection.unwrap();
        let count = u32::try_from(PEERS_MAX).unwrap();
        let all = Arc::clone(&limit.peers).try_acquire_many_owned(count).unwrap();
        assert_eq!(connection.authenticated.set(), Err("too many peers are connected"));
        assert!(!connection.authenticated.is_set());
        drop(all);
        for _ in 0..3 {
            assert_eq!(connection.authenticated.set(), Ok(()), "each stream of a peer sets it");
        }
        assert_eq!((limit.strangers.count(), limit.peers.available_permits()), (0, PEERS_MAX - 1));
    }
}
