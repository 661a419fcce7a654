//! Rate limits: a log of admitted hits in runs, a bounded table of such logs by key, and a bounded set of recent keys.
//!
//! **Never over.** A hit at `h` lies in a run whose last hit is not before `h`, and a run counts until its last hit is
//! older than the window. So at most [`RateLimit::count`] hits are admitted in any window, whatever the arrivals.
//!
//! **Never late by more than the merge time.** Hits within a sixteenth of the window share a run, so a refusal is
//! justified by `count` hits within the window and a sixteenth of it. Limits of at most 16 hits merge only hits of the
//! same millisecond, and are exact.
//!
//! **Bounded.** Runs begin at least a merge time apart, so a log has at most [`RUNS_MAX`] of them. After a change of the
//! limit the closest runs are merged to keep that bound. Five runs fit into the entry of a table, which is 64 bytes.

mod log;
mod recent;
mod table;

pub use self::{
    log::{RUNS_MAX, RateLog},
    recent::RecentKeys,
    table::{RateSlot, RateTable},
};

use std::time::Duration;

/// Longest window, about 24 days; a longer one is cut to it.
pub const WINDOW_MAX: Duration = Duration::from_millis(1 << 31);

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
    /// Creates a limit of `count` hits, at least 1, in any `window`, 1 ms to [`WINDOW_MAX`].
    pub fn new(count: u32, window: Duration) -> Self {
        let count = count.max(1);
        let window_ms = u64::try_from(window.min(WINDOW_MAX).as_millis()).unwrap_or(u64::MAX).max(1);
        let merge_ms = if count > EXACT_MAX { window_ms.div_ceil(PARTS) } else { 0 };
        Self { count, window_ms, merge_ms }
    }

    /// Returns a limit of `count` hits, at least 1, in the same window.
    pub fn with_count(&self, count: u32) -> Self {
        Self::new(count, self.window())
    }

    /// Returns the number of hits that are admitted in a window.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the window.
    pub const fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    /// Returns the longest time by which a hit may count beyond the window.
    pub const fn late_max(&self) -> Duration {
        Duration::from_millis(self.merge_ms)
    }
}
