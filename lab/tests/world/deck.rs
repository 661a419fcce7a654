//! Decks: what breaks in a world, and what its nodes and clients are like.

use std::time::Duration;

use tidegate::{fault::Rates, partition::retention::Keep};
use tidegate_lab::checker::Budget;

/// Tolerances of the checker: a client that stalls reads what was announced to it up to four seconds later.
const BUDGET: Budget =
    Budget { recovery_ns: 30_000_000_000, excuse_ns: 6_000_000_000, settle_ns: 8_000_000_000, push_ns: None };

/// Kind of a world, which follows from its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deck {
    /// Everything breaks, and pushes may be lost.
    Everything,
    /// Nodes leave as planned, and the connections of clients break; no push may be lost.
    Planned,
    /// Owners lose their partitions while they archive, and the clock of one node is ahead; no push may be lost.
    Owners,
    /// The routes are lost, while one node does not reach them; a push may be lost until the loss is noticed.
    Routes,
    /// Clients send more than a node takes at once.
    Busy,
}

impl Deck {
    /// Returns the deck of a seed. Its parity decides something else.
    pub(crate) fn of(seed: u64) -> Self {
        match seed / 2 % 8 {
            4 => Self::Planned,
            5 => Self::Owners,
            6 => Self::Routes,
            7 => Self::Busy,
            _ => Self::Everything,
        }
    }

    /// Returns the tolerances of the checker.
    pub(crate) fn budget(self) -> Budget {
        let is_calm = matches!(self, Self::Planned | Self::Owners | Self::Routes);
        Budget { push_ns: is_calm.then_some(6_000_000_000), ..BUDGET }
    }

    /// Returns the time between two messages of a client.
    pub(crate) fn pace(self) -> Duration {
        Duration::from_millis(if self == Self::Busy { 100 } else { 250 })
    }

    /// Returns in how many of ten thousand ticks a client changes its connection.
    pub(crate) fn hops(self) -> u32 {
        if self == Self::Routes { 2 } else { 15 }
    }

    /// Returns the longest latency of a call between nodes, in ms.
    pub(crate) fn latency_max(self) -> u64 {
        if self == Self::Planned { 60 } else { 2 }
    }

    /// Returns the most bytes of sends that wait for the log of a node.
    pub(crate) fn intake_bytes_max(self) -> usize {
        if self == Self::Busy { 700 } else { 1 << 20 }
    }

    /// Returns the rates of faults of the routes. A push goes to all known peers where they fail, and other nodes do not
    /// know a run that has just begun.
    pub(crate) fn routes_rates(self, rates: Rates) -> Rates {
        if self == Self::Planned { Rates { fail: 0, lose_answer: 0, ..rates } } else { rates }
    }

    /// Returns how long messages are kept.
    pub(crate) fn keep(self) -> Keep {
        if self == Self::Owners { Keep::Hour } else { Keep::Forever }
    }

    /// Returns by how much the wall clock of a node is ahead, in ms.
    pub(crate) fn clock_ahead(self, node: usize) -> i64 {
        if self == Self::Owners && node == 0 { 2 * 3_600_000 } else { 0 }
    }

    /// Returns whether clients lose pushes before they handle them.
    pub(crate) fn loses_pushes(self) -> bool {
        self == Self::Planned
    }
}
