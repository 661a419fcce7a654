//! Rate limits: a log of admitted hits in runs, a bounded table of such logs by key, and a bounded set of recent keys.
//!
//! **Never over.** A hit at `h` lies in a run whose last hit is not before `h`, and a run counts until its last hit is
//! older than the window. So at most [`RateLimit::count`] hits are admitted in any window, whatever the arrivals.
//!
//! **Never late by more than the merge time.** Hits within a sixteenth of the window share a run, so a refusal is
//! justified by `count` hits within the window and a sixteenth of it. Limits of at most 16 hits merge only hits of the
//! same millisecond, and are exact.
//!
//! **Bounded.** Runs begin at least a merge time apart, so a log has at most [`RUNS_MAX`] of them.

mod recent;
mod table;

pub use self::{recent::RecentKeys, table::RateTable};

use crate::Time;
use std::time::Duration;

/// Maximum number of runs of a log.
pub const RUNS_MAX: usize = 18;

/// Largest limit whose log merges only hits of the same millisecond.
const EXACT_MAX: u32 = 16;

/// Parts of a window; hits within one of them share a run.
const PARTS: u64 = 16;

/// Limit of a rate: a number of hits in any window of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    count: u32,
    window_ms: u64,
    merge_ms: u64,
}

impl RateLimit {
    /// Creates a limit of `count` hits, at least 1, in any `window`, at least 1 ms.
    pub fn new(count: u32, window: Duration) -> Self {
        let count = count.max(1);
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX).max(1);
        let merge_ms = if count > EXACT_MAX { window_ms.div_ceil(PARTS).min(u32::MAX.into()) } else { 0 };
        Self { count, window_ms, merge_ms }
    }

    /// Returns the number of hits that are admitted in a window.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the longest time by which a hit may count beyond the window.
    pub const fn late_max(&self) -> Duration {
        Duration::from_millis(self.merge_ms)
    }

    const fn has_expired(&self, run: Run, now: u64) -> bool {
        run.last().saturating_add(self.window_ms) < now
    }
}

/// Admitted hits that count until the last of them has expired.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Time of the first hit, in ms.
    first: u64,
    /// Time from the first hit to the last, in ms.
    span: u32,
    /// Number of hits; 0 only in an empty log.
    count: u32,
}

impl Run {
    const fn last(self) -> u64 {
        self.first.saturating_add(self.span as u64)
    }
}

/// Hits of one key that still count, in runs.
///
/// Times may go back by a little, as those of several threads do: a hit counts as of the newest time that the log has
/// seen, so such a step makes a wait longer and never admits more.
#[derive(Clone, Debug, Default)]
pub struct RateLog {
    newest: Run,
    /// Earlier runs, oldest first.
    older: Vec<Run>,
    /// Hits of all runs.
    total: u32,
}

impl RateLog {
    /// Returns whether a hit is admitted now.
    ///
    /// # Errors
    /// The limit is reached; the error is the earliest time at which a hit is admitted if no other one is before.
    pub fn check(&mut self, limit: &RateLimit, now: Time) -> Result<(), Time> {
        self.expire(limit, now);
        let mut left = self.total;
        if left < limit.count {
            return Ok(());
        }
        let mut free_at = 0;
        for run in self.older.iter().chain([&self.newest]) {
            left = left.saturating_sub(run.count);
            free_at = run.last().saturating_add(limit.window_ms).saturating_add(1);
            if left < limit.count {
                break;
            }
        }
        Err(Time::from_millis(free_at))
    }

    /// Counts a hit, which [`Self::check`] has admitted.
    pub fn commit(&mut self, limit: &RateLimit, now: Time) {
        let now = now.as_millis().max(self.newest.last());
        self.total = self.total.saturating_add(1);
        let newest = &mut self.newest;
        let since = now.saturating_sub(newest.first);
        if newest.count > 0 && (since == 0 || since < limit.merge_ms) {
            // Shorter than the merge time, which fits.
            newest.span = u32::try_from(since).unwrap_or(u32::MAX);
            newest.count = newest.count.saturating_add(1);
            return;
        }
        let before = std::mem::replace(newest, Run { first: now, span: 0, count: 1 });
        if before.count > 0 {
            if self.older.len() == self.older.capacity() {
                self.older.reserve_exact(4);
            }
            self.older.push(before);
        }
    }

    /// Returns the number of hits that count now.
    pub fn used(&mut self, limit: &RateLimit, now: Time) -> u32 {
        self.expire(limit, now);
        self.total
    }

    /// Returns the number of runs, at most [`RUNS_MAX`].
    pub fn runs(&self) -> usize {
        self.older.len() + usize::from(self.newest.count > 0)
    }

    /// Returns the bytes on the heap.
    fn heap_bytes(&self) -> usize {
        self.older.capacity() * size_of::<Run>()
    }

    fn expire(&mut self, limit: &RateLimit, now: Time) {
        let now = now.as_millis();
        if limit.has_expired(self.newest, now) {
            *self = Self::default();
            return;
        }
        let expired = self.older.iter().take_while(|run| limit.has_expired(**run, now)).count();
        for run in self.older.drain(..expired) {
            self.total = self.total.saturating_sub(run.count);
        }
    }
}
