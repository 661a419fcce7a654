//! Section `[link]`: how nodes connect to each other, and how they authenticate.

use std::{
    net::{Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Link between nodes, for profile `cluster`: replies, pushes and queries over gRPC.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct LinkConfig {
    /// Address on which this node accepts peers; other than loopback only with a secret or certificates.
    pub listen: SocketAddr,
    /// Address at which peers reach this node, as host:port. Empty: the listen address.
    pub advertise: String,
    /// File with the secret that all nodes share and prove to each other, at least 32 random bytes, such as those of
    /// `openssl rand -hex 32`. Empty: none. The secret does not encrypt; use certificates on a network that others can
    /// read or change.
    pub secret_file: PathBuf,
    /// Certificate of this node (PEM), valid for link.tls_name, or for the advertised host without one. Encrypts the
    /// link, and peers must present certificates too. Empty: none.
    pub tls_cert: PathBuf,
    /// Private key of the certificate (PEM).
    pub tls_key: PathBuf,
    /// Authority that signed the certificates of all nodes (PEM). Without link.tls_name it should sign no others: a
    /// certificate with an extended key usage must include serverAuth, and one with none counts as a node's.
    pub tls_ca: PathBuf,
    /// Name for which the certificates of all nodes are valid, where their addresses change, as those of pods do.
    /// Empty: each is valid for its advertised host.
    pub tls_name: String,
    /// Use of the certificates: `required`, all connections have TLS; `prefer`, this node calls peers with TLS and accepts
    /// callers without; `accept`, it calls peers without TLS and accepts both. To switch a running cluster to TLS, restart
    /// all nodes with `accept`, then with `prefer`, then with `required`.
    pub tls_mode: String,
    /// Bytes queued per peer: once for pushes and replies, once for queries, and once for best-effort messages (live
    /// rooms, signals, marks). More are not delivered.
    pub queue_bytes: usize,
    /// Time from a call to a peer to its reply; after it the call counts as not delivered.
    pub timeout_ms: u64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 7802).into(),
            advertise: String::new(),
            secret_file: PathBuf::new(),
            tls_cert: PathBuf::new(),
            tls_key: PathBuf::new(),
            tls_ca: PathBuf::new(),
            tls_name: String::new(),
            tls_mode: "required".into(),
            queue_bytes: 8 * 1024 * 1024,
            timeout_ms: 1_000,
        }
    }
}

impl LinkConfig {
    /// Returns the address announced to peers. Puts an IPv6 address in brackets, which Kubernetes leaves out of a
    /// pod's address.
    pub fn advertised(&self) -> String {
        match self.advertise.rsplit_once(':') {
            Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => format!("[{host}]:{port}"),
            Some(_) => self.advertise.clone(),
            None if self.advertise.is_empty() => self.listen.to_string(),
            None => self.advertise.clone(),
        }
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        let given = |file: &PathBuf| !file.as_os_str().is_empty();
        let tls = [&self.tls_cert, &self.tls_key, &self.tls_ca].map(given);
        need(
            tls.iter().all(|it| *it == tls[0]),
            "link: tls_cert, tls_key and tls_ca go together; set all three or none",
        );
        need(
            self.tls_name.is_empty() || (tls[0] && is_host(&self.tls_name)),
            "link.tls_name: a host name, together with link.tls_cert, link.tls_key and link.tls_ca",
        );
        let is_plain_accepted = self.tls_mode != "required";
        need(
            ["required", "prefer", "accept"].contains(&self.tls_mode.as_str()),
            "link.tls_mode: `required`, `prefer` or `accept`",
        );
        need(
            !is_plain_accepted || tls[0],
            "link.tls_mode: `prefer` and `accept` need link.tls_cert, link.tls_key and link.tls_ca",
        );
        need(
            !is_plain_accepted || self.listen.ip().is_loopback() || given(&self.secret_file),
            "link.tls_mode: `prefer` and `accept` need link.secret_file, which authenticates callers without a certificate",
        );
        need(
            self.listen.ip().is_loopback() || tls[2] || given(&self.secret_file),
            "link.listen: not a loopback address, so any program could pose as a node; set link.secret_file, or \
             link.tls_cert, link.tls_key and link.tls_ca",
        );
        need(
            !self.advertise.is_empty() || !self.listen.ip().is_unspecified(),
            "link.advertise: link.listen is a wildcard address, which peers can't use; set host:port here",
        );
        need(
            self.advertise.is_empty() || is_host_and_port(&self.advertised()),
            "link.advertise: write host:port",
        );
        need(
            (64 * 1024..=1 << 30).contains(&self.queue_bytes),
            "link.queue_bytes: between 65536 bytes and 1 GiB",
        );
        need((10..=60_000).contains(&self.timeout_ms), "link.timeout_ms: between 10 ms and one minute");
    }
}

