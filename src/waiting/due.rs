//! When entries of the feed are due: a delay after their receive time, and at the latest a delay after they were first seen,
//! so that clocks of nodes that differ delay no notice for longer.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tidegate_protocol::Time;

use crate::{clock::Now, store::FeedEntry};

/// Parts of the delay in which a partition notes at most one number.
const MARKS_PER_DELAY: u32 = 64;

/// Newest numbers of each partition, and when they were first seen.
#[derive(Debug, Default)]
pub(super) struct DueTimes {
    marks: BTreeMap<u32, VecDeque<SeenMark>>,
}

/// All entries up to a number, which exist since a time at the latest.
#[derive(Debug)]
struct SeenMark {
    newest: u64,
    at: Time,
}

impl DueTimes {
    /// Notes what a read behind the number `after` has found.
    pub(super) fn see(&mut self, partition: u32, after: u64, newest: u64, delay: Duration, now: Time) {
        let marks = self.marks.entry(partition).or_default();
        while marks.front().is_some_and(|mark| mark.newest <= after) {
            marks.pop_front();
        }
        let next_at = |mark: &SeenMark| mark.at + delay / MARKS_PER_DELAY;
        if marks.back().is_none_or(|last| newest > last.newest && now >= next_at(last)) {
            marks.push_back(SeenMark { newest, at: now });
        }
    }

    /// Returns when an entry is due.
    pub(super) fn of(&self, partition: u32, entry: &FeedEntry, delay: Duration, now: Now) -> Time {
        let age = Duration::from_millis(now.wall_ms.saturating_sub(entry.time));
        let due = now.at + delay.saturating_sub(age);
        let marks = self.marks.get(&partition);
        let seen = marks.and_then(|marks| marks.iter().find(|mark| mark.newest >= entry.number));
        seen.map_or(due, |mark| due.min(mark.at + delay))
    }

    /// Forgets a partition.
    pub(super) fn forget(&mut self, partition: u32) {
        self.marks.remove(&partition);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::ConversationId;

    use super::*;
    use crate::store::FeedKind;

    const DELAY: Duration = Duration::from_secs(5);

    fn entry(number: u64, time: u64) -> FeedEntry {
        let conversation = ConversationId::parse("g:a").unwrap();
        FeedEntry { number, conversation, seq: number, kind: FeedKind::Message, time }
    }

    #[test]
    fn clock_that_differs_delays_an_entry_by_at_most_the_delay() {
        let mut due = DueTimes::default();
        let at = Time::from_millis;
        let of = |due: &DueTimes, entry: &FeedEntry, now, wall_ms| {
            due.of(0, entry, DELAY, Now { at: at(now), wall_ms }).as_millis()
        };
        due.see(0, 0, 1, DELAY, at(0));
        assert_eq!(of(&due, &entry(1, 100_000), 0, 102_000), 3_000, "a delay after its time");
        assert_eq!(of(&due, &entry(1, 100_000), 4_000, 106_000), 4_000, "it is due");
        // Of a clock that is ahead.
        due.see(0, 1, 3, DELAY, at(10_000));
        due.see(0, 1, 4, DELAY, at(12_000));
        for (number, expected) in [(2, 15_000), (3, 15_000), (4, 17_000)] {
            assert_eq!(of(&due, &entry(number, 900_000), 14_000, 104_000), expected, "{number}");
        }
        assert_eq!(of(&due, &entry(5, 900_000), 14_000, 104_000), 19_000, "it is seen now");
    }

    #[test]
    fn number_of_marks_is_bounded_and_passed_ones_are_forgotten() {
        let mut due = DueTimes::default();
        for now in 0..10_000_u64 {
            let after = now.saturating_sub(5_100);
            due.see(0, after, now, DELAY, Time::from_millis(now));
        }
        assert!(due.marks[&0].len() <= MARKS_PER_DELAY as usize + 2, "{}", due.marks[&0].len());
        due.forget(0);
        assert!(due.marks.is_empty());
    }
}
