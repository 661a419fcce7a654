//! A shard's share of a drain: who hears of it when, and who is closed when.

use crate::Time;
use foldhash::quality::FixedState;
use std::{collections::VecDeque, hash::BuildHasher as _, time::Duration};

/// Slots that a shard that was busy elsewhere makes up for at once; what it is later than this it stays late.
const CATCH_UP: Duration = Duration::from_millis(100);

/// The pace of a node: its slots begin within `window` of `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Where the window begins.
    pub start: Time,
    /// From the first slot to the last.
    pub window: Duration,
    /// The length of a slot: within it the client comes over, at its end it is closed.
    pub handover: Duration,
}

/// What one client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice<K> {
    /// The client.
    pub who: K,
    /// From now to the begin of its slot.
    pub after: Duration,
    /// The length of its slot.
    pub window: Duration,
}

/// The slots of one shard's clients.
#[derive(Clone, Debug)]
pub struct Share<K> {
    pace: Pace,
    unnoticed: VecDeque<(Time, K)>,
    noticed: VecDeque<(Time, K)>,
    /// How far the slots have moved because somebody was late.
    late: Duration,
}

impl<K: Copy + PartialEq> Share<K> {
    /// The slots of these clients, on shard `index` of `shards`. The shards' slots lie between each other, so that the
    /// node's pace is even when theirs is.
    ///
    /// `seed` deals the slots, whatever the order of `conns`: that of a table is the order in which they came. Who stays to the
    /// end of its slot is later than those with it, and in the next drain among those behind; from restart to restart such
    /// clients would gather, and all arrive with the ones that follow.
    pub fn new(pace: Pace, index: usize, shards: usize, seed: u64, conns: impl Iterator<Item = K>) -> Self {
        let deal = FixedState::with_seed(seed);
        let mut conns: Vec<(u64, K)> =
            conns.enumerate().map(|(nth, who)| (deal.hash_one((index, nth)), who)).collect();
        conns.sort_unstable_by_key(|(place, _)| *place);
        let shards = shards.max(1) as u128;
        let parts = conns.len().max(1) as u128 * shards;
        let slot = |nth: usize| {
            let part = (nth as u128 * shards + index as u128 % shards + 1).min(parts);
            pace.start + Duration::from_millis((pace.window.as_millis() * part / parts) as u64)
        };
        let unnoticed = conns.into_iter().enumerate().map(|(nth, (_, who))| (slot(nth), who)).collect();
        Self { pace, unnoticed, noticed: VecDeque::new(), late: Duration::ZERO }
    }

    /// How many have not been told.
    pub fn unnoticed(&self) -> usize {
        self.unnoticed.len()
    }

    /// How many are still to be closed.
    pub fn waiting(&self) -> usize {
        self.unnoticed.len() + self.noticed.len()
    }

    /// The next client to be told, first slot first.
    pub fn poll_notice(&mut self, now: Time) -> Option<Notice<K>> {
        let (slot, who) = self.unnoticed.pop_front()?;
        self.noticed.push_back((slot, who));
        Some(self.notice(slot, who, now))
    }

    /// What to tell a client that could not be told in its turn, because it had not logged in.
    pub fn tell(&self, who: K, now: Time) -> Option<Notice<K>> {
        let (slot, _) = self.noticed.iter().find(|(_, other)| *other == who)?;
        Some(self.notice(*slot, who, now))
    }

    /// The next client whose slot is over.
    pub fn poll_close(&mut self, now: Time) -> Option<K> {
        let (slot, who) = *self.noticed.front()?;
        let due = self.end_of(slot);
        if now < due {
            return None;
        }
        self.late += now.since(due).saturating_sub(CATCH_UP);
        self.noticed.pop_front();
        Some(who)
    }

    /// When to look again; at once while there is somebody to be told.
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.unnoticed.is_empty() {
            return Some(Time::ZERO);
        }
        self.noticed.front().map(|(slot, _)| self.end_of(*slot))
    }

    fn end_of(&self, slot: Time) -> Time {
        slot + self.late + self.pace.handover
    }

    fn notice(&self, slot: Time, who: K, now: Time) -> Notice<K> {
        Notice { who, after: (slot + self.late).since(now), window: self.pace.handover }
    }
}
