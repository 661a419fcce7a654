//! TCP transport of a shard: non-blocking sockets, some of them with TLS, and the poll that watches them, read and
//! written by bare system calls.

use std::{
    io::{self, IoSlice},
    net::Shutdown,
    os::fd::AsRawFd as _,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use mio::{Events, Interest, Poll, Registry, Token, net::TcpStream};
use socket2::SockRef;

use crate::log_limit::log_limited;

use super::{
    io::Io,
    tls::{SharedBuffers, TlsSession},
    transfer,
};

/// Sockets of one shard. Its methods are inlined into the shard, so that a fan-out pays for the system call alone.
pub struct Tcp {
    /// Owned here, because a second handle of its registry would cost each shard a file descriptor.
    poll: Poll,
    tls: TlsSessions,
}

/// Reason, for the client, for which a PROXY header is refused.
pub const FOREIGN_PROXY_HEADER: &str = "PROXY headers are accepted from listen.proxies only";

/// Connection that no shard has yet.
pub struct Arrival {
    /// Socket of the connection.
    pub stream: TcpStream,
    /// State of its TLS, if its content is encrypted.
    pub tls: Option<Box<TlsSession>>,
}

/// State of the sockets with TLS. It is apart from the sockets, so that a socket without TLS is its descriptor alone, of
/// which a fan-out reads many.
#[derive(Default)]
struct TlsSessions {
    /// By file descriptor; empty until the first connection with TLS.
    by_descriptor: Vec<Option<Box<TlsSession>>>,
    buffers: Option<Box<SharedBuffers>>,
}

impl TlsSessions {
    /// Sets the state of a registered socket, and forgets that of an earlier one with the same descriptor.
    fn set(&mut self, stream: &TcpStream, session: Option<Box<TlsSession>>) {
        let descriptor = stream.as_raw_fd() as usize;
        if session.is_some() && self.by_descriptor.len() <= descriptor {
            self.by_descriptor.resize_with(descriptor + 1, || None);
        }
        if let Some(place) = self.by_descriptor.get_mut(descriptor) {
            *place = session;
        }
    }

    fn get(&self, stream: &TcpStream) -> Option<&TlsSession> {
        self.by_descriptor.get(stream.as_raw_fd() as usize)?.as_deref()
    }

    #[inline]
    fn get_mut(&mut self, stream: &TcpStream) -> Option<(&mut TlsSession, &mut SharedBuffers)> {
        if self.by_descriptor.is_empty() {
            return None;
        }
        let session = self.by_descriptor.get_mut(stream.as_raw_fd() as usize)?.as_deref_mut()?;
        Some((session, self.buffers.get_or_insert_default()))
    }
}

/// Runs work on the TLS of one connection: a panic in it is an error of that connection, also during a fan-out.
fn contained<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        log_limited!(error, "panic in the TLS of a connection; closing it, please report this");
        Err(io::Error::other("panic in TLS"))
    })
}

impl Tcp {
    /// Creates the transport with a poll of its own.
    ///
    /// # Errors
    /// Fails if the kernel can't create the poll.
    pub fn new() -> io::Result<Self> {
        Ok(Self { poll: Poll::new()?, tls: TlsSessions::default() })
    }

    /// Returns the registry of the poll, for wakers.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Waits for readiness of the sockets or for a waker, at most for `timeout`.
    ///
    /// # Errors
    /// Fails if polling fails, also when a signal interrupts it.
    pub fn wait(&mut self, events: &mut Events, timeout: Duration) -> io::Result<()> {
        self.poll.poll(events, Some(timeout))
    }
}

impl Io for Tcp {
    type Arrival = Arrival;
    type Stream = TcpStream;

    #[inline]
    fn register(&mut self, arrival: Arrival, slot: u32) -> io::Result<TcpStream> {
        let Arrival { mut stream, tls } = arrival;
        let interests = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, Token(slot as usize), interests)?;
        self.tls.set(&stream, tls);
        Ok(stream)
    }

    #[inline]
    fn deregister(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.tls.set(stream, None);
        self.poll.registry().deregister(stream)
    }

    fn has_input(&self, stream: &TcpStream) -> bool {
        self.tls.get(stream).is_some_and(TlsSession::has_input)
    }

    fn has_partial(&self, stream: &TcpStream) -> bool {
        self.tls.get(stream).is_some_and(TlsSession::has_partial)
    }

    fn has_output(&self, stream: &TcpStream) -> bool {
        self.tls.get(stream).is_some_and(TlsSession::has_output)
    }

    fn held(&self, stream: &TcpStream) -> usize {
        self.tls.get(stream).map_or(0, TlsSession::held)
    }

    #[inline]
    fn flush(&mut self, stream: &TcpStream) -> io::Result<()> {
        match self.tls.get_mut(stream) {
            Some((session, _)) => session.flush(stream),
            None => Ok(()),
        }
    }

    #[inline]
    fn read(&mut self, stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        match self.tls.get_mut(stream) {
            Some((session, buffers)) => contained(|| session.read(stream, buffer, buffers)),
            None => transfer::read(stream, buffer),
        }
    }

    #[inline]
    fn write(&mut self, stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        match self.tls.get_mut(stream) {
            Some((session, buffers)) => contained(|| session.write(stream, &[IoSlice::new(bytes)], buffers)),
            None => transfer::write(stream, bytes),
        }
    }

    #[inline]
    fn write_slices(&mut self, stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.tls.get_mut(stream) {
            Some((session, buffers)) => contained(|| session.write(stream, slices, buffers)),
            None => transfer::write_slices(stream, slices),
        }
    }

    #[inline]
    fn shutdown_write(&mut self, stream: &TcpStream) -> io::Result<()> {
        if let Some((session, _)) = self.tls.get_mut(stream) {
            session.close(stream)?;
        }
        stream.shutdown(Shutdown::Write)
    }

    #[inline]
    fn reset(&mut self, stream: &TcpStream) -> io::Result<()> {
        SockRef::from(stream).set_linger(Some(Duration::ZERO))
    }
}