fn is_host_and_port(text: &str) -> bool {
    if text.parse::<SocketAddr>().is_ok() {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn is_host(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    !text.is_empty() && text.chars().all(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(change: impl Fn(&mut LinkConfig)) -> Vec<String> {
        let (mut link, mut problems) = (LinkConfig::default(), Vec::new());
        change(&mut link);
        link.check(&mut |ok, what| {
            if !ok {
                problems.push(what.to_owned());
            }
        });
        problems
    }

    #[test]
    fn public_address_needs_a_secret_or_certificates() {
        assert!(problems(|_| {}).is_empty());
        let public = |link: &mut LinkConfig| link.listen = ([192, 0, 2, 1], 7802).into();
        let refused = problems(public);
        assert!(refused.len() == 1 && refused[0].contains("link.secret_file"), "{refused:?}");
        assert!(problems(|link| (public(link), link.secret_file = "secret".into()).1).is_empty());
        let half = problems(|link| (public(link), link.tls_cert = "cert.pem".into()).1);
        assert!(half.iter().any(|problem| problem.contains("go together")), "{half:?}");
        let whole = problems(|link| {
            public(link);
            (link.tls_cert, link.tls_key, link.tls_ca) = ("c".into(), "k".into(), "a".into());
        });
        assert!(whole.is_empty(), "{whole:?}");
        let named = |link: &mut LinkConfig, name: &str| link.tls_name = name.to_owned();
        assert!(problems(|link| named(link, "nodes.example"))[0].contains("link.tls_name"), "no certificate");
        let with_name = |name: &'static str| {
            problems(move |link| {
                (link.tls_cert, link.tls_key, link.tls_ca) = ("c".into(), "k".into(), "a".into());
                named(link, name);
            })
        };
        assert!(with_name("nodes.example").is_empty());
        assert!(with_name("nodes.example:7802")[0].contains("link.tls_name"));
    }

    #[test]
    fn wildcard_listener_needs_an_advertised_address() {
        let any = |link: &mut LinkConfig| {
            link.listen = ([0, 0, 0, 0], 7802).into();
            link.secret_file = "secret".into();
        };
        assert!(problems(any)[0].contains("link.advertise"));
        for (address, sound) in [
            ("n1.example:7802", true),
            ("[2001:db8::1]:7802", true),
            ("192.0.2.1:7802", true),
            ("n1.example", false),
            ("n1.example:0", false),
            ("http://n1.example:7802", false),
            (":7802", false),
        ] {
            let found = problems(|link| (any(link), link.advertise = address.to_owned()).1);
            assert_eq!(found.is_empty(), sound, "{address}: {found:?}");
        }
        let advertised =
            |text: &str| LinkConfig { advertise: text.to_owned(), ..LinkConfig::default() }.advertised();
        assert_eq!(advertised("fd00::1:7802"), "[fd00::1]:7802");
        for unchanged in ["[fd00::1]:7802", "10.0.0.1:7802", "node-1.nodes:7802"] {
            assert_eq!(advertised(unchanged), unchanged);
        }
    }
}
