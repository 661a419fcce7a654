//! Who a person is, and the phases of the run in which it takes part.

use std::time::Duration;

use tidegate_protocol::codec::Wire;

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Persons talk.
    Talk,
    /// Persons finish what they began.
    Settle,
    /// Persons send their markers.
    Mark,
    /// Persons make sure that they have everything.
    Check,
}

/// Who a person is, and where it talks.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Number of the person in the run, which is part of the ids of its messages.
    pub number: usize,
    /// User.
    pub user: String,
    /// Device of the user.
    pub device: String,
    /// Wire of the connections.
    pub wire: Wire,
    /// Whether the messages are chained.
    pub chained: bool,
    /// Conversations to which the person sends, in addition to its room.
    pub places: Vec<String>,
    /// Live room that the person joins with each connection.
    pub room: String,
    /// Time between two messages.
    pub pace: Duration,
    /// Most unanswered sends while the person talks.
    pub in_flight_max: usize,
    /// Ticks in which the person changes to another connection although the old one is intact, per ten thousand.
    pub hops: u32,
    /// Whether pushes may be lost without notice, as between nodes: then a hint announces them.
    pub hints: bool,
}
