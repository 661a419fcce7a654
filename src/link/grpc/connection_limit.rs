//! Connection limit of the link listener: each connection holds a permit, and without a free one it is closed at once.
//! A connection not authenticated in time is closed as well, so silent callers can't keep peers out.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tonic::transport::server::Connected;

use crate::metrics::Metrics;

/// Limit on concurrent connections, authenticated or not. A peer has one, or two while it reconnects.
pub(super) const CONNECTIONS_MAX: usize = 256;

/// Connection that holds a permit, with a deadline for its authentication.
pub(super) struct PermittedConnection {
    stream: TcpStream,
    authenticated: Authenticated,
    /// Deadline of the authentication; `None` once it has succeeded.
    deadline: Option<Pin<Box<Sleep>>>,
    metrics: Metrics,
    _permit: OwnedSemaphorePermit,
}

/// Flag set when a peer's handshake succeeds on a connection; the connection's requests carry it.
#[derive(Clone, Default)]
pub(super) struct Authenticated(Arc<AtomicBool>);

impl Authenticated {
    /// Marks the connection as authenticated.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl PermittedConnection {
    /// Acquires a permit for a connection that must be authenticated within `handshake`. Returns `None` if there is no
    /// free permit; dropping the stream closes the connection.
    pub(super) fn acquire(
        stream: TcpStream,
        permits: &Arc<Semaphore>,
        handshake: Duration,
        metrics: &Metrics,
    ) -> Option<Self> {
        let permit = Arc::clone(permits).try_acquire_owned().ok()?;
        let (deadline, metrics) = (Some(Box::pin(sleep(handshake))), metrics.clone());
        Some(Self { stream, authenticated: Authenticated::default(), deadline, metrics, _permit: permit })
    }

    /// Returns whether the deadline has passed without authentication. Checked by each read, since one is always
    /// pending.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let Some(deadline) = &mut self.deadline else { return false };
        if self.authenticated.0.load(Ordering::Acquire) {
            self.deadline = None;
            return false;
        }
        deadline.as_mut().poll(context).is_ready()
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
        if self.is_late(context) {
            self.metrics.link_refused.increment(1);
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for PermittedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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
