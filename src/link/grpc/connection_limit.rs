//! Connection limits of the link listener. Each connection holds a permit, and without a free one it is closed at once.
//!
//! Until a connection is authenticated, it also holds one of a few places of its network, may send few bytes and is
//! closed at its deadline, which counts from its acceptance and covers TLS, HTTP/2 and the handshake. So silent callers
//! can't keep peers out, and the memory that they can use is bounded below TLS, whatever they send.

use std::{
    collections::HashMap,
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    time::{Sleep, sleep},
};
use tonic::transport::server::Connected;

use crate::{budget::network_of, metrics::Metrics};

/// Limit on concurrent connections, authenticated or not. A peer has one, or two while it reconnects.
const CONNECTIONS_MAX: usize = 256;

/// Limit on concurrent connections of one address, or IPv6 /64, that are not authenticated. A peer needs milliseconds
/// to authenticate, and reconnects soon if it is refused.
const UNAUTHENTICATED_PER_NETWORK_MAX: usize = 8;

/// Limit on the bytes read from a connection before its authentication: certificates, HTTP/2 frames, hello and proof.
const UNAUTHENTICATED_BYTES_MAX: usize = 64 * 1024;

/// Limit on concurrent handshakes of one connection; a peer opens three streams.
const HANDSHAKES_PER_CONNECTION_MAX: usize = 3;

/// Admits the connections of the listener.
pub(super) struct ConnectionLimit {
    permits: Arc<Semaphore>,
    unauthenticated: UnauthenticatedCounts,
    handshake: Duration,
    metrics: Metrics,
}

/// Number of connections that are not authenticated, by network.
type UnauthenticatedCounts = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// Place of an unauthenticated connection among those of its network, released on drop.
struct NetworkPlace {
    counts: UnauthenticatedCounts,
    network: IpAddr,
}

/// Connection that holds a permit, with limits until its authentication.
pub(super) struct PermittedConnection {
    stream: TcpStream,
    authenticated: Authenticated,
    /// Limits until the authentication; `None` once it has succeeded.
    probation: Option<Probation>,
    metrics: Metrics,
    _permit: OwnedSemaphorePermit,
}

/// Limits of a connection until its authentication.
struct Probation {
    deadline: Pin<Box<Sleep>>,
    bytes_left: usize,
    /// Whether a limit was exceeded.
    has_failed: bool,
}

/// Authentication of a connection, set when a peer's handshake succeeds; the connection's requests carry it.
#[derive(Clone, Default)]
pub(super) struct Authenticated(Arc<AuthenticationState>);

struct AuthenticationState {
    is_set: AtomicBool,
    /// Place that the connection holds until the authentication.
    place: Mutex<Option<NetworkPlace>>,
    handshakes: Semaphore,
}

impl ConnectionLimit {
    /// Creates the limits, with all permits free. Each connection must be authenticated within `handshake`.
    pub(super) fn new(handshake: Duration, metrics: Metrics) -> Self {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        Self { permits, unauthenticated: UnauthenticatedCounts::default(), handshake, metrics }
    }

    /// Admits a connection. Returns `None` if there is no free permit or no free place for its network; dropping the
    /// stream closes the connection.
    pub(super) fn admit(&self, stream: TcpStream) -> Option<PermittedConnection> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let place = NetworkPlace::take(&self.unauthenticated, stream.peer_addr().ok()?.ip())?;
        let state = AuthenticationState { place: Mutex::new(Some(place)), ..AuthenticationState::default() };
        let deadline = Box::pin(sleep(self.handshake));
        Some(PermittedConnection {
            stream,
            authenticated: Authenticated(Arc::new(state)),
            probation: Some(Probation { deadline, bytes_left: UNAUTHENTICATED_BYTES_MAX, has_failed: false }),
            metrics: self.metrics.clone(),
            _permit: permit,
        })
    }
}

impl NetworkPlace {
    fn take(counts: &UnauthenticatedCounts, address: IpAddr) -> Option<Self> {
        let network = network_of(address);
        let mut by_network = counts.lock();
        let count = by_network.entry(network).or_default();
        if *count >= UNAUTHENTICATED_PER_NETWORK_MAX {
            return None;
        }
        *count += 1;
        Some(Self { counts: Arc::clone(counts), network })
    }
}

impl Drop for NetworkPlace {
    fn drop(&mut self) {
        let mut by_network = self.counts.lock();
        if let Some(count) = by_network.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                by_network.remove(&self.network);
            }
        }
    }
}

impl Default for AuthenticationState {
    fn default() -> Self {
        let handshakes = Semaphore::new(HANDSHAKES_PER_CONNECTION_MAX);
        Self { is_set: AtomicBool::new(false), place: Mutex::new(None), handshakes }
    }
}

impl Authenticated {
    /// Marks the connection as authenticated, and releases its place among those that are not.
    pub(super) fn set(&self) {
        self.0.is_set.store(true, Ordering::Release);
        self.0.place.lock().take();
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
    /// Checks that the connection is authenticated or before its deadline. Called by reads and writes: a caller that
    /// accepts no bytes is not read from.
    fn check_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.authenticated.is_set() {
            self.probation = None;
        }
        let Some(probation) = &mut self.probation else { return Ok(()) };
        if probation.has_failed || probation.deadline.as_mut().poll(context).is_ready() {
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
    use crate::metrics;

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
                connection.authenticated.set();
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
        for _ in 0..UNAUTHENTICATED_PER_NETWORK_MAX {
            open.push(connections(&limit).await.1.unwrap());
        }
        assert!(connections(&limit).await.1.is_none(), "all places are taken");
        open[0].authenticated.set();
        open.push(connections(&limit).await.1.unwrap());
        assert!(connections(&limit).await.1.is_none(), "all places are taken again");
        drop(open.pop());
        open.push(connections(&limit).await.1.unwrap());
        drop(open);
        assert!(limit.unauthenticated.lock().is_empty());
        assert_eq!(limit.permits.available_permits(), CONNECTIONS_MAX);
    }
}
