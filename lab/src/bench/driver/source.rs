//! Client sockets with explicit source addresses and ports, because the kernel's own search slows down with their
//! number.

use crate::bench::host;
use anyhow::{Context, Result, bail};
use rustix::{
    fd::OwnedFd,
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt},
};
use std::net::{Ipv4Addr, SocketAddrV4};

const PORTS: std::ops::Range<u16> = 10_000..60_000;
const HOSTS: u8 = 200;

/// Iterates over 127.0.1.1…200 and, after each round, over ports. It starts at a different position in each run, so
/// that no address has more connections than a server allows.
pub(super) struct Source {
    host: u8,
    port: u16,
}

impl Source {
    pub(super) fn new() -> Self {
        let seed = host::now_ns() ^ u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let width = u64::from(PORTS.end - PORTS.start);
        Self {
            host: ((seed >> 32) % u64::from(HOSTS)) as u8 + 1,
            port: PORTS.start + ((seed >> 8) % width) as u16,
        }
    }

    fn next(&mut self) -> SocketAddrV4 {
        self.host = self.host % HOSTS + 1;
        if self.host == 1 {
            self.port = if self.port + 1 < PORTS.end { self.port + 1 } else { PORTS.start };
        }
        SocketAddrV4::new(Ipv4Addr::new(127, 0, 1, self.host), self.port)
    }
}

/// Returns a socket whose handshake with `address` has begun.
pub(super) fn connecting(source: &mut Source, address: SocketAddrV4) -> Result<OwnedFd> {
    for _ in 0..1000 {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).context("socket")?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        match bind(&fd, &source.next()) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => continue,
            Err(error) => return Err(error).context("bind"),
        }
        match connect(&fd, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => return Ok(fd),
            // An earlier connection of this pair of addresses may not be forgotten yet.
            Err(Errno::ADDRNOTAVAIL | Errno::ADDRINUSE) => {}
            Err(error) => return Err(error).with_context(|| format!("connect to {address}")),
        }
    }
    bail!("no free source port in 1,000 tries")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn sources_differ_and_no_address_has_many() {
        let mut source = Source { host: 7, port: PORTS.end - 20 };
        let mut by_host: HashMap<_, u32> = HashMap::new();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..19_000 {
            let address = source.next();
            assert!(seen.insert(address), "{address} twice");
            assert!(PORTS.contains(&address.port()));
            *by_host.entry(*address.ip()).or_default() += 1;
        }
        assert!(by_host.values().all(|&count| count <= 96));
    }
}
