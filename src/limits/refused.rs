//! Subjects that one rule refused, by name: how often since they are known, and within the last minute.
//!
//! The number of names is bounded. While it is full, a new subject replaces the one of a few that was refused least, so
//! the counts of a subject are never too high, and too low if it was forgotten meanwhile.

use std::collections::HashMap;

use tidegate_protocol::Time;

/// Most named subjects of a rule; about 150 bytes each.
const NAMES_MAX: usize = 256;

/// Subjects of which the least refused one is replaced.
const SAMPLE: usize = 16;

/// Parts of the last minute.
const PARTS: usize = 6;
const PART_MS: u64 = 10_000;

/// Refusals of one subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectRefusals {
    /// Name of the subject, as in `GET /v1/limits/{key}` after the level.
    pub name: String,
    /// Refusals since the subject is known.
    pub total: u64,
    /// Refusals within the last minute, counted by ten seconds.
    pub last_minute: u64,
}

/// Subjects that one rule refused.
#[derive(Default)]
pub(super) struct RefusedSubjects {
    entries: Vec<Entry>,
    /// Positions in `entries` by the keys of subjects.
    positions: HashMap<u64, usize>,
    /// Position from which the next subjects to replace are looked at.
    cursor: usize,
    /// Refusals of all subjects.
    all: MinuteCount,
}

struct Entry {
    key: u64,
    name: String,
    total: u64,
    minute: MinuteCount,
}

/// Count within the last minute.
#[derive(Clone, Copy, Default)]
struct MinuteCount {
    /// Number of the newest part.
    newest: u64,
    /// Counts of the newest part and of those before it, each at its number modulo their count.
    parts: [u64; PARTS],
}

impl MinuteCount {
    fn advance(&mut self, now: Time) {
        let part = now.as_millis() / PART_MS;
        let passed = part.saturating_sub(self.newest).min(PARTS as u64);
        for nth in 0..passed {
            self.parts[((part - nth) % PARTS as u64) as usize] = 0;
        }
        self.newest = self.newest.max(part);
    }

    fn add(&mut self, now: Time) {
        self.advance(now);
        self.parts[(self.newest % PARTS as u64) as usize] += 1;
    }

    fn get(mut self, now: Time) -> u64 {
        self.advance(now);
        self.parts.iter().sum()
    }
}

impl RefusedSubjects {
    /// Counts a refusal of the subject with the key; `name` is called for one that is not known yet.
    pub(super) fn count(&mut self, key: u64, now: Time, name: impl FnOnce() -> String) {
        self.all.add(now);
        let position = match self.positions.get(&key) {
            Some(position) => *position,
            None => self.insert(Entry { key, name: name(), total: 0, minute: MinuteCount::default() }, now),
        };
        let entry = &mut self.entries[position];
        entry.total += 1;
        entry.minute.add(now);
    }

    fn insert(&mut self, entry: Entry, now: Time) -> usize {
        let key = entry.key;
        let position = if self.entries.len() < NAMES_MAX {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let sample = (0..SAMPLE).map(|nth| (self.cursor + nth) % NAMES_MAX);
            let refusals = |at: &usize| (self.entries[*at].minute.get(now), self.entries[*at].total);
            let least = sample.min_by_key(refusals).unwrap_or(0);
            self.cursor = (self.cursor + SAMPLE) % NAMES_MAX;
            let former = std::mem::replace(&mut self.entries[least], entry);
            self.positions.remove(&former.key);
            least
        };
        self.positions.insert(key, position);
        position
    }

    /// Returns the refusals of the subject with the key.
    pub(super) fn of(&self, key: u64, now: Time) -> SubjectRefusals {
        let entry = self.positions.get(&key).map(|at| &self.entries[*at]);
        entry.map_or_else(SubjectRefusals::default, |entry| entry.refusals(now))
    }

    /// Returns the refusals of all subjects within the last minute.
    pub(super) fn last_minute(&self, now: Time) -> u64 {
        self.all.get(now)
    }

    /// Returns the refusals of all known subjects.
    pub(super) fn all(&self, now: Time) -> Vec<SubjectRefusals> {
        self.entries.iter().map(|entry| entry.refusals(now)).collect()
    }
}

impl Entry {
    fn refusals(&self, now: Time) -> SubjectRefusals {
        SubjectRefusals { name: self.name.clone(), total: self.total, last_minute: self.minute.get(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn minute_ends_part_by_part() {
        let mut count = MinuteCount::default();
        for ms in [1_000, 2_000, 12_000, 59_999] {
            count.add(at(ms));
        }
        let counts = [59_999, 60_000, 69_999, 70_000, 109_999, 110_000, 500_000].map(|ms| count.get(at(ms)));
        assert_eq!(counts, [4, 2, 2, 1, 1, 0, 0]);
        count.add(at(500_000));
        assert_eq!(count.get(at(500_000)), 1);
    }

    #[test]
    fn names_are_bounded_and_the_most_refused_subject_stays() {
        let mut refused = RefusedSubjects::default();
        for n in 0..5 * NAMES_MAX as u64 {
            refused.count(n + 1, at(n), || format!("u{n}"));
            refused.count(0, at(n), || "worst".to_owned());
        }
        let (now, all) = (at(5 * NAMES_MAX as u64), refused.all(at(0)));
        assert_eq!((all.len(), refused.positions.len()), (NAMES_MAX, NAMES_MAX));
        assert_eq!(
            refused.of(0, now),
            SubjectRefusals { name: "worst".into(), total: 1_280, last_minute: 1_280 }
        );
        assert_eq!(refused.of(1, now), SubjectRefusals::default(), "forgotten");
        assert_eq!(refused.last_minute(now), 2_560);
        for (key, at) in &refused.positions {
            assert_eq!(refused.entries[*at].key, *key);
        }
    }
}
