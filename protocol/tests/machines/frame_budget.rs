//! Tests of the frame budget: by example, and any arrivals against the promised bounds.

use proptest::prelude::*;
use std::time::Duration;
use tidegate_protocol::{
    Time,
    machine::frame_budget::{BURST, FrameBudget, FrameVerdict, PATIENCE},
};

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Budget with its driver: reads while it may, and handles the timeout on time.
struct Reader {
    budget: FrameBudget,
    per_second: u32,
    /// Times of the frames read.
    read: Vec<u64>,
    persists_at: Option<u64>,
}

impl Reader {
    fn new(per_second: u32) -> Self {
        Self { budget: FrameBudget::default(), per_second, read: Vec::new(), persists_at: None }
    }

    /// Reads up to `waiting` frames, and returns how many are left.
    fn read(&mut self, mut waiting: usize, ms: u64) -> usize {
        while waiting > 0 && !self.budget.is_spent() {
            self.budget.take(self.per_second, at(ms));
            self.read.push(ms);
            waiting -= 1;
        }
        waiting
    }

    fn pass(&mut self, ms: u64) {
        if self.budget.poll_timeout(self.per_second).is_some_and(|due| due <= at(ms)) {
            let verdict = self.budget.handle_timeout(self.per_second, at(ms));
            assert!(!self.budget.is_spent(), "refilled");
            if verdict == FrameVerdict::Persists {
                self.persists_at.get_or_insert(ms);
            }
        }
    }
}

#[test]
fn x9_flood_is_read_at_the_rate_and_persists_after_the_patience() {
    let mut reader = Reader::new(500);
    for ms in 0..12_000 {
        reader.pass(ms);
        reader.read(1_000_000, ms);
    }
    let of_burst = reader.read.iter().filter(|ms| **ms == 0).count();
    assert_eq!(of_burst, 2_000);
    let expected = 2_000 + 12 * 500;
    assert!((expected - 50..=expected).contains(&reader.read.len()), "{}", reader.read.len());
    let persists_at = reader.persists_at.expect("it persists");
    assert!((10_000..10_300).contains(&persists_at), "{persists_at} ms");
}

#[test]
fn x9_client_that_gives_the_budget_time_to_refill_half_does_not_persist() {
    let mut reader = Reader::new(500);
    let mut waiting = 0;
    for ms in 0..120_000 {
        // A burst and a half, again and again.
        waiting += if ms % 8_000 == 0 { 3_000 } else { 0 };
        reader.pass(ms);
        waiting = reader.read(waiting, ms);
    }
    assert_eq!((waiting, reader.read.len()), (0, 45_000));
    assert_eq!(reader.persists_at, None);
}

#[test]
fn frames_given_back_do_not_count() {
    let mut budget = FrameBudget::default();
    for _ in 0..1_000 {
        budget.take(1, at(5));
        budget.give_back(1);
    }
    (0..3).for_each(|_| budget.take(1, at(5)));
    assert!(!budget.is_spent());
    budget.take(1, at(5));
    assert!(budget.is_spent());
    budget.give_back(1);
    assert!(!budget.is_spent() && budget.poll_timeout(1).is_none());
}

#[test]
fn no_limit_counts_nothing() {
    let mut reader = Reader::new(0);
    assert_eq!(reader.read(100_000, 1), 0);
    assert_eq!(reader.budget.poll_timeout(0), None);
}

proptest! {
    #[test]
    fn x9_no_window_has_more_frames_than_its_time_and_the_burst(
        per_second in prop_oneof![1..20_u32, 1..2_000_u32],
        arrivals in proptest::collection::vec((0..3_000_u64, 0..400_usize), 1..60),
        clock_steps_back in 0..3_u64,
    ) {
        let mut reader = Reader::new(per_second);
        let (mut ms, mut waiting) = (0, 0);
        for (gap, frames) in arrivals {
            let until = ms + gap;
            while ms < until {
                let due = reader.budget.poll_timeout(per_second).map_or(until, Time::as_millis);
                ms = due.clamp(ms + 1, until.max(ms + 1));
                reader.pass(ms);
                waiting = reader.read(waiting, ms);
            }
            // A turn of another time, as of a frozen shard, must not add capacity.
            waiting = reader.read(waiting + frames, ms.saturating_sub(clock_steps_back));
            if let Some(due) = reader.budget.poll_timeout(per_second) {
                // The time of a tenth of a second or of one frame, and what the last frame took too much.
                let frame_ms = 1_000 / u64::from(per_second) + 1;
                let longest = Duration::from_millis(100.max(frame_ms) + frame_ms);
                prop_assert!(due.since(at(ms)) <= longest, "reading resumes soon");
            } else {
                prop_assert_eq!(waiting, 0);
            }
        }
        let burst = BURST.as_secs() * u64::from(per_second);
        for (first, from) in reader.read.iter().enumerate() {
            for (last, to) in reader.read.iter().enumerate().skip(first).step_by(7) {
                let frames = (last - first + 1) as u64;
                let refilled = (to.saturating_sub(*from) + clock_steps_back) * u64::from(per_second) / 1_000;
                prop_assert!(frames <= burst + refilled + 1, "{frames} frames from {from} to {to} ms");
            }
        }
        if let Some(at) = reader.persists_at {
            prop_assert!(u128::from(at) >= PATIENCE.as_millis());
        }
    }

    #[test]
    fn x9_client_within_the_rate_is_never_paused(
        per_second in 1..2_000_u32,
        extra in proptest::collection::vec(0..50_u64, 1..300),
    ) {
        let mut reader = Reader::new(per_second);
        let mut ms = 0;
        for gap in extra {
            ms += 1_000_u64.div_ceil(per_second.into()) + gap;
            prop_assert_eq!(reader.read(1, ms), 0);
            prop_assert!(!reader.budget.is_spent());
        }
    }
}
