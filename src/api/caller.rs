//! Account of a caller on this machine, by the kernel's table of sockets.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use rustix::process::geteuid;

/// Tables of the TCP sockets of this machine.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// State of an established connection. The table names no account of a socket that its program has closed.
const ESTABLISHED: &str = "01";

/// Both ends of a caller's connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// Address of the caller.
    pub(super) caller: SocketAddr,
    /// Address that the node accepted it at.
    pub(super) node: SocketAddr,
}

impl Ends {
    /// Returns whether the caller runs as the node's account or as root, which can read the node's key anyway.
    pub(super) fn is_own_account(&self) -> bool {
        let tables = TABLES.iter().filter_map(|table| fs::read_to_string(table).ok());
        let uid = tables.into_iter().find_map(|table| self.uid_in(&table));
        uid.is_some_and(|uid| uid == 0 || uid == geteuid().as_raw())
    }

    /// Returns the account of the caller's socket.
    fn uid_in(&self, table: &str) -> Option<u32> {
        table.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, local, remote, state, _, _, _, uid, ..] = fields[..] else { return None };
            let is_it = state == ESTABLISHED
                && address(local)? == canonical(self.caller)
                && address(remote)? == canonical(self.node);
            is_it.then(|| uid.parse().ok()).flatten()
        })
    }
}

fn canonical(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// Reads an address of the table: words of the machine's byte order in hexadecimal digits, and the port.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut octets = Vec::with_capacity(16);
    for at in (0..ip.len()).step_by(8) {
        octets.extend(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    }
    let ip = match <[u8; 4]>::try_from(&octets[..]) {
        Ok(short) => IpAddr::from(Ipv4Addr::from(short)),
        Err(_) => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(&octets[..]).ok()?)),
    };
    Some((ip.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn ends() -> Ends {
        let address = |text: &str| text.parse().expect("an address");
        Ends { caller: address("127.0.0.1:40000"), node: address("127.0.0.1:7801") }
    }

    fn row(local: &str, remote: &str, state: &str, uid: u32) -> String {
        format!(
            "   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {uid:5}        0 1 1\n"
        )
    }

    fn hex(ip: [u8; 4], port: u16) -> String {
        format!("{:08X}:{port:04X}", u32::from_ne_bytes(ip))
    }

    #[test]
    fn account_is_that_of_the_callers_end() {
        let (caller, node) = (hex([127, 0, 0, 1], 40_000), hex([127, 0, 0, 1], 7_801));
        let table =
            [HEAD.to_owned(), row(&node, &caller, "01", 5), row(&caller, &node, "01", 1_234)].concat();
        assert_eq!(ends().uid_in(&table), Some(1_234));
        let closed = [HEAD.to_owned(), row(&caller, &node, "06", 0)].concat();
        assert_eq!(ends().uid_in(&closed), None, "a closed socket has no account");
        assert_eq!(ends().uid_in("damaged\n0: x y 01\n1: 1:2 zz"), None);
    }

    #[test]
    fn mapped_addresses_are_those_of_version_4() {
        let mapped =
            format!("{:08X}{:08X}{}", 0, 0, format_args!("{:08X}", u32::from_ne_bytes([0, 0, 255, 255])));
        let local = |ip, port| format!("{mapped}{}", hex(ip, port));
        let table =
            [HEAD.to_owned(), row(&local([127, 0, 0, 1], 40_000), &local([127, 0, 0, 1], 7_801), "01", 7)];
        assert_eq!(ends().uid_in(&table.concat()), Some(7));
    }

    #[test]
    fn connection_of_this_process_is_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let ends = Ends {
            caller: stream.local_addr().expect("connected"),
            node: stream.peer_addr().expect("connected"),
        };
        assert!(ends.is_own_account());
        drop(stream);
        assert!(!ends.is_own_account());
    }
}
