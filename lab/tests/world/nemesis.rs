//! Faults of the world, drawn from the seed: one after the other, and each is healed before the next.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::deck::Deck;

/// Fault of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A node ends at once, and another run of it starts later.
    Kill(usize),
    /// A node gets no turns.
    Freeze(usize),
    /// Two nodes do not reach each other.
    Cut(usize, usize),
    /// Calls between nodes take long, and answers are lost.
    SlowLink,
    /// All routes are lost, as those of an emptied Redis.
    LoseRoutes,
    /// The same, and one node does not reach them.
    LoseRoutesApart(usize),
    /// The routes fall back to what they were when the fault began, as a Redis that restarts from a dump.
    RestoreRoutes,
    /// The store falls back to what it was when the fault began, as after the promotion of a lagging standby.
    RestoreStore,
    /// A node leaves as planned, and another run of it starts later.
    Leave(usize),
    /// The group of owners evicts a node that lives.
    Evict(usize),
    /// The group evicts a node that has archived and not published yet, and the node learns of it at once.
    EvictArchiving(usize),
    /// Connections of clients break.
    CutClients,
    /// Clients do not read.
    StallClients,
    /// The wall clock of a node jumps.
    ClockJump(usize),
}

/// Fault that has begun or ended.
pub(crate) enum Move {
    Begin(Fault),
    End(Fault),
}

/// Drawer of the faults.
pub(crate) struct Nemesis {
    deck: Deck,
    rng: StdRng,
    nodes: usize,
    active: Option<(Fault, Duration)>,
    next_at: Duration,
}

impl Nemesis {
    pub(crate) fn new(deck: Deck, nodes: usize, seed: u64) -> Self {
        Self { deck, rng: StdRng::seed_from_u64(seed), nodes, active: None, next_at: Duration::from_secs(2) }
    }

    /// Returns the next fault that begins or ends at the time `now`, if there is one.
    pub(crate) fn step(&mut self, now: Duration, talks: bool) -> Option<Move> {
        if let Some((fault, until)) = self.active {
            if now < until && talks {
                return None;
            }
            self.active = None;
            // After a loss of routes, those that are not restored show once the nodes trust the routes again.
            let pause = if self.deck == Deck::Routes { 20_000 } else { 3_000 };
            self.next_at = now + Duration::from_millis(self.rng.random_range(pause / 15..pause));
            return Some(Move::End(fault));
        }
        if !talks || now < self.next_at {
            return None;
        }
        let (fault, lasts) = self.draw();
        self.active = Some((fault, now + lasts));
        Some(Move::Begin(fault))
    }

    fn draw(&mut self) -> (Fault, Duration) {
        let node = self.rng.random_range(0..self.nodes);
        let other = (node + self.rng.random_range(1..self.nodes.max(2))) % self.nodes;
        let (fault, longest) = match (self.deck, self.rng.random_range(0..13)) {
            (Deck::Everything, card) => return self.any(card, node, other),
            (Deck::Planned, 0..3) | (Deck::Busy, 0..8) => (Fault::CutClients, 200),
            (Deck::Planned, 3..7) | (Deck::Busy, _) => (Fault::StallClients, 4_000),
            (Deck::Planned, _) => (Fault::Leave(node), 6_000),
            (Deck::Owners, 0..2) => (Fault::CutClients, 200),
            (Deck::Owners, _) => (Fault::EvictArchiving(node), 1_500),
            (Deck::Routes, 0..4) => (Fault::LoseRoutes, 500),
            (Deck::Routes, _) => {
                let lasts = self.rng.random_range(5_000..7_000);
                return (Fault::LoseRoutesApart(node), Duration::from_millis(lasts));
            }
        };
        (fault, Duration::from_millis(self.rng.random_range(100..=longest)))
    }

    fn any(&mut self, card: u32, node: usize, other: usize) -> (Fault, Duration) {
        let (fault, longest) = match card {
            0 => (Fault::Kill(node), 8_000),
            1 => (Fault::Freeze(node), if self.rng.random_ratio(1, 4) { 14_000 } else { 4_000 }),
            2 if other != node => (Fault::Cut(node, other), 5_000),
            3 => (Fault::SlowLink, 5_000),
            4 => (Fault::LoseRoutes, 500),
            5 => (Fault::Evict(node), 5_000),
            6 => (Fault::CutClients, 200),
            7 => (Fault::StallClients, 4_000),
            8 => (Fault::RestoreRoutes, 3_000),
            9 => (Fault::RestoreStore, 3_000),
            10 | 11 => (Fault::Leave(node), 6_000),
            _ => (Fault::ClockJump(node), 5_000),
        };
        (fault, Duration::from_millis(self.rng.random_range(100..=longest)))
    }
}

impl Fault {
    /// Returns the name of the fault in a history.
    pub(crate) fn name(self) -> String {
        let of = |name: &str, node: usize| format!("{name}:n{}", node + 1);
        match self {
            Self::Kill(node) => of("kill", node),
            Self::Freeze(node) => of("stop", node),
            Self::Cut(node, _) => of("peers", node),
            Self::SlowLink => "peers".to_owned(),
            Self::LoseRoutes | Self::LoseRoutesApart(_) => "redis-flush".to_owned(),
            Self::RestoreRoutes => "redis-back".to_owned(),
            Self::RestoreStore => "postgres-back".to_owned(),
            Self::Leave(node) => of("leave", node),
            Self::Evict(node) | Self::EvictArchiving(node) => of("evict", node),
            Self::CutClients | Self::StallClients => "clients".to_owned(),
            Self::ClockJump(node) => of("clock", node),
        }
    }
}
