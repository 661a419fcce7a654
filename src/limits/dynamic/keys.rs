//! Busiest subjects of dynamic rules, with the profiles of what they usually use.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _};
use tidegate_protocol::machine::threshold::{HourMeter, HourOfWeek, WeekProfile};

use super::super::kinds::LimitLevel;

/// Most subjects with a profile on a node, of all rules; about 1.5 KiB each.
pub(super) const KEYS_MAX: usize = 256;

/// Subjects of a level that those of other levels do not replace. Users can create conversations, and no organisations.
const LEVEL_SHARE: usize = KEYS_MAX / 4;

/// Random subjects of which the least busy one may be replaced.
const SAMPLE: usize = 16;

/// Seconds of an hour in which a subject must have been tracked for the hour to be learnt.
const SECONDS_MIN: u32 = 3_240;

/// Load factor from which on a second shows what a subject usually uses.
const CLEAN_FACTOR_MIN: f64 = 0.95;

/// Sampled requests after which a profile is stored before one of its hours is known; about 1,000 requests.
const YOUNG_SCORE_MIN: u32 = 64;

/// Subject of a rule on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RuleKey {
    /// Serial of the windows of the rule.
    pub(super) serial: u64,
    pub(super) key: u64,
}

/// Name of a subject of a rule, the same on all nodes.
#[derive(Clone, Debug)]
pub(super) struct RuleSubject {
    pub(super) rule: Arc<str>,
    pub(super) level: LimitLevel,
    /// Name of the subject, as in `GET /v1/limits/{key}` after the level.
    pub(super) name: String,
}

/// Subject with its profile.
pub(super) struct BusyKey {
    pub(super) of: RuleKey,
    pub(super) subject: RuleSubject,
    /// Base of the rule.
    base: u32,
    /// Window of the rule, in ms.
    pub(super) window_ms: u32,
    /// Admitted requests that were sampled, halved each hour.
    score: u32,
    pub(super) profile: WeekProfile,
    meter: HourMeter,
    seconds: u32,
    /// Whether the store was read for this subject.
    pub(super) is_read: bool,
    /// Whether the store has a row of this subject.
    pub(super) is_stored: bool,
    /// Whether the profile is to be stored.
    pub(super) is_changed: bool,
    /// Whether the store had no space for it at the last attempt.
    pub(super) is_refused: bool,
    /// Hours that were learnt since the entry was made.
    pub(super) changes: u32,
}

/// What a subject did in the last second.
pub(super) struct KeySecond {
    pub(super) of: RuleKey,
    /// Most requests that counted at one time.
    pub(super) used: u32,
    /// Whether the rule refused a request of the subject that its history did not.
    pub(super) is_limited: bool,
}

/// Subjects that used most of dynamic rules recently.
pub(super) struct BusyKeys {
    entries: Vec<BusyKey>,
    positions: HashMap<RuleKey, usize>,
    /// Replaced subjects whose rows in the store no hour justifies, at most [`KEYS_MAX`]. The rows of further ones end by
    /// themselves.
    evicted: Vec<(RuleKey, RuleSubject)>,
    /// State of the random choices.
    random: u64,
}

/// Subject that has no entry yet.
pub(super) struct NewKey {
    pub(super) subject: RuleSubject,
    pub(super) base: u32,
    pub(super) window_ms: u32,
}

impl BusyKey {
    fn new(of: RuleKey, NewKey { subject, base, window_ms }: NewKey) -> Self {
        Self {
            of,
            subject,
            base,
            window_ms,
            score: 1,
            profile: WeekProfile::default(),
            meter: HourMeter::default(),
            seconds: 0,
            is_read: false,
            is_stored: false,
            is_changed: false,
            is_refused: false,
            changes: 0,
        }
    }

    /// Ends an hour: a subject that was tracked for nearly all of it learns it.
    fn end_hour(&mut self, hour: HourOfWeek) {
        // A profile that is still to be read would be lost.
        if self.seconds >= SECONDS_MIN && self.is_read {
            let before = self.profile.clone();
            self.profile.learn(hour, self.base, &mut self.meter);
            if self.profile != before {
                self.changes = self.changes.wrapping_add(1);
                self.is_changed |= self.is_stored || self.profile.is_known() || self.score >= YOUNG_SCORE_MIN;
            }
        }
        (self.meter, self.seconds) = (HourMeter::default(), 0);
        self.score /= 2;
    }
}

impl BusyKeys {
    /// Creates a table without subjects.
    pub(super) fn new(seed: u64) -> Self {
        Self { entries: Vec::new(), positions: HashMap::new(), evicted: Vec::new(), random: seed }
    }

