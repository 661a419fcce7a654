//! Automatic bans and suspensions that wait for the store, and how many there may be in a minute.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::{bans::BanSubject, store::GuardKind};

/// Author of automatic decisions, in their records and in the audit log.
pub(super) const AUTHOR: &str = "automatic";

/// Most decisions of a minute about networks, and as many about users and devices: more are rather a fault of the
/// deployment than as many attackers.
const DECISIONS_PER_MINUTE: usize = 100;

/// Window of [`DECISIONS_PER_MINUTE`].
const MINUTE: Duration = Duration::from_secs(60);

/// Most decisions that wait for the store.
const WAITING_MAX: usize = 256;

/// Time after which a decision that the store did not take is given up.
const WAITING_TIMEOUT: Duration = Duration::from_secs(60);

/// Time within which a stored decision is in force on this node.
const STORED_PAUSE: Duration = Duration::from_secs(10);

/// Ban or suspension to store.
pub(super) struct Decision {
    pub(super) kind: GuardKind,
    pub(super) subject: BanSubject,
    pub(super) length: Duration,
    pub(super) reason: String,
    pub(super) made_at: Instant,
}

impl Decision {
    /// Returns whether the decision has waited for too long.
    pub(super) fn has_expired(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.made_at) >= WAITING_TIMEOUT
    }
}

/// Decisions that wait, and times of the last ones.
#[derive(Default)]
pub(super) struct Decisions {
    waiting: VecDeque<Decision>,
    /// Subjects that were stored, and when: their bans may not be in force on this node yet.
    stored: VecDeque<(BanSubject, Instant)>,
    /// Times of the decisions of the last minute about networks, and about users and devices.
    of_networks: VecDeque<Instant>,
    of_senders: VecDeque<Instant>,
}

impl Decisions {
    /// Returns whether there may be another decision about a network, or about a user or device.
    pub(super) fn has_budget(&mut self, is_network: bool, now: Instant) -> bool {
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= MINUTE;
        let times = self.times(is_network);
        while times.front().is_some_and(is_old) {
            times.pop_front();
        }
        times.len() < DECISIONS_PER_MINUTE && self.waiting.len() < WAITING_MAX
    }

    /// Adds a decision, for which there is a budget.
    pub(super) fn add(&mut self, decision: Decision) {
        let is_network = matches!(decision.subject, BanSubject::Network(_));
        self.times(is_network).push_back(decision.made_at);
        self.waiting.push_back(decision);
    }

    /// Returns whether a decision about the subject waits, or was stored a short time ago.
    pub(super) fn has(&self, subject: &BanSubject) -> bool {
        self.waiting.iter().map(|decision| &decision.subject).any(|other| other == subject)
            || self.stored.iter().any(|(other, _)| other == subject)
    }

    /// Returns the number of decisions that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the decision that has waited for the longest time. It waits no longer.
    pub(super) fn next(&mut self) -> Option<Decision> {
        self.waiting.pop_front()
    }

    /// Lets a decision wait again, before the others.
    pub(super) fn put_back(&mut self, decision: Decision) {
        self.waiting.push_front(decision);
    }

    /// Lets a decision wait again, after the others.
    pub(super) fn put_last(&mut self, decision: Decision) {
        self.waiting.push_back(decision);
    }

    /// Remembers that a decision is stored.
    pub(super) fn note_stored(&mut self, subject: BanSubject, now: Instant) {
        self.stored.push_back((subject, now));
    }

    /// Forgets the stored decisions that are in force by now.
    pub(super) fn forget_stored(&mut self, now: Instant) {
        self.stored.retain(|(_, at)| now.saturating_duration_since(*at) < STORED_PAUSE);
    }

    /// Forgets the decisions about the subjects of a lifted ban.
    pub(super) fn forget(&mut self, lifted: &BanSubject) {
        let is_kept =
            |decision: &Decision| decision.kind != GuardKind::Ban || !lifted.covers(&decision.subject);
        self.waiting.retain(is_kept);
        self.stored.retain(|(subject, _)| !lifted.covers(subject));
    }

    /// Forgets all decisions about an erased subject, and about what it covers.
    pub(super) fn erase(&mut self, erased: &BanSubject) {
        self.waiting.retain(|decision| !erased.covers(&decision.subject));
        self.stored.retain(|(subject, _)| !erased.covers(subject));
    }

    fn times(&mut self, is_network: bool) -> &mut VecDeque<Instant> {
        if is_network { &mut self.of_networks } else { &mut self.of_senders }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(subject: &str, made_at: Instant) -> Decision {
        let (subject, length) = (subject.parse().unwrap(), Duration::from_secs(600));
        Decision { kind: GuardKind::Ban, subject, length, reason: String::new(), made_at }
    }

    #[test]
    fn networks_and_users_have_budgets_of_their_own() {
        let (mut decisions, now) = (Decisions::default(), Instant::now());
        for n in 0..DECISIONS_PER_MINUTE {
            assert!(decisions.has_budget(true, now));
            decisions.add(decision(&format!("network:192.0.2.{n}"), now));
        }
        assert!(!decisions.has_budget(true, now) && decisions.has_budget(false, now));
        decisions.add(decision("user:ann", now));
        assert!(decisions.has_budget(true, now + MINUTE), "a minute later");
        (0..WAITING_MAX).for_each(|n| decisions.add(decision(&format!("user:u{n}"), now)));
        assert!(!decisions.has_budget(true, now + MINUTE), "too many wait for the store");
    }

    #[test]
    fn suspension_outlasts_a_lifted_ban_and_no_erasure() {
        let (mut decisions, now) = (Decisions::default(), Instant::now());
        let (phone, ann) = ("device:ann/phone".parse().unwrap(), "user:ann".parse().unwrap());
        decisions.add(Decision { kind: GuardKind::Suspend, ..decision("device:ann/phone", now) });
        decisions.forget(&ann);
        assert!(decisions.has(&phone));
        decisions.erase(&ann);
        assert!(!decisions.has(&phone));
    }

    #[test]
    fn subject_is_decided_once_until_its_ban_is_in_force_or_lifted() {
        let (mut decisions, now) = (Decisions::default(), Instant::now());
        let (ann, network) = ("user:ann".parse().unwrap(), "network:192.0.2.7".parse().unwrap());
        decisions.add(decision("user:ann", now));
        decisions.add(decision("network:192.0.2.7", now));
        assert!(decisions.has(&ann) && decisions.has(&network));
        let first = decisions.next().unwrap();
        assert!(!first.has_expired(now) && first.has_expired(now + WAITING_TIMEOUT));
        assert!(!decisions.has(&ann));
        decisions.note_stored(first.subject, now);
        decisions.forget_stored(now + Duration::from_secs(9));
        assert!(decisions.has(&ann), "not in force on this node yet");
        decisions.forget_stored(now + STORED_PAUSE);
        assert!(!decisions.has(&ann));
        decisions.forget(&"network:192.0.2.0/24".parse().unwrap());
        assert!(!decisions.has(&network) && decisions.waiting() == 0);
    }
}
