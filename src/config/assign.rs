//! Section `[assign]`: how clients are assigned to this node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How `GET /v1/assign` and the alternates of a drain present this node, and its share of new clients.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct AssignConfig {
    /// Addresses at which clients reach this node, best first. Each is host:port for all client protocols, or starts
    /// with tcp://, tls://, ws:// or wss:// for one of them. Empty: listen.client, unless that is a wildcard address;
    /// then none is announced, and clients keep to the address that they know.
    pub addresses: Vec<String>,
    /// Weight for new clients among nodes with equal headroom. 0: receives none while another node has capacity.
    pub weight: u32,
    /// Version by which shares are assigned. Empty: the version of the program.
    pub version: String,
    /// Percentage of users sent to this version, stable per user. -1: the users that no other version claims.
    pub share: i16,
    /// Zone of the node; clients that name the same zone are sent here first.
    pub zone: String,
    /// Additional labels as key=value, for display only.
    pub labels: Vec<String>,
    /// How long clients may use an assignment, in ms.
    pub ttl_ms: u64,
    /// Clients per second accepted from draining nodes. A draining node closes no faster than its peers accept in
    /// total.
    pub accepts: u32,
}

impl Default for AssignConfig {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            weight: 100,
            version: String::new(),
            share: -1,
            zone: String::new(),
            labels: Vec::new(),
            ttl_ms: 10_000,
            accepts: 1_000,
        }
    }
}

impl AssignConfig {
    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(
            self.addresses.iter().all(|address| is_address(address)),
            "assign.addresses: write each as host:port, alone or after tcp://, tls://, ws:// or wss://",
        );
        need(self.weight <= 1_000_000, "assign.weight: at most 1000000");
        need((-1..=100).contains(&self.share), "assign.share: between 0 and 100 percent, or -1");
        let words = [&self.version, &self.zone];
        need(
            words.iter().all(|word| word.len() <= 64 && !word.contains(char::is_control)),
            "assign.version, assign.zone: at most 64 bytes",
        );
        let labels = &self.labels;
        need(
            labels.len() <= 16 && labels.iter().all(|label| label.len() <= 128 && label.contains('=')),
            "assign.labels: at most 16, each key=value of at most 128 bytes",
        );
        need((1_000..=3_600_000).contains(&self.ttl_ms), "assign.ttl_ms: between one second and one hour");
        need(self.accepts > 0, "assign.accepts: at least 1");
    }
}

fn is_address(text: &str) -> bool {
    let rest = match text.split_once("://") {
        Some(("tcp" | "tls" | "ws" | "wss", rest)) => rest,
        Some(_) => return false,
        None => text,
    };
    let host_port = rest.split('/').next().unwrap_or_default();
    let is_valid =
        |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
    text.len() <= 256
        && !text.contains(char::is_whitespace)
        && host_port.rsplit_once(':').is_some_and(is_valid)
}
