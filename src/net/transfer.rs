//! Moves bytes to and from client sockets by the bare system calls.
//!
//! The C library's `send` and `recv` look at thread cancellation before and after each call; at a few million calls a
//! second that was 2 to 3 % of a shard (docs/performance.md).

use std::io::{self, IoSlice};

use mio::net::TcpStream;
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

/// Writes what the socket takes now, without SIGPIPE.
///
/// # Errors
/// `WouldBlock` when the socket is full, anything else when it is done for.
#[inline]
pub fn write(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    send(stream, bytes, SendFlags::NOSIGNAL).map_err(Errno::into)
}

/// The same for several slices, in one system call; by plain [`write()`] when there is one.
///
/// # Errors
/// As [`write()`].
#[inline]
pub fn write_slices(mut stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    match slices {
        [one] => write(stream, one),
        many => io::Write::write_vectored(&mut stream, many),
    }
}

/// Reads what is there; 0 = the peer has ended its side.
///
/// # Errors
/// `WouldBlock` when nothing is there, anything else when the socket is done for.
#[inline]
pub fn read(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match recv(stream, buffer, RecvFlags::empty()) {
        Ok((count, _)) => Ok(count),
        Err(error) => Err(error.into()),
    }
}
