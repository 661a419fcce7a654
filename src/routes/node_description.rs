//! Node details beyond what other nodes require: for the assignment of clients, and for display.

use serde::{Deserialize, Serialize};

/// Description of a node, announced with each lease renewal. Missing fields of other versions get their defaults, and
/// unknown ones are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct NodeDescription {
    /// Weight for new clients among nodes with equal headroom; 0: receives none while another node has capacity.
    pub weight: u32,
    /// Version that the node runs, for the assignment by share.
    pub version: String,
    /// Percentage of users assigned to this version; `None`: the users that no other version claims.
    pub share: Option<u8>,
    /// Zone of the node.
    pub zone: String,
    /// Further labels for operators, as key=value.
    pub labels: Vec<String>,
    /// Clients per second that the node accepts from draining nodes.
    pub accepts: u32,
    /// Progress of the node's drain, if it has one.
    pub drain: Option<Draining>,
    /// Lag of the node in its own topic; `None` if it has no topic or can't query its end.
    pub node_topic: Option<TopicLag>,
    /// URL of the node's console; empty unless the node is for development.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub console: String,
}

/// Position and lag of a node in its own topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct TopicLag {
    /// Offset below which the node has processed everything.
    pub position: u64,
    /// End offset of the topic.
    pub end: u64,
    /// Age of the oldest record that was read and not processed, in ms; 0 if there is none.
    pub behind_ms: u64,
}

impl TopicLag {
    /// Returns the number of records that the node has not processed.
    pub fn behind(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }
}

/// Progress of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Draining {
    /// Name of the phase.
    pub phase: String,
    /// Number of clients at the start.
    pub from: u32,
    /// Number of those clients that are still connected.
    pub left: u32,
    /// Number of those clients that have not been notified of the drain.
    pub unnoticed: u32,
    /// Clients closed per second; 0 while none are.
    pub rate: u32,
    /// Time since the start, in ms.
    pub for_ms: u64,
}

impl Default for NodeDescription {
    fn default() -> Self {
        Self {
            weight: 100,
            version: String::new(),
            share: None,
            zone: String::new(),
            labels: Vec::new(),
            accepts: 1_000,
            drain: None,
            node_topic: None,
            console: String::new(),
        }
    }
}
