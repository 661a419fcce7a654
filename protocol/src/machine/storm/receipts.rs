//! Window of accepted messages by receive time and by the owner's time, in runs.

use super::RECEIVE_SKEW_MS;
use std::collections::VecDeque;

/// Runs of a window; further messages are counted at a lower precision.
pub const STORM_RUNS_MAX: usize = 4_096;

/// Parts of a window; at the lower precision, messages within one of them share a run.
const PARTS: u64 = 1_024;

/// Fewest parts, for messages whose receive times are far from the owner's time.
const PARTS_MIN: u64 = 64;

/// Runs that must be left after the precision was lowered, or it is lowered further.
const COARSENED_MAX: usize = STORM_RUNS_MAX / 4 * 3;

/// Number of newest runs that a message may join. Receive times of several nodes alternate.
const JOINABLE: usize = 64;

/// Runs below which a window returns to the precision of a millisecond.
const EXACT_BELOW: usize = STORM_RUNS_MAX / 8;

/// Messages of the same times, which are rounded down at the lower precision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipts {
    /// Receive time, in ms of the wall clock.
    pub(super) received: u64,
    /// Owner's time, in ms; the lower 32 bits.
    decided: u32,
    pub(super) count: u32,
}

/// Accepted messages of a group within the last window by the owner's time, in the order of their acceptance.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceiptWindow {
    runs: VecDeque<Receipts>,
    total: u32,
    /// Multiple to which times are rounded down; 0 for the precision of a millisecond.
    round_ms: u32,
    newest_decided: i64,
    /// Latest receive time of any run.
    latest_received: u64,
    /// Longest time by which a run was received before an earlier one.
    disorder_ms: u64,
}

impl ReceiptWindow {
    /// Drops the runs that are not within the window before `now`.
    pub(super) fn expire(&mut self, window_ms: u64, now: i64) {
        let now = now.max(self.newest_decided);
        if self.runs.is_empty() || now.abs_diff(self.newest_decided) >= window_ms {
            *self = Self::default();
            return;
        }
        // The oldest run was within the window of the newest, so its age is below two windows and fits.
        while let Some(oldest) = self.runs.front()
            && u64::from((now as u32).wrapping_sub(oldest.decided)) >= window_ms
        {
            self.pop();
        }
        if self.runs.len() < EXACT_BELOW {
            self.round_ms = 0;
        }
        if self.runs.capacity() > 64 && self.runs.len() < self.runs.capacity() / 8 {
            self.runs.shrink_to(self.runs.len() * 2);
        }
    }

    /// Returns the number of messages within the window by the owner's time alone; never less than [`Self::count`].
    pub(super) const fn total(&self) -> u32 {
        self.total
    }

    /// Returns the number of messages that were received within the window before `received`, or shortly after it.
    pub(super) fn count(&self, window_ms: u64, received: u64) -> u32 {
        self.within(window_ms, received).fold(0, |sum, run| sum.saturating_add(run.count))
    }

    /// Returns the runs that [`Self::count`] counts, newest first.
    pub(super) fn within(&self, window_ms: u64, received: u64) -> impl Iterator<Item = &Receipts> {
        let latest = received.saturating_add(RECEIVE_SKEW_MS);
        let stop = received.saturating_sub(self.disorder_ms);
        self.runs
            .iter()
            .rev()
            // No earlier run was received later than this one by more than the disorder.
            .take_while(move |run| stop.saturating_sub(run.received) < window_ms)
            .filter(move |run| run.received <= latest && received.saturating_sub(run.received) < window_ms)
    }

    /// Adds a message. Call [`Self::expire`] first.
    pub(super) fn push(&mut self, window_ms: u64, received: u64, decided: i64) {
        let decided = if self.runs.is_empty() { decided } else { decided.max(self.newest_decided) };
        self.newest_decided = decided;
        self.total = self.total.saturating_add(1);
        let one = Receipts { received, decided: decided as u32, count: 1 };
        self.add(one);
        if self.runs.len() > STORM_RUNS_MAX {
            self.coarsen(window_ms);
        }
        // Messages of an outage may be from any time: the oldest by the owner's time are forgotten.
        while self.runs.len() > STORM_RUNS_MAX {
            self.pop();
        }
    }

    /// Returns the owner's time of the newest message, `None` if there is none.
    pub(super) fn newest_decided(&self) -> Option<i64> {
        (!self.runs.is_empty()).then_some(self.newest_decided)
    }

    /// Returns the bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Receipts>()
    }

    fn pop(&mut self) {
        if let Some(run) = self.runs.pop_front() {
            self.total = self.total.saturating_sub(run.count);
        }
    }

    /// Adds the messages to the run of their times, or a new run.
    fn add(&mut self, run: Receipts) {
        let round = self.round_ms.max(1);
        let received = run.received - run.received % u64::from(round);
        let decided = run.decided - run.decided % round;
        let mut newest = self.runs.iter_mut().rev().take(JOINABLE).take_while(|it| it.decided == decided);
        if let Some(same) = newest.find(|it| it.received == received) {
            same.count = same.count.saturating_add(run.count);
            return;
        }
        self.disorder_ms = self.disorder_ms.max(self.latest_received.saturating_sub(received));
        self.latest_received = self.latest_received.max(received);
        self.runs.push_back(Receipts { received, decided, count: run.count });
    }

    /// Lowers the precision until enough runs were merged, or it is the lowest.
    fn coarsen(&mut self, window_ms: u64) {
        let part = |parts| u32::try_from(window_ms / parts).unwrap_or(u32::MAX).max(1);
        while self.runs.len() > COARSENED_MAX && self.round_ms.saturating_mul(2) <= part(PARTS_MIN) {
            self.round_ms = if self.round_ms == 0 { part(PARTS) } else { self.round_ms.saturating_mul(2) };
            self.latest_received = 0;
            self.disorder_ms = 0;
            for run in std::mem::take(&mut self.runs) {
                self.add(run);
            }
        }
    }
}
