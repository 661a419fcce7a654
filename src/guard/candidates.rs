//! Networks with the score of a ban whose users have to be counted, in turn.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

use crate::bans::BanSubject;

/// Most networks whose users are counted at once.
const COUNTED_MAX: usize = 4;

/// Most networks that wait; further ones wait with their next evidence.
const WAITING_MAX: usize = 1_024;

/// Most spared networks that are remembered; the users of further ones are counted with each evidence.
const SPARED_MAX: usize = 1_024;

/// Time for which a spared network is not looked at, unless its offenders change in number.
const SPARED_PAUSE: Duration = Duration::from_secs(30);

/// Most networks around banned ones that wait to be looked at again; further ones wait for the next ban in them.
const WIDE_MAX: usize = 256;

/// Networks that wait, the first in turn first, and those that were spared.
#[derive(Default)]
pub(super) struct Candidates {
    turns: VecDeque<BanSubject>,
    /// Offenders of the networks that wait.
    offenders: HashMap<BanSubject, usize>,
    /// Offenders of spared networks, and when they were spared.
    spared: HashMap<BanSubject, (usize, Instant)>,
    /// Networks around banned ones that were not banned, and when. No evidence of their own brings them back.
    wide: VecDeque<(BanSubject, Instant)>,
}

impl Candidates {
    /// Adds a network with this many offenders, unless it was spared with as many a short time ago.
    pub(super) fn offer(&mut self, subject: &BanSubject, offenders: usize, now: Instant) {
        if let Some(known) = self.offenders.get_mut(subject) {
            *known = offenders;
            return;
        }
        let is_same = |(before, at): &(usize, Instant)| {
            *before == offenders && now.saturating_duration_since(*at) < SPARED_PAUSE
        };
        if self.spared.get(subject).is_some_and(is_same) || self.turns.len() >= WAITING_MAX {
            return;
        }
        self.turns.push_back(subject.clone());
        self.offenders.insert(subject.clone(), offenders);
    }

    /// Returns the networks that are next, with their offenders. They wait no longer.
    pub(super) fn next(&mut self) -> Vec<(BanSubject, usize)> {
        let count = self.turns.len().min(COUNTED_MAX);
        let next: Vec<BanSubject> = self.turns.drain(..count).collect();
        let with_offenders = next.into_iter().map(|subject| {
            let offenders = self.offenders.remove(&subject).unwrap_or(0);
            (subject, offenders)
        });
        with_offenders.collect()
    }

    /// Remembers a network around banned ones, to be looked at again.
    pub(super) fn note_wide(&mut self, subject: BanSubject, now: Instant) {
        if self.wide.len() < WIDE_MAX && self.wide.iter().all(|(other, _)| *other != subject) {
            self.wide.push_back((subject, now));
        }
    }

    /// Returns the networks around banned ones that are to be looked at again. They are not remembered any more.
    pub(super) fn take_wide(&mut self, now: Instant) -> Vec<BanSubject> {
        let is_due = |(_, at): &(BanSubject, Instant)| now.saturating_duration_since(*at) >= SPARED_PAUSE;
        let due = self.wide.iter().take_while(|it| is_due(it)).count();
        self.wide.drain(..due).map(|(subject, _)| subject).collect()
    }

    /// Returns whether a network waits.
    pub(super) fn has(&self, subject: &BanSubject) -> bool {
        self.offenders.contains_key(subject)
    }

    /// Returns whether no network waits.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Remembers that a network with this many offenders was spared.
    pub(super) fn note_spared(&mut self, subject: BanSubject, offenders: usize, now: Instant) {
        self.spared.retain(|_, (_, at)| now.saturating_duration_since(*at) < SPARED_PAUSE);
        if self.spared.len() < SPARED_MAX {
            self.spared.insert(subject, (offenders, now));
        }
    }

    /// Forgets the networks of a lifted ban.
    pub(super) fn forget(&mut self, lifted: &BanSubject) {
        self.turns.retain(|subject| !lifted.covers(subject));
        self.offenders.retain(|subject, _| !lifted.covers(subject));
        self.spared.retain(|subject, _| !lifted.covers(subject));
        self.wide.retain(|(subject, _)| !lifted.covers(subject));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(n: usize) -> BanSubject {
        format!("network:10.0.{}.{}", n / 256, n % 256).parse().unwrap()
    }

    fn taken(candidates: &mut Candidates) -> Vec<BanSubject> {
        candidates.next().into_iter().map(|(subject, _)| subject).collect()
    }

    #[test]
    fn networks_take_turns_and_none_is_left_out() {
        let (mut candidates, now) = (Candidates::default(), Instant::now());
        (0..6).for_each(|n| candidates.offer(&network(n), 1, now));
        assert_eq!(taken(&mut candidates), (0..4).map(network).collect::<Vec<_>>());
        (0..6).for_each(|n| candidates.offer(&network(n), 1, now));
        assert_eq!(taken(&mut candidates), [4, 5, 0, 1].map(network), "the undecided ones come first");
        (0..2 * WAITING_MAX).for_each(|n| candidates.offer(&network(n), 1, now));
        assert_eq!((candidates.turns.len(), candidates.offenders.len()), (WAITING_MAX, WAITING_MAX));
    }

    #[test]
    fn wide_network_comes_again_after_a_pause_unless_its_ban_was_lifted() {
        let (mut candidates, now) = (Candidates::default(), Instant::now());
        (0..2).for_each(|_| candidates.note_wide(network(1), now));
        candidates.note_wide(network(300), now);
        candidates.forget(&"network:10.0.1.0/24".parse().unwrap());
        assert_eq!(candidates.take_wide(now + Duration::from_secs(29)), []);
        assert_eq!(candidates.take_wide(now + SPARED_PAUSE), [network(1)]);
        assert_eq!(candidates.take_wide(now + SPARED_PAUSE), []);
        (0..2 * WIDE_MAX).for_each(|n| candidates.note_wide(network(n), now));
        assert_eq!(candidates.wide.len(), WIDE_MAX);
    }

    #[test]
    fn spared_network_is_left_alone_until_its_offenders_change() {
        let (mut candidates, now) = (Candidates::default(), Instant::now());
        candidates.note_spared(network(1), 3, now);
        candidates.offer(&network(1), 3, now + Duration::from_secs(29));
        assert!(candidates.is_empty());
        candidates.offer(&network(1), 4, now + Duration::from_secs(29));
        assert_eq!(candidates.next(), [(network(1), 4)]);
        candidates.offer(&network(1), 3, now + SPARED_PAUSE);
        candidates.offer(&network(300), 3, now);
        candidates.forget(&"network:10.0.0.0/24".parse().unwrap());
        assert_eq!(taken(&mut candidates), [network(300)]);
        assert!(candidates.spared.is_empty());
    }
}
