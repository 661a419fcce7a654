//! Scores of subjects that cause evidence of abuse: when a network, a user or a device is banned, and for how long.
//!
//! **Decay.** A score halves in [`HALF_LIFE_MS`]; a subject is banned when its score reaches [`SCORE_MAX`], and starts
//! from zero then. **Escalation.** The n-th ban within [`HISTORY_MS`] of the one before is four times as long, up to
//! [`BAN_MS_MAX`].
//!
//! **Sparing.** Many people may be behind one address. A network with healthy users is banned only if as many distinct
//! users with a valid token, and at least [`OFFENDERS_MIN`], have caused evidence within [`OFFENDER_MS`]. Evidence
//! without a valid token counts there only while fewer than [`HEALTHY_MIN`] healthy users are connected: otherwise
//! strangers could shut out a café by failing logins from it.
//!
//! **Bounded.** At most as many subjects as the machine is created for, each with at most [`OFFENDERS_MAX`] offenders. A
//! further subject replaces the least of [`SAMPLED`] that the machine looks at in turn, so that a flood of new subjects
//! replaces each other rather than those with a high score or a former ban.

use crate::Time;
use std::{collections::HashMap, hash::Hash, time::Duration};

/// Score at which a subject is banned.
pub const SCORE_MAX: u32 = 100;

/// Time in which a score halves, in ms.
pub const HALF_LIFE_MS: u64 = 10 * 60_000;

/// Length of a first ban, in ms; each further one is [`ESCALATION`] times as long.
pub const BAN_MS: u64 = 10 * 60_000;

/// Factor between two bans in a row.
pub const ESCALATION: u64 = 4;

/// Longest ban, in ms.
pub const BAN_MS_MAX: u64 = 30 * 24 * 3_600_000;

/// Time for which a ban makes the next one longer, in ms.
pub const HISTORY_MS: u64 = 30 * 24 * 3_600_000;

/// Time for which a user counts as an offender, in ms.
pub const OFFENDER_MS: u64 = 10 * 60_000;

/// Distinct offenders from which a network with healthy users may be banned.
pub const OFFENDERS_MIN: usize = 5;

/// Most offenders of one network that are remembered; the oldest are forgotten.
pub const OFFENDERS_MAX: usize = 64;

/// Healthy users from which evidence without a valid token does not count for a network.
pub const HEALTHY_MIN: usize = 3;

/// Subjects that are looked at to find the one that a new subject replaces.
pub const SAMPLED: usize = 16;

/// Evidence of one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoredEvidence {
    /// Weight of the kinds of evidence, summed up.
    pub weight: u32,
    /// Hash of the user whose valid token was used; `None` without one.
    pub offender: Option<u64>,
}

/// Population behind a subject, on which it depends whether it is spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Population {
    /// User or device: nobody else is behind it.
    Single,
    /// Network with this many distinct users that are connected and caused no evidence recently.
    Shared(usize),
}

/// Outcome of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Score below the maximum.
    Watched,
    /// Score at the maximum, and healthy users behind the network.
    Spared {
        /// Distinct offenders.
        offenders: usize,
        /// Distinct healthy users.
        healthy: usize,
    },
    /// Subject to ban for this time.
    Banned {
        /// Length of the ban.
        length: Duration,
        /// Number of bans before it that made it longer.
        former: u32,
    },
}

/// Score of one subject, and what its next ban depends on.
#[derive(Clone, Debug, Default)]
struct Score {
    /// Scores of evidence with and without a valid token, as of `at`.
    with_token: f64,
    without_token: f64,
    at: Time,
    /// Offenders with the time of their last evidence, the oldest first.
    offenders: Vec<(u64, Time)>,
    bans: u32,
    banned_at: Time,
}

impl Score {
    fn decay(&mut self, now: Time) {
        let ms = now.since(self.at).as_millis() as f64;
        let factor = (-ms / HALF_LIFE_MS as f64).exp2();
        self.with_token *= factor;
        self.without_token *= factor;
        self.at = self.at.max(now);
        self.offenders.retain(|(_, at)| now.since(*at) < Duration::from_millis(OFFENDER_MS));
        if now.since(self.banned_at) >= Duration::from_millis(HISTORY_MS) {
            self.bans = 0;
        }
    }

    fn note(&mut self, evidence: ScoredEvidence, now: Time) {
        self.decay(now);
        let weight = f64::from(evidence.weight);
        let Some(offender) = evidence.offender else {
            self.without_token += weight;
            return;
        };
        self.with_token += weight;
        self.offenders.retain(|(user, _)| *user != offender);
        if self.offenders.len() == OFFENDERS_MAX {
            self.offenders.remove(0);
        }
        self.offenders.push((offender, now));
    }

    fn total(&self) -> f64 {
        self.with_token + self.without_token
    }

    /// Returns the worth of keeping the subject: its score, and that of its bans.
    fn worth(&self, now: Time) -> f64 {
        let ms = now.since(self.at).as_millis() as f64;
        self.total() * (-ms / HALF_LIFE_MS as f64).exp2() + f64::from(self.bans * SCORE_MAX)
    }

