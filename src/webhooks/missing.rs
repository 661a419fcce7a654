//! Events that feeds no longer had when a consumer came to them.

use std::{collections::BTreeMap, ops::RangeInclusive};

use tidegate_protocol::machine::webhook::MissingNumbers;

/// Numbers that a feed no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedGap {
    /// Partition.
    pub partition: u32,
    /// First number.
    pub first: u64,
    /// Last number.
    pub last: u64,
    /// Time at which the consumer came to them, in ms since 1970.
    pub found_ms: u64,
}

/// Count of the missing events of a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingCount {
    /// Number of events, of all types and conversations.
    pub count: u64,
    /// Newest gap with events that were not counted before.
    pub last: Option<FeedGap>,
}

/// Missing events of a consumer, each counted once: lanes at different cursors find the same ones.
#[derive(Debug, Default)]
pub(super) struct MissingEvents {
    /// Numbers that were counted, by partition.
    numbers: BTreeMap<u32, MissingNumbers>,
    /// Their count.
    pub(super) shown: MissingCount,
}

impl MissingEvents {
    /// Counts the numbers of a gap that are new.
    pub(super) fn note(&mut self, partition: u32, numbers: &RangeInclusive<u64>, found_ms: u64) {
        let count = self.numbers.entry(partition).or_default().note(numbers);
        if count > 0 {
            let (first, last) = (*numbers.start(), *numbers.end());
            self.shown.count = self.shown.count.saturating_add(count);
            self.shown.last = Some(FeedGap { partition, first, last, found_ms });
        }
    }

    /// Notes the newest number of a feed. Above it come other events, if the store fell back.
    pub(super) fn note_newest(&mut self, partition: u32, newest: u64) {
        if let Some(numbers) = self.numbers.get_mut(&partition) {
            numbers.forget_above(newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes a gap of a partition, and returns the count of all.
    fn count_with(missing: &mut MissingEvents, partition: u32, numbers: RangeInclusive<u64>) -> u64 {
        missing.note(partition, &numbers, 9);
        missing.shown.count
    }

    #[test]
    fn gap_that_several_lanes_find_counts_once() {
        let mut missing = MissingEvents::default();
        let gaps = [(0, 1..=10), (0, 1..=10), (0, 5..=12), (1, 1..=3)];
        let counts = gaps.map(|(partition, numbers)| count_with(&mut missing, partition, numbers));
        assert_eq!(counts, [10, 10, 12, 15]);
        assert_eq!(missing.shown.last, Some(FeedGap { partition: 1, first: 1, last: 3, found_ms: 9 }));
    }

    #[test]
    fn gap_that_begins_lower_or_follows_a_fallback_of_the_store_counts_what_is_new() {
        let mut missing = MissingEvents::default();
        let counts = [51..=99, 11..=99].map(|numbers| count_with(&mut missing, 0, numbers));
        assert_eq!(counts, [49, 89]);
        assert_eq!(missing.shown.last, Some(FeedGap { partition: 0, first: 11, last: 99, found_ms: 9 }));
        missing.note_newest(1, 5);
        assert_eq!(count_with(&mut missing, 0, 11..=99), 89);
        missing.note_newest(0, 40);
        assert_eq!(count_with(&mut missing, 0, 31..=60), 109, "those above 40 are other events");
    }
}
