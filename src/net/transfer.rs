//! Socket I/O of client connections, by bare system calls.
//!
//! The C library's `send` and `recv` check for thread cancellation before and after each call. At a few million calls
//! per second that took 2 to 3 % of a shard's CPU time (docs/performance.md).

use std::io::{self, IoSlice};

use mio::net::TcpStream;
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

/// Writes as many bytes as the socket takes now, without SIGPIPE.
///
/// # Errors
/// `WouldBlock` if the socket is full; any other error means that it is unusable.
#[inline]
pub fn write(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    send(stream, bytes, SendFlags::NOSIGNAL).map_err(Errno::into)
}

/// Writes several slices in one system call; a single slice with [`write()`].
///
/// # Errors
/// The errors of [`write()`].
#[inline]
pub fn write_slices(mut stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    match slices {
        [one] => write(stream, one),
        many => io::Write::write_vectored(&mut stream, many),
    }
}

/// Reads the available bytes; returns 0 if the peer has shut its write side.
///
/// # Errors
/// `WouldBlock` if no bytes are available; any other error means that the socket is unusable.
#[inline]
pub fn read(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match recv(stream, buffer, RecvFlags::empty()) {
        Ok((count, _)) => Ok(count),
        Err(error) => Err(error.into()),
    }
}