    fn judge(&mut self, population: Population, now: Time) -> Judgement {
        let maximum = f64::from(SCORE_MAX);
        if let Population::Shared(healthy) = population {
            let counted = if healthy >= HEALTHY_MIN { self.with_token } else { self.total() };
            let offenders = self.offenders.len();
            let is_spared = healthy > 0 && (offenders < OFFENDERS_MIN || offenders < healthy);
            if self.total() >= maximum && (is_spared || counted < maximum) {
                return Judgement::Spared { offenders, healthy };
            }
        }
        if self.total() < maximum {
            return Judgement::Watched;
        }
        let former = self.bans;
        let factor = ESCALATION.saturating_pow(former);
        let length = Duration::from_millis(BAN_MS.saturating_mul(factor).min(BAN_MS_MAX));
        (self.with_token, self.without_token) = (0.0, 0.0);
        self.offenders.clear();
        (self.bans, self.banned_at) = (former.saturating_add(1).min(32), now);
        Judgement::Banned { length, former }
    }
}

/// Scores of many subjects.
#[derive(Debug)]
pub struct Scores<K> {
    places: HashMap<K, usize>,
    scores: Vec<(K, Score)>,
    subjects_max: usize,
    /// Place from which the next subject to replace is looked for.
    next_sample: usize,
}

impl<K: Clone + Eq + Hash> Scores<K> {
    /// Creates the scores of at most `subjects_max` subjects, at least one.
    pub fn new(subjects_max: usize) -> Self {
        let subjects_max = subjects_max.max(1);
        Self { places: HashMap::new(), scores: Vec::new(), subjects_max, next_sample: 0 }
    }

    /// Adds evidence to the score of a subject, and judges it.
    pub fn handle_evidence(
        &mut self,
        subject: &K,
        evidence: ScoredEvidence,
        population: Population,
        now: Time,
    ) -> Judgement {
        let place = self.place(subject, now);
        let Some((_, score)) = self.scores.get_mut(place) else { return Judgement::Watched };
        score.note(evidence, now);
        score.judge(population, now)
    }

    /// Returns the score of a subject, rounded down; 0 if the machine does not know it.
    pub fn score(&self, subject: &K, now: Time) -> u32 {
        let found = self.places.get(subject).and_then(|place| self.scores.get(*place));
        found.map_or(0, |(_, score)| {
            let mut score = score.clone();
            score.decay(now);
            score.total() as u32
        })
    }

    /// Returns whether a user has caused evidence of a subject within [`OFFENDER_MS`].
    pub fn is_offender(&self, subject: &K, user: u64, now: Time) -> bool {
        let found = self.places.get(subject).and_then(|place| self.scores.get(*place));
        let is_recent = |at: Time| now.since(at) < Duration::from_millis(OFFENDER_MS);
        found.is_some_and(|(_, score)| score.offenders.iter().any(|(id, at)| *id == user && is_recent(*at)))
    }

    /// Returns the subjects with the highest scores above 0, at most `limit`, the highest first.
    pub fn top(&self, limit: usize, now: Time) -> Vec<(K, u32)> {
        let scored = self.scores.iter().map(|(subject, score)| {
            let ms = now.since(score.at).as_millis() as f64;
            (subject, (score.total() * (-ms / HALF_LIFE_MS as f64).exp2()) as u32)
        });
        let mut top: Vec<_> = scored.filter(|(_, score)| *score > 0).collect();
        top.sort_by_key(|(_, score)| std::cmp::Reverse(*score));
        top.truncate(limit);
        top.into_iter().map(|(subject, score)| (subject.clone(), score)).collect()
    }

    /// Returns the bans of a subject that make its next one longer.
    pub fn former_bans(&self, subject: &K) -> u32 {
        let found = self.places.get(subject).and_then(|place| self.scores.get(*place));
        found.map_or(0, |(_, score)| score.bans)
    }

    /// Returns the number of subjects.
    pub fn len(&self) -> usize {
        self.scores.len()
    }

    /// Returns whether there are no subjects.
    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    /// Forgets a subject, as after its ban was lifted.
    pub fn forget(&mut self, subject: &K) {
        let Some(place) = self.places.remove(subject) else { return };
        self.scores.swap_remove(place);
        if let Some((moved, _)) = self.scores.get(place) {
            self.places.insert(moved.clone(), place);
        }
    }

    /// Forgets all subjects that are selected, as after the ban of a network that includes them was lifted.
    pub fn forget_all(&mut self, is_selected: impl Fn(&K) -> bool) {
        let selected: Vec<K> = self.places.keys().filter(|subject| is_selected(subject)).cloned().collect();
        selected.iter().for_each(|subject| self.forget(subject));
    }

    /// Returns the place of a subject, which replaces another one if there are too many.
    fn place(&mut self, subject: &K, now: Time) -> usize {
        if let Some(place) = self.places.get(subject) {
            return *place;
        }
        let fresh = (subject.clone(), Score { at: now, ..Score::default() });
        let place = if self.scores.len() < self.subjects_max {
            self.scores.push(fresh);
            self.scores.len() - 1
        } else {
            let place = self.least(now);
            self.places.remove(&self.scores[place].0);
            self.scores[place] = fresh;
            place
        };
        self.places.insert(subject.clone(), place);
        place
    }

    /// Returns the place of the least of the subjects that are next in turn.
    fn least(&mut self, now: Time) -> usize {
        let count = self.scores.len();
        let sampled = (0..SAMPLED.min(count)).map(|step| (self.next_sample + step) % count);
        let worth = |place: &usize| self.scores[*place].1.worth(now);
        let least = sampled.min_by(|a, b| worth(a).total_cmp(&worth(b))).unwrap_or(0);
        self.next_sample = (self.next_sample + SAMPLED) % count;
        least
    }
}
