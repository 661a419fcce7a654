//! Section `[tls]`: certificates of the client port.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;

/// TLS on the client port, for all wires; the first bytes of a connection tell whether it has TLS.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct TlsConfig {
    /// PEM files, each with a certificate and its chain. A client gets the first certificate that is valid for the name
    /// that it asks for, otherwise the first one. Changed files are read within two seconds. Empty: no TLS.
    pub cert_files: Vec<PathBuf>,
    /// PEM files with the private keys of `cert_files`, in the same order.
    pub key_files: Vec<PathBuf>,
    /// Whether connections without TLS are refused with TLS_REQUIRED.
    pub required: bool,
    /// Oldest version: `1.2` or `1.3`.
    pub min_version: String,
    /// Time from the accept of a connection to the end of its TLS handshake, in milliseconds.
    pub handshake_ms: u64,
    /// Most connections in a handshake, or before their PROXY header; further ones are refused.
    pub handshakes_max: usize,
    /// Most of them from one IPv4 address or IPv6 /64; further ones are refused with TOO_MANY_FROM_ADDRESS. 0: no limit.
    pub handshakes_per_ip: usize,
    /// Handshakes per second from one IPv4 address or IPv6 /64, except loopback; further ones are refused with
    /// RATE_LIMITED. 0: no limit.
    pub handshakes_per_second: u32,
    /// PEM file with the authorities of the certificates that clients present. Empty: clients are not asked for any.
    pub client_ca: PathBuf,
    /// Whether a client may have no certificate: `optional` or `required`.
    pub client_certificates: String,
    /// Part of a client's certificate that must be the user of its token: `cn`, the common name, or `san`, a DNS name of
    /// the alternative names. Empty: any certificate of the authorities goes with any user.
    pub client_name: String,
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            cert_files: Vec::new(),
            key_files: Vec::new(),
            required: false,
            min_version: "1.2".into(),
            handshake_ms: 10_000,
            handshakes_max: 4_096,
            handshakes_per_ip: 256,
            handshakes_per_second: 200,
            client_ca: PathBuf::new(),
            client_certificates: "optional".into(),
            client_name: String::new(),
        }
    }
}

impl TlsConfig {
    /// Returns whether TLS is offered.
    pub fn is_on(&self) -> bool {
        !self.cert_files.is_empty()
    }

    /// Returns the time for a handshake.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.handshake_ms)
    }

    fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(
            self.cert_files.len() == self.key_files.len(),
            "tls.key_files: name one key for each of tls.cert_files, in the same order",
        );
        need(
            !self.required || self.is_on(),
            "tls.required: needs tls.cert_files and tls.key_files; for a test, `tidegate cert` makes both",
        );
        need(["1.2", "1.3"].contains(&self.min_version.as_str()), "tls.min_version: 1.2 or 1.3");
        need((100..=60_000).contains(&self.handshake_ms), "tls.handshake_ms: between 100 ms and one minute");
        need((1..=100_000).contains(&self.handshakes_max), "tls.handshakes_max: between 1 and 100000");
        let (has_authority, mode) =
            (!self.client_ca.as_os_str().is_empty(), self.client_certificates.as_str());
        need(
            !has_authority || self.is_on(),
            "tls.client_ca: needs tls.cert_files and tls.key_files, because certificates are asked for in TLS alone",
        );
        need(["optional", "required"].contains(&mode), "tls.client_certificates: `optional` or `required`");
        need(
            mode != "required" || (has_authority && self.required),
            "tls.client_certificates: `required` needs tls.client_ca, and tls.required, or clients without TLS need none",
        );
        need(["", "cn", "san"].contains(&self.client_name.as_str()), "tls.client_name: empty, `cn` or `san`");
        need(
            self.client_name.is_empty() || has_authority,
            "tls.client_name: needs tls.client_ca, which signs the certificates",
        );
    }
}

impl Config {
    pub(super) fn check_client_port(&self, need: &mut impl FnMut(bool, &str)) {
        self.listen.check(self.is_encrypted(), need);
        self.tls.check(need);
    }

    /// Returns whether the client port speaks nothing but TLS.
    pub fn is_encrypted(&self) -> bool {
        self.tls.required && self.tls.is_on()
    }
}
