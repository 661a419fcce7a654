//! The options that every client socket and the listener get.

use std::{io, net::SocketAddr, time::Duration};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::config;

/// A listening socket with `SO_REUSEADDR` and the configured backlog.
///
/// # Errors
/// Fails when the address is taken or not ours.
pub fn listen(address: SocketAddr, backlog: i32) -> io::Result<std::net::TcpListener> {
    let socket = bind(address)?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// The same before it listens: whoever comes is refused by the kernel, and does not wait for somebody who may not come.
///
/// # Errors
/// Fails when the address is taken or not ours.
pub fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Sets what an accepted socket needs: no delay, and early, bounded "full".
///
/// # Errors
/// Fails when the peer is gone already.
pub fn tune(stream: &mio::net::TcpStream, options: &config::Socket) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    if options.send_buffer_bytes > 0 {
        socket.set_send_buffer_size(options.send_buffer_bytes)?;
    }
    if options.notsent_lowat_bytes > 0 {
        socket.set_tcp_notsent_lowat(options.notsent_lowat_bytes)?;
    }
    if options.user_timeout_ms > 0 {
        socket.set_tcp_user_timeout(Some(Duration::from_millis(options.user_timeout_ms)))?;
    }
    Ok(())
}
