//! What a node says of itself beside what other nodes must know: for the assignment of clients, and for people.

use serde::{Deserialize, Serialize};

/// Said with each renewal of the lease. A version that knows less or more of it is understood: what is missing has its
/// default.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct About {
    /// How much of the load it gets at the same headroom; 0 = none while others have room.
    pub weight: u32,
    /// Which version it runs, for the shares.
    pub version: String,
    /// The users that this version gets, in percent; none = those whom no other version gets.
    pub share: Option<u8>,
    /// Where it is.
    pub zone: String,
    /// What else operators want to see of it, as key=value.
    pub labels: Vec<String>,
    /// Newcomers a second that it takes from nodes which leave.
    pub accepts: u32,
    /// How far its drain is.
    pub drain: Option<Draining>,
    /// How far it is behind in its own topic; none = it has none, or can't ask for its end.
    pub node_topic: Option<TopicLag>,
}

/// How far a node is in its own topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct TopicLag {
    /// It is done with everything below.
    pub position: u64,
    /// The end of the topic.
    pub end: u64,
    /// The age of the oldest record that it has read and is not done with, in ms; 0 = there is none.
    pub behind_ms: u64,
}

impl TopicLag {
    /// How many records wait.
    pub fn behind(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }
}

/// How far a drain is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Draining {
    /// The phase, by its name.
    pub phase: String,
    /// Clients when it began.
    pub from: u32,
    /// Those of them that are left.
    pub left: u32,
    /// Those of them that have not heard of it.
    pub unnoticed: u32,
    /// Clients closed a second; 0 while nobody is.
    pub rate: u32,
    /// Since when, in ms.
    pub for_ms: u64,
}

impl Default for About {
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
        }
    }
}
