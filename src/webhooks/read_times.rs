//! Receive times of what a deliverer has read of a feed, for the age of the oldest event that was not taken.

use std::collections::VecDeque;

/// Most samples of a partition. When there are more, every second one is left out, and half as many are taken from then on.
const SAMPLES_MAX: usize = 128;

/// Entry of the feed.
#[derive(Clone, Copy, Debug)]
struct Sample {
    number: u64,
    time: u64,
}

/// Receive times of entries of one partition, in the order of their numbers. What a later page has before them is added; what it has
/// between them is left out, since an earlier time stands for it.
#[derive(Debug, Default)]
pub(super) struct ReadTimes {
    samples: VecDeque<Sample>,
    /// Least distance of the numbers of two samples.
    step: u64,
    /// Highest number that was read.
    end: u64,
}

impl ReadTimes {
    /// Notes the numbers and times of a page, and the newest number of the feed then. Entries that are read again change nothing.
    pub(super) fn note(&mut self, entries: impl Iterator<Item = (u64, u64)>, newest: u64) {
        // The store fell back to an older state.
        if self.end > newest {
            *self = Self::default();
        }
        let mut earlier = VecDeque::new();
        for (number, time) in entries {
            self.end = self.end.max(number);
            // A lane whose cursor is lower reads what was not read before.
            if self.samples.front().is_some_and(|first| number < first.number) {
                earlier.push_back(Sample { number, time });
                continue;
            }
            if self.samples.back().is_some_and(|last| number < last.number.saturating_add(self.step.max(1))) {
                continue;
            }
            self.samples.push_back(Sample { number, time });
            self.thin_out();
        }
        earlier.append(&mut self.samples);
        self.samples = earlier;
        self.thin_out();
    }

    fn thin_out(&mut self) {
        while self.samples.len() > SAMPLES_MAX {
            self.step = self.step.max(1).saturating_mul(2);
            let mut nth = 0_usize;
            self.samples.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
        }
    }

    /// Returns the time of the first entry after this number, or a little earlier; `None` if none after it was read.
    pub(super) fn oldest(&mut self, done: u64) -> Option<u64> {
        if self.end <= done {
            self.samples.clear();
            self.step = 1;
        }
        while self.samples.get(1).is_some_and(|second| second.number <= done.saturating_add(1)) {
            self.samples.pop_front();
        }
        self.samples.front().map(|first| first.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_is_the_first_that_was_not_taken_and_never_a_later_one() {
        let mut times = ReadTimes::default();
        assert_eq!(times.oldest(0), None);
        times.note((1..=10).map(|number| (number, number * 100)), 10);
        assert_eq!((times.oldest(0), times.oldest(3), times.oldest(10)), (Some(100), Some(400), None));
        times.note((11..=1_010).map(|number| (number, number * 100)), 1_010);
        assert!(times.samples.len() <= SAMPLES_MAX);
        for done in (10..1_000).step_by(7) {
            let found = times.oldest(done).unwrap();
            assert!((done.saturating_sub(32) * 100..=(done + 1) * 100).contains(&found), "{done}: {found}");
        }
        times.note([(500, 7)].into_iter(), 500);
        assert_eq!(times.oldest(499), Some(7), "the store fell back");
    }
    #[test]
    fn entries_before_those_that_were_read_count_too() {
        let mut times = ReadTimes::default();
        times.note((1_000..=1_511).map(|number| (number, number * 100)), 1_511);
        assert_eq!(times.oldest(0), Some(100_000));
        times.note((1..=512).map(|number| (number, number * 100)), 1_511);
        assert!(times.samples.len() <= SAMPLES_MAX);
        assert_eq!(times.oldest(0), Some(100), "of the lane that is behind");
        for done in (0..1_500).step_by(7) {
            let found = times.oldest(done).unwrap();
            assert!(found <= (done + 1) * 100, "{done}: {found}");
        }
        assert_eq!(times.oldest(1_511), None);
    }
}
