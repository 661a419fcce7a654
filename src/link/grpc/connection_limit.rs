//! How many connections the link takes: each has a seat for as long as it lasts, and without one it is closed at once. Who
//! has not said in time who it is loses its seat again: callers that say nothing can't keep peers out.

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

/// Connections at once, of peers and of whoever else comes: a peer has one, for a moment two.
pub(super) const CONNECTIONS_MAX: usize = 256;

/// A connection on its seat.
pub(super) struct Seated {
    stream: TcpStream,
    known: Known,
    /// Until when it has to be known; none = it is.
    deadline: Option<Pin<Box<Sleep>>>,
    metrics: Metrics,
    _seat: OwnedSemaphorePermit,
}

/// Whether a peer's handshake has succeeded on a connection; its requests carry it.
#[derive(Clone, Default)]
pub(super) struct Known(Arc<AtomicBool>);

impl Known {
    /// It has.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Seated {
    /// For good if a peer gets known on it within `handshake`. None: all are taken, and the caller hears that by the end of
    /// its connection.
    pub(super) fn take(
        stream: TcpStream,
        seats: &Arc<Semaphore>,
        handshake: Duration,
        metrics: &Metrics,
    ) -> Option<Self> {
        let seat = Arc::clone(seats).try_acquire_owned().ok()?;
        let (deadline, metrics) = (Some(Box::pin(sleep(handshake))), metrics.clone());
        Some(Self { stream, known: Known::default(), deadline, metrics, _seat: seat })
    }

    /// Whether it is too late for it. To be asked by each read: some read always waits.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let Some(deadline) = &mut self.deadline else { return false };
        if self.known.0.load(Ordering::Acquire) {
            self.deadline = None;
            return false;
        }
        deadline.as_mut().poll(context).is_ready()
    }
}

impl Connected for Seated {
    type ConnectInfo = Known;

    fn connect_info(&self) -> Known {
        self.known.clone()
    }
}

impl AsyncRead for Seated {
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

impl AsyncWrite for Seated {
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
