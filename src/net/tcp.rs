//! TCP transport of a shard: non-blocking sockets and the poll that watches them, read and written by bare system
//! calls.

use std::{
    io::{self, IoSlice},
    net::Shutdown,
    time::Duration,
};

use mio::{Events, Interest, Poll, Registry, Token, net::TcpStream};
use socket2::SockRef;

use super::{io::Io, transfer};

/// Sockets of one shard. Its methods are inlined into the shard, so that a fan-out pays for the system call alone.
pub struct Tcp {
    /// Owned here, because a second handle of its registry would cost each shard a file descriptor.
    poll: Poll,
}

impl Tcp {
    /// Creates the transport with a poll of its own.
    ///
    /// # Errors
    /// Fails if the kernel can't create the poll.
    pub fn new() -> io::Result<Self> {
        Ok(Self { poll: Poll::new()? })
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
    type Stream = TcpStream;

    #[inline]
    fn register(&mut self, stream: &mut TcpStream, slot: u32) -> io::Result<()> {
        self.poll.registry().register(stream, Token(slot as usize), Interest::READABLE | Interest::WRITABLE)
    }

    #[inline]
    fn deregister(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.poll.registry().deregister(stream)
    }

    #[inline]
    fn read(&mut self, stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        transfer::read(stream, buffer)
    }

    #[inline]
    fn write(&mut self, stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        transfer::write(stream, bytes)
    }

    #[inline]
    fn write_slices(&mut self, stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        transfer::write_slices(stream, slices)
    }

    #[inline]
    fn shutdown_write(&mut self, stream: &TcpStream) -> io::Result<()> {
        stream.shutdown(Shutdown::Write)
    }

    #[inline]
    fn reset(&mut self, stream: &TcpStream) -> io::Result<()> {
        SockRef::from(stream).set_linger(Some(Duration::ZERO))
    }
}
