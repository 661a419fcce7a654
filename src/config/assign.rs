//! The section `[assign]`: what a node says of itself to those who are sent to a node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::routes::About;

/// What `GET /v1/assign` and the alternates of a drain tell clients of this node, and how much of them it gets.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Assign {
    /// Where clients reach this node, best first: host:port for everything that the client port speaks, or with tcp://,
    /// tls://, ws:// or wss:// before it for that alone; empty = listen.client, unless that is
    /// all addresses of the machine: then clients are named none, and go on to the address that they know.
    pub addresses: Vec<String>,
    /// How much of the newcomers it gets beside others with the same headroom; 0 = none while others have room.
    pub weight: u32,
    /// The version by which shares are given; empty = that of the program.
    pub version: String,
    /// The users that are sent to this version, in percent, always the same ones; -1 = those whom no other version gets.
    pub share: i16,
    /// Where the node is: clients that name the same zone are sent here first.
    pub zone: String,
    /// Further marks as key=value, for people.
    pub labels: Vec<String>,
    /// How long clients may use an answer, in ms.
    pub ttl_ms: u64,
    /// Newcomers a second that this node takes from nodes that leave; they close no more than the others take together.
    pub accepts: u32,
}

impl Default for Assign {
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

impl Assign {
    /// What the node says of itself.
    pub fn about(&self) -> About {
        let version = if self.version.is_empty() { env!("CARGO_PKG_VERSION") } else { &self.version };
        About {
            weight: self.weight,
            version: version.to_owned(),
            share: u8::try_from(self.share).ok(),
            zone: self.zone.clone(),
            labels: self.labels.clone(),
            accepts: self.accepts,
            drain: None,
            node_topic: None,
        }
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(
            self.addresses.iter().all(|address| is_address(address)),
            "assign.addresses: each host:port, alone or behind tcp://, tls://, ws:// or wss://",
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
    let place = match text.split_once("://") {
        Some(("tcp" | "tls" | "ws" | "wss", place)) => place,
        Some(_) => return false,
        None => text,
    };
    let host_port = place.split('/').next().unwrap_or_default();
    let fine =
        |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
    text.len() <= 256 && !text.contains(char::is_whitespace) && host_port.rsplit_once(':').is_some_and(fine)
}
