//! Admin port that a command calls: its address, and how its certificate is verified if it speaks TLS.

use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs as _},
};

use crate::{cli::http::Trust, node::Addresses};

/// Admin port to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct AdminTarget {
    /// Address to connect to.
    pub(in crate::cli) address: SocketAddr,
    /// Certificates to trust; `None` without TLS.
    pub(in crate::cli) trust: Option<Trust>,
}

impl AdminTarget {
    /// Returns the admin port of a node on this machine, whose certificate is that of its file.
    pub(in crate::cli) fn of(node: &Addresses) -> Self {
        let trust = node.admin_certificate.clone().map(Trust::Certificate);
        Self { address: node.admin, trust }
    }
}

impl fmt::Display for AdminTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// Parses an address, or looks up a host and port, such as that of a Service; with `https://` before it, the port speaks
/// TLS.
pub(in crate::cli) fn target(text: &str) -> Result<AdminTarget, String> {
    let (is_secure, text) = match text.strip_prefix("https://") {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix("http://").unwrap_or(text)),
    };
    let text = text.trim_end_matches('/');
    let found = text.to_socket_addrs().map_err(|error| format!("{error}; write HOST:PORT"))?;
    let mut found: Vec<SocketAddr> = found.collect();
    // Admin ports listen on IPv4 by default, and `localhost` has both.
    found.sort_by_key(SocketAddr::is_ipv6);
    let address = found.into_iter().next().ok_or("the name has no address; write HOST:PORT")?;
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(AdminTarget { address, trust: is_secure.then_some(Trust::Name(host)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_tells_whether_the_port_speaks_tls() {
        let named = |name: &str| Some(Trust::Name(name.to_owned()));
        for (text, address, trust) in [
            ("127.0.0.1:7801", "127.0.0.1:7801", None),
            ("http://127.0.0.1:7801/", "127.0.0.1:7801", None),
            ("https://127.0.0.1:7801", "127.0.0.1:7801", named("127.0.0.1")),
            ("https://[::1]:7801/", "[::1]:7801", named("::1")),
        ] {
            let expected = AdminTarget { address: address.parse().unwrap(), trust };
            assert_eq!(target(text), Ok(expected), "{text}");
        }
        for wrong in ["https://127.0.0.1", "ftp://127.0.0.1:1", ""] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
