//! Numbers that a feed no longer has, as its lanes find them one by one.

use std::ops::RangeInclusive;

/// Most ranges that are kept. Of more, the lowest is forgotten, whose numbers then count once more if a lane finds them.
const RANGES_MAX: usize = 16;

/// Missing numbers of one feed, each counted once: a lane that is behind finds a hole that begins lower than the one that a
/// lane before it has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingNumbers {
    /// Rising ranges that do not touch each other.
    ranges: Vec<RangeInclusive<u64>>,
}

impl MissingNumbers {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Adds a range, and returns how many of its numbers are new.
    pub fn note(&mut self, numbers: &RangeInclusive<u64>) -> u64 {
        if numbers.is_empty() {
            return 0;
        }
        let (first, last) = (*numbers.start(), *numbers.end());
        let mut merged = numbers.clone();
        let mut count = length(first, last);
        self.ranges.retain(|it| {
            let is_apart = it.end().saturating_add(1) < first || last.saturating_add(1) < *it.start();
            if !is_apart {
                count -= length(first.max(*it.start()), last.min(*it.end()));
                merged = *merged.start().min(it.start())..=*merged.end().max(it.end());
            }
            is_apart
        });
        let at = self.ranges.partition_point(|it| it.end() < merged.start());
        self.ranges.insert(at, merged);
        if self.ranges.len() > RANGES_MAX {
            self.ranges.remove(0);
        }
        count
    }

    /// Forgets what is above a number: the feed begins again behind it, with other events.
    pub fn forget_above(&mut self, number: u64) {
        self.ranges.retain(|it| *it.start() <= number);
        if let Some(last) = self.ranges.last_mut() {
            *last = *last.start()..=*last.end().min(&number);
        }
    }
}

/// Returns how many numbers a range has.
const fn length(first: u64, last: u64) -> u64 {
    last.saturating_add(1).saturating_sub(first)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_bounded_and_the_lowest_is_forgotten() {
        let mut missing = MissingNumbers::new();
        for nth in 0..=RANGES_MAX as u64 {
            assert_eq!(missing.note(&(10 * nth..=10 * nth + 4)), 5);
        }
        assert_eq!(
            (missing.ranges.len(), missing.note(&(10..=14)), missing.note(&(0..=4))),
            (RANGES_MAX, 0, 5)
        );
        assert_eq!(missing.note(&(0..=u64::MAX)), u64::MAX - 16 * 5);
    }

    proptest! {
        #[test]
        fn numbers_count_as_in_a_plain_set(steps in proptest::collection::vec((0..60_u64, 0..20_u64, any::<bool>()), 1..12)) {
            let (mut missing, mut model) = (MissingNumbers::new(), BTreeSet::new());
            for (first, more, is_fall_back) in steps {
                if is_fall_back && more > 10 {
                    missing.forget_above(first);
                    model.retain(|number| *number <= first);
                }
                let new = (first..=first + more).filter(|number| model.insert(*number)).count() as u64;
                prop_assert_eq!(missing.note(&(first..=first + more)), new);
            }
        }
    }
}