    /// Counts a sampled request of a subject. While the table is full, a new subject wears down the least busy of a few, and
    /// takes its place once nothing is left. The busier that one is, the rarer it is worn down, so many subjects that come
    /// once replace none that is busy.
    pub(super) fn count(&mut self, of: RuleKey, new: impl FnOnce() -> Option<NewKey>) {
        if let Some(position) = self.positions.get(&of) {
            let score = &mut self.entries[*position].score;
            *score = score.saturating_add(1);
            return;
        }
        let Some(new) = new() else { return };
        let position = if self.entries.len() < KEYS_MAX {
            self.entries.push(BusyKey::new(of, new));
            self.entries.len() - 1
        } else {
            let Some(victim) = self.victim(new.subject.level) else { return };
            let score = self.entries[victim].score;
            if score > 0 {
                if self.draw().is_multiple_of(score.into()) {
                    self.entries[victim].score -= 1;
                }
                return;
            }
            let former = std::mem::replace(&mut self.entries[victim], BusyKey::new(of, new));
            self.positions.remove(&former.of);
            if former.is_stored && !former.profile.is_known() && self.evicted.len() < KEYS_MAX {
                self.evicted.push((former.of, former.subject));
            }
            victim
        };
        self.positions.insert(of, position);
        self.evicted.retain(|(evicted, _)| *evicted != of);
    }

    /// Returns the least busy of some random subjects that one of the level may replace. One that is to be stored is not
    /// replaced, so that what it learnt is not lost.
    fn victim(&mut self, level: LimitLevel) -> Option<usize> {
        let mut of_levels = [0_usize; LimitLevel::ALL.len()];
        for entry in &self.entries {
            of_levels[entry.subject.level as usize] += 1;
        }
        let mut least = None;
        for _ in 0..SAMPLE {
            let at = (self.draw() % self.entries.len().max(1) as u64) as usize;
            let entry = self.entries.get(at)?;
            let of_level = entry.subject.level;
            let is_kept = entry.is_changed && !entry.is_refused;
            let is_replaceable = of_level == level || of_levels[of_level as usize] > LEVEL_SHARE;
            if !is_kept && is_replaceable && least.is_none_or(|(_, score)| entry.score < score) {
                least = Some((at, entry.score));
            }
        }
        least.map(|(at, _)| at)
    }

    /// Returns the next number of a splitmix64 sequence.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random)
    }

    /// Removes the subjects of rules that are not in force any more.
    pub(super) fn retain(&mut self, is_in_force: impl Fn(u64) -> bool) {
        let before = self.entries.len();
        self.entries.retain(|entry| is_in_force(entry.of.serial));
        if self.entries.len() < before {
            self.positions = self.entries.iter().enumerate().map(|(at, entry)| (entry.of, at)).collect();
        }
    }

    /// Moves the subjects of a rule to its new windows, which have another base.
    pub(super) fn carry(&mut self, from: u64, to: u64, base: u32) {
        for (at, entry) in self.entries.iter_mut().enumerate().filter(|(_, entry)| entry.of.serial == from) {
            self.positions.remove(&entry.of);
            (entry.of.serial, entry.base) = (to, base);
            self.positions.insert(entry.of, at);
        }
    }

    /// Counts a second of each subject. `is_stormy` returns whether a conversation has a storm.
    pub(super) fn handle_second(
        &mut self,
        seconds: &[KeySecond],
        factor: f64,
        is_stormy: impl Fn(&str) -> bool,
    ) {
        for KeySecond { of, used, is_limited } in seconds {
            let Some(entry) = self.positions.get(of).and_then(|at| self.entries.get_mut(*at)) else {
                continue;
            };
            let RuleSubject { level, name, .. } = &entry.subject;
            let is_stormy = *level == LimitLevel::Conversation && is_stormy(name);
            let is_clean = factor >= CLEAN_FACTOR_MIN && !is_limited && !is_stormy;
            entry.seconds = entry.seconds.saturating_add(1);
            entry.meter.handle_window(*used, is_clean);
        }
    }

    /// Ends an hour of all subjects.
    pub(super) fn end_hour(&mut self, hour: HourOfWeek) {
        self.entries.iter_mut().for_each(|entry| entry.end_hour(hour));
    }

    /// Returns the entry of a subject.
    pub(super) fn get(&self, of: &RuleKey) -> Option<&BusyKey> {
        self.positions.get(of).and_then(|at| self.entries.get(*at))
    }

    /// Returns the entry of a subject, to change it.
    pub(super) fn get_mut(&mut self, of: &RuleKey) -> Option<&mut BusyKey> {
        self.positions.get(of).and_then(|at| self.entries.get_mut(*at))
    }

    /// Returns all entries.
    pub(super) fn all(&self) -> &[BusyKey] {
        &self.entries
    }

    /// Takes replaced subjects whose rows are to be removed from the store, at most `most`.
    pub(super) fn take_evicted(&mut self, most: usize) -> Vec<RuleSubject> {
        let taken = self.evicted.len().min(most);
        self.evicted.drain(..taken).map(|(_, subject)| subject).collect()
    }
}

