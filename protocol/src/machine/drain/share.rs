//! A shard's share of a drain: the slot of each client, for its notice and its close.

use crate::Time;
use foldhash::quality::FixedState;
use std::{collections::VecDeque, hash::BuildHasher as _, time::Duration};

/// Maximum lag that a busy shard catches up on at once; all later slots are delayed by the rest.
const CATCH_UP_MAX: Duration = Duration::from_millis(100);

/// Pace of a node's drain: all slots begin within `window` after `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Start of the window.
    pub start: Time,
    /// Time from the first slot to the last.
    pub window: Duration,
    /// Length of a slot: the client may move within it, and is closed at its end.
    pub handover: Duration,
}

/// Notice of the drain to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice<K> {
    /// Key of the client.
    pub who: K,
    /// Time from now to the start of its slot.
    pub after: Duration,
    /// Length of its slot.
    pub window: Duration,
}

/// Slots of one shard's clients.
#[derive(Clone, Debug)]
pub struct Share<K> {
    pace: Pace,
    unnoticed: VecDeque<(Time, K)>,
    noticed: VecDeque<(Time, K)>,
    /// Delay of all remaining slots, because the shard was late.
    late: Duration,
}

impl<K: Copy + PartialEq> Share<K> {
    /// Assigns slots to these clients of shard `index` of `shards`. The slots of the shards interleave, so that the
    /// node's pace is even.
    ///
    /// `seed` shuffles the slots, because a table lists `conns` in order of arrival. A client that stays to the end of
    /// its slot reconnects later than others of the slot, and would come after them in the next drain. Over several
    /// restarts such clients would cluster, and all arrive together with the clients of the slots that follow.
    pub fn new(pace: Pace, index: usize, shards: usize, seed: u64, conns: impl Iterator<Item = K>) -> Self {
        let deal = FixedState::with_seed(seed);
        let mut conns: Vec<(u64, K)> =
            conns.enumerate().map(|(nth, who)| (deal.hash_one((index, nth)), who)).collect();
        conns.sort_unstable_by_key(|(random, _)| *random);
        let shards = shards.max(1) as u128;
        let parts = conns.len().max(1) as u128 * shards;
        let slot = |nth: usize| {
            let part = (nth as u128 * shards + index as u128 % shards + 1).min(parts);
            pace.start + Duration::from_millis((pace.window.as_millis() * part / parts) as u64)
        };
        let unnoticed = conns.into_iter().enumerate().map(|(nth, (_, who))| (slot(nth), who)).collect();
        Self { pace, unnoticed, noticed: VecDeque::new(), late: Duration::ZERO }
    }

    /// Returns the number of clients that are not notified yet.
    pub fn unnoticed(&self) -> usize {
        self.unnoticed.len()
    }

    /// Returns the number of clients that are not closed yet.
    pub fn waiting(&self) -> usize {
        self.unnoticed.len() + self.noticed.len()
    }

    /// Returns the notice for the next client, in order of slots.
    pub fn poll_notice(&mut self, now: Time) -> Option<Notice<K>> {
        let (slot, who) = self.unnoticed.pop_front()?;
        self.noticed.push_back((slot, who));
        Some(self.notice(slot, who, now))
    }

    /// Returns the notice for a client that could not be notified in its turn because it had not logged in.
    pub fn late_notice(&self, who: K, now: Time) -> Option<Notice<K>> {
        let (slot, _) = self.noticed.iter().find(|(_, other)| *other == who)?;
        Some(self.notice(*slot, who, now))
    }

    /// Returns the next client whose slot has ended.
    pub fn poll_close(&mut self, now: Time) -> Option<K> {
        let (slot, who) = *self.noticed.front()?;
        let due = self.end_of(slot);
        if now < due {
            return None;
        }
        self.late += now.since(due).saturating_sub(CATCH_UP_MAX);
        self.noticed.pop_front();
        Some(who)
    }

    /// Returns when to poll next; immediately while clients are not notified.
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
