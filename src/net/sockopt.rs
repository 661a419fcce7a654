//! Socket options of listeners and client sockets.

use std::{io, net::SocketAddr, time::Duration};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::config;

/// Creates a listening socket with `SO_REUSEADDR` and the given backlog.
///
/// # Errors
/// Fails if the address is in use or not local.
pub fn listen(address: SocketAddr, backlog: i32) -> io::Result<std::net::TcpListener> {
    let socket = bind(address)?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// Binds a socket without listening. Until it listens the kernel refuses clients, so none
/// waits for a node that may not start.
///
/// # Errors
/// Fails if the address is in use or not local.
pub fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Sets the options of an accepted socket: no delay, and a bounded send buffer that reports "full" early.
///
/// # Errors
/// Fails if the peer has closed the connection already.
pub fn tune(stream: &mio::net::TcpStream, options: &config::SocketConfig) -> io::Result<()> {
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