/// Returns a hash of the number, as splitmix64 computes it.
pub(super) const fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: u64 = KEYS_MAX as u64;

    fn new(level: LimitLevel, key: u64) -> NewKey {
        let subject = RuleSubject { rule: "r".into(), level, name: format!("g:{key}") };
        NewKey { subject, base: 100, window_ms: 1_000 }
    }

    fn count(keys: &mut BusyKeys, level: LimitLevel, key: u64) {
        keys.count(RuleKey { serial: 1, key }, || Some(new(level, key)));
    }

    /// Table full of conversations, each with this score.
    fn full(score: u64) -> BusyKeys {
        let mut keys = BusyKeys::new(7);
        (0..score * BUSY).for_each(|n| count(&mut keys, LimitLevel::Conversation, n % BUSY));
        keys
    }

    fn has(keys: &BusyKeys, key: u64) -> bool {
        keys.get(&RuleKey { serial: 1, key }).is_some()
    }

    #[test]
    fn many_subjects_that_come_once_replace_none_that_is_busy() {
        let mut keys = full(24);
        (BUSY..5 * BUSY).for_each(|key| count(&mut keys, LimitLevel::Conversation, key));
        assert_eq!(keys.all().len(), KEYS_MAX);
        assert!((0..BUSY).all(|key| has(&keys, key)));
        // Subjects that were busy long ago are replaced by one that is busy.
        (0..5).for_each(|_| keys.end_hour(HourOfWeek::at(0)));
        (0..64).for_each(|_| count(&mut keys, LimitLevel::Conversation, BUSY));
        assert!(has(&keys, BUSY));
        assert_eq!((keys.all().len(), keys.positions.len()), (KEYS_MAX, KEYS_MAX));
        keys.retain(|serial| serial != 1);
        assert!(keys.all().is_empty());
    }

    #[test]
    fn requests_without_a_name_wear_no_subject_down() {
        let mut keys = full(2);
        (0..9_999).for_each(|key| keys.count(RuleKey { serial: 1, key: BUSY + key }, || None));
        assert!(keys.all().iter().all(|entry| entry.score == 2));
    }

    #[test]
    fn subjects_of_one_level_leave_a_share_to_the_others() {
        let mut keys = BusyKeys::new(7);
        let share = LEVEL_SHARE as u64;
        (0..share).for_each(|key| count(&mut keys, LimitLevel::Organisation, key));
        for _ in 0..99 {
            (BUSY..3 * BUSY).for_each(|key| count(&mut keys, LimitLevel::Conversation, key));
        }
        assert!((0..share).all(|key| has(&keys, key)), "not by conversations");
        (share..2 * share).for_each(|key| count(&mut keys, LimitLevel::Channel, key));
        let channels = keys.all().iter().filter(|it| it.subject.level == LimitLevel::Channel).count();
        assert!(channels > 0, "conversations have more than their share");
    }

    #[test]
    fn subject_to_be_stored_is_not_replaced() {
        let mut keys = full(1);
        keys.entries.iter_mut().for_each(|entry| entry.is_changed = entry.of.key < 9);
        (0..9).for_each(|key| keys.get_mut(&RuleKey { serial: 1, key }).unwrap().score = 0);
        let newcomers = |keys: &mut BusyKeys, from: u64| {
            (from..from + 40 * BUSY).for_each(|key| count(keys, LimitLevel::Conversation, key));
        };
        newcomers(&mut keys, BUSY);
        assert!((0..9).all(|key| has(&keys, key)));
        keys.entries.iter_mut().for_each(|entry| entry.is_refused = true);
        newcomers(&mut keys, 99 * BUSY);
        assert!((0..9).all(|key| !has(&keys, key)), "a full store keeps no subject here");
    }

    #[test]
    fn profile_of_a_quiet_subject_is_stored_once_an_hour_is_known() {
        for (score, stored) in [(YOUNG_SCORE_MIN - 1, [false, true]), (YOUNG_SCORE_MIN, [true, true])] {
            let mut keys = BusyKeys::new(7);
            let of = RuleKey { serial: 1, key: 0 };
            for is_stored in stored {
                (0..score).for_each(|_| count(&mut keys, LimitLevel::Conversation, 0));
                let entry = keys.get_mut(&of).unwrap();
                (entry.is_read, entry.score) = (true, score);
                for _ in 0..SECONDS_MIN {
                    keys.handle_second(&[KeySecond { of, used: 50, is_limited: false }], 1.0, |_| false);
                }
                keys.end_hour(HourOfWeek::at(0));
                assert_eq!(keys.get(&of).unwrap().is_changed, is_stored, "with {score} samples");
            }
        }
    }

    #[test]
    fn rows_of_replaced_subjects_are_removed_unless_an_hour_is_known() {
        let mut keys = full(1);
        keys.entries.iter_mut().for_each(|entry| (entry.score, entry.is_stored) = (0, entry.of.key < 2));
        for _ in 0..2 {
            let mut meter = HourMeter::default();
            meter.handle_window(50, true);
            let known = keys.get_mut(&RuleKey { serial: 1, key: 0 }).unwrap();
            known.profile.learn(HourOfWeek::at(0), 100, &mut meter);
        }
        (BUSY..99 * BUSY).for_each(|key| count(&mut keys, LimitLevel::Conversation, key));
        assert!(!has(&keys, 0) && !has(&keys, 1));
        let names = |subjects: Vec<RuleSubject>| subjects.into_iter().map(|it| it.name).collect::<Vec<_>>();
        assert_eq!(names(keys.take_evicted(9)), ["g:1"]);
        assert!(keys.take_evicted(9).is_empty());
    }
}
