//! Health of an endpoint on a node: whether nothing succeeds, when it is probed, and the delays of retries.

use std::time::Duration;

use crate::Time;

/// Failures in a row, of any lanes, from which an endpoint may count as failing.
pub const FAILING_AFTER: u32 = 3;

/// First and longest upper bound of the delay of a retry.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// Shortest delay of a retry, so that a failing request is never repeated in a loop.
const BACKOFF_FLOOR: Duration = Duration::from_millis(10);

/// Longest time between two successes that counts as time in which the endpoint works: what was between them is not known.
/// It is the longest delay between two tries of a parked event.
const WORKING_GAP_MAX: Duration = BACKOFF_MAX;

/// Longest wait that an answer may ask for.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// Health of an endpoint.
#[derive(Debug)]
pub(super) struct Health {
    /// Requests that succeeded.
    pub(super) successes: u64,
    /// Time in which requests succeeded.
    pub(super) working: Duration,
    last_success: Option<Time>,
    /// Failures since the last success.
    pub(super) in_row: u32,
    failing: Option<Failing>,
    /// State of the random numbers for the jitter.
    random: u64,
}

/// Successes of an endpoint at some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct HealthMark {
    /// Requests that succeeded.
    pub(super) successes: u64,
    /// Time in which requests succeeded.
    pub(super) working: Duration,
}

#[derive(Debug)]
struct Failing {
    probe_at: Time,
    tries: u32,
    is_probing: bool,
}

impl Health {
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            successes: 0,
            working: Duration::ZERO,
            last_success: None,
            in_row: 0,
            failing: None,
            random: seed,
        }
    }

    pub(super) const fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// Notes a success. Returns whether it ended a failing state.
    pub(super) fn succeed(&mut self, now: Time) -> bool {
        self.successes += 1;
        let since = self.last_success.replace(now).map_or(Duration::ZERO, |last| now.since(last));
        self.working = self.working.saturating_add(since.min(WORKING_GAP_MAX));
        self.in_row = 0;
        self.failing.take().is_some()
    }

    pub(super) const fn fail(&mut self) {
        self.in_row = self.in_row.saturating_add(1);
    }

    /// Begins the failing state.
    pub(super) fn begin_failing(&mut self, now: Time) {
        let probe_at = now + self.backoff(1);
        self.failing = Some(Failing { probe_at, tries: 1, is_probing: false });
    }

    /// Returns when the next probe may be sent; `None` if none may.
    pub(super) fn probe_at(&self) -> Option<Time> {
        self.failing.as_ref().filter(|it| !it.is_probing).map(|it| it.probe_at)
    }

    /// Begins a probe, and returns its number from 0.
    pub(super) fn begin_probe(&mut self) -> usize {
        let Some(failing) = &mut self.failing else { return 0 };
        failing.is_probing = true;
        usize::try_from(failing.tries.saturating_sub(1)).unwrap_or(0)
    }

    /// Schedules the next probe.
    pub(super) const fn postpone_probe(&mut self, probe_at: Time) {
        if let Some(failing) = &mut self.failing {
            failing.probe_at = probe_at;
        }
    }

    /// Returns the successes until now.
    pub(super) const fn mark(&self) -> HealthMark {
        HealthMark { successes: self.successes, working: self.working }
    }

    /// Schedules a probe in place of the last one, which said nothing.
    pub(super) const fn repeat_probe(&mut self, now: Time) {
        if let Some(failing) = &mut self.failing {
            (failing.probe_at, failing.tries) = (now, failing.tries.saturating_sub(1));
        }
    }

    /// Ends a probe that did not succeed.
    pub(super) fn end_probe(&mut self, now: Time) {
        let tries = self.failing.as_ref().map_or(0, |it| it.tries.saturating_add(1));
        let probe_at = now + self.backoff(tries);
        if let Some(failing) = &mut self.failing {
            *failing = Failing { probe_at, tries, is_probing: false };
        }
    }

    /// Returns a random delay after so many failures: at most 1, 2, 4 … 300 s.
    pub(super) fn backoff(&mut self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let longest = BACKOFF_MIN.saturating_mul(factor).min(BACKOFF_MAX);
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let part = (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64;
        longest.mul_f64(part).max(BACKOFF_FLOOR)
    }
}
