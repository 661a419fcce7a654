//! TCP transport of a shard: non-blocking sockets registered with the shard's poll, read and written by bare system
//! calls.

use std::{
    io::{self, IoSlice},
    net::Shutdown,
    time::Duration,
};

use mio::{Interest, Registry, Token, net::TcpStream};
use socket2::SockRef;

use super::{io::Io, transfer};

/// Sockets of one shard. Its methods are inlined into the shard, so that a fan-out pays for the system call alone.
pub struct Tcp {
    registry: Registry,
}

impl Tcp {
    /// Creates the transport whose sockets are registered with `registry`.
    pub fn new(registry: Registry) -> Self {
        Self { registry }
    }
}

impl Io for Tcp {
    type Stream = TcpStream;

    #[inline]
    fn register(&mut self, stream: &mut TcpStream, slot: u32) -> io::Result<()> {
        self.registry.register(stream, Token(slot as usize), Interest::READABLE | Interest::WRITABLE)
    }

    #[inline]
    fn deregister(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.registry.deregister(stream)
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
