//! Scores of networks and users by their evidence, and what is decided about them.

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    time::Duration,
};

use tidegate_protocol::{
    id::UserId,
    machine::score::{Judgement, Population, SCORE_MAX, ScoredEvidence, Scores},
};
use tokio::time::Instant;

use super::EvidenceRow;
use crate::{
    bans::BanSubject,
    clock::{Clock, clock_since},
    networks::Network,
};

/// Most subjects that have a score.
const SUBJECTS_MAX: usize = 65_536;

/// Most networks whose sparing is remembered.
const SPARED_MAX: usize = 256;

/// Prefix of the networks that have scores, as in the limits of addresses.
const PREFIX_V4: u8 = 32;
const PREFIX_V6: u8 = 64;

/// Network that reached the score of a ban, and is spared because of its healthy users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spared {
    /// Network.
    pub subject: BanSubject,
    /// Users whose valid tokens were used for evidence.
    pub offenders: usize,
    /// Other users that were connected.
    pub healthy: usize,
}

/// What evidence of a subject leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScoreVerdict {
    /// Nothing.
    Watched,
    /// Network whose users have to be counted for a decision, and its offenders.
    Undecided(usize),
    /// User that is banned with its next evidence, once there may be another ban.
    Deferred,
    /// Network that is spared.
    Spared,
    /// Ban of this length, after as many former ones.
    Banned {
        /// Length of the ban.
        length: Duration,
        /// Former bans that made it longer.
        former: u32,
    },
}

/// Score of a subject as the admin API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectScore {
    /// Score; 100 is a ban.
    pub score: u32,
    /// Bans of the last 30 days, which make the next one longer.
    pub former: u32,
    /// Why the network is not banned although its score was reached.
    pub spared: Option<Spared>,
}

/// Scores of the subjects of this node.
pub(super) struct SubjectScores {
    scores: Scores<BanSubject>,
    spared: VecDeque<Spared>,
    hasher: RandomState,
    clock: Clock,
}

impl Default for SubjectScores {
    fn default() -> Self {
        Self::new(clock_since(Instant::now().into_std()))
    }
}

/// Returns the network of an address that has a score.
pub fn scored_network(address: IpAddr) -> BanSubject {
    let prefix = if address.to_canonical().is_ipv4() { PREFIX_V4 } else { PREFIX_V6 };
    BanSubject::Network(Network::around(address, prefix))
}

impl SubjectScores {
    /// Creates scores that decay by this clock.
    pub(super) fn new(clock: Clock) -> Self {
        Self { scores: Scores::new(SUBJECTS_MAX), spared: VecDeque::new(), hasher: RandomState::new(), clock }
    }

    /// Adds evidence to the score of a subject. Without `decides`, nothing is decided and the score goes on rising; without
    /// `may_ban`, users are not banned yet.
    pub(super) fn note(
        &mut self,
        subject: &BanSubject,
        row: &EvidenceRow,
        decides: bool,
        may_ban: bool,
    ) -> ScoreVerdict {
        let offender = row.source.user.as_ref().map(|user| self.hasher.hash_one(user));
        let weight = row.kind.weight().saturating_mul(row.count);
        if weight == 0 {
            return ScoreVerdict::Watched;
        }
        // A network with unknown users is never banned at once.
        let population = match subject {
            BanSubject::User(_) | BanSubject::Device(..) if decides && may_ban => Population::Single,
            _ => Population::Shared(usize::MAX),
        };
        let now = (self.clock)();
        match self.scores.handle_evidence(subject, ScoredEvidence { weight, offender }, population, now) {
            Judgement::Banned { length, former } => ScoreVerdict::Banned { length, former },
            Judgement::Spared { offenders, .. } if decides => match subject {
                BanSubject::Network(_) => ScoreVerdict::Undecided(offenders),
                BanSubject::User(_) | BanSubject::Device(..) => ScoreVerdict::Deferred,
            },
            Judgement::Watched | Judgement::Spared { .. } => ScoreVerdict::Watched,
        }
    }

    /// Raises the score of a network to twice that of a ban, because it decays until [`Self::decide`] decides about it.
    pub(super) fn suspect(&mut self, subject: &BanSubject) {
        let now = (self.clock)();
        let weight = (2 * SCORE_MAX).saturating_sub(self.scores.score(subject, now));
        let evidence = ScoredEvidence { weight, offender: None };
        self.scores.handle_evidence(subject, evidence, Population::Shared(usize::MAX), now);
    }

    /// Decides about a network with these connected users.
    pub(super) fn decide(&mut self, subject: &BanSubject, users: &HashSet<UserId>) -> ScoreVerdict {
        let now = (self.clock)();
        let is_healthy = |user: &&UserId| !self.scores.is_offender(subject, self.hasher.hash_one(*user), now);
        let healthy = users.iter().filter(is_healthy).count();
        let nothing = ScoredEvidence { weight: 0, offender: None };
        self.spared.retain(|spared| spared.subject != *subject);
        match self.scores.handle_evidence(subject, nothing, Population::Shared(healthy), now) {
            Judgement::Watched => ScoreVerdict::Watched,
            Judgement::Banned { length, former } => ScoreVerdict::Banned { length, former },
            Judgement::Spared { offenders, healthy } => {
                if self.spared.len() == SPARED_MAX {
                    self.spared.pop_front();
                }
                self.spared.push_back(Spared { subject: subject.clone(), offenders, healthy });
                ScoreVerdict::Spared
            }
        }
    }

    pub(super) fn score(&self, subject: &BanSubject) -> SubjectScore {
        let spared = self.spared.iter().find(|spared| spared.subject == *subject).cloned();
        let (score, former) = (self.scores.score(subject, (self.clock)()), self.scores.former_bans(subject));
        SubjectScore { score, former, spared }
    }

    pub(super) fn top(&self, limit: usize) -> Vec<(BanSubject, u32)> {
        self.scores.top(limit, (self.clock)())
    }

    /// Forgets a subject, and all that it covers.
    pub(super) fn forget(&mut self, subject: &BanSubject) {
        self.scores.forget_all(|other| subject.covers(other));
        self.spared.retain(|spared| !subject.covers(&spared.subject));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use tidegate_protocol::Time;

    use super::*;

    #[test]
    fn suspected_network_is_decided_about_in_a_later_second() {
        let ms = Arc::new(AtomicU64::new(0));
        let of_scores = Arc::clone(&ms);
        let clock = Box::new(move || Time::from_millis(of_scores.load(Ordering::SeqCst)));
        let (mut scores, wide) = (SubjectScores::new(clock), "network:2001:db8::/56".parse().unwrap());
        (0..3).for_each(|_| scores.suspect(&wide));
        assert_eq!(scores.score(&wide).score, 2 * SCORE_MAX, "it does not rise each time");
        ms.store(5_000, Ordering::SeqCst);
        let verdict = scores.decide(&wide, &HashSet::new());
        assert!(matches!(verdict, ScoreVerdict::Banned { former: 0, .. }), "{verdict:?}");
    }
}
