//! Announced wait: how long a refused client is asked to wait, controlled by the share of refusals.

use super::DELAY_WINDOW;
use crate::Time;
use std::time::Duration;

/// Shortest announced wait, without jitter.
pub const ANNOUNCED_MIN: Duration = Duration::from_millis(500);

/// Longest announced wait, without jitter.
pub const ANNOUNCED_MAX: Duration = Duration::from_secs(30);

/// Share of refusals above which the wait grows.
const GROWS_ABOVE: f64 = 0.05;

/// Share of refusals below which the wait shrinks.
const SHRINKS_BELOW: f64 = 0.01;

/// Longest time between two steps. A step takes half of the wait, at least [`DELAY_WINDOW`]: the effect of a longer wait is
/// seen only as clients return, and faster steps would swing between all that wait and all that return.
const WINDOW_MAX: Duration = Duration::from_secs(2);

const GROWTH: f64 = 1.25;
const SHRINKAGE: f64 = 0.8;

/// Part by which the jitter shortens or lengthens a wait at most.
const JITTER: f64 = 0.2;

/// Wait that is announced with each refusal for overload, the same for all clients of a shard except for the jitter.
#[derive(Clone, Copy, Debug)]
pub struct AnnouncedWait {
    ms: f64,
    /// Frames of the current window, and those that were refused.
    read: u32,
    refused: u32,
    ends_at: Time,
}

impl AnnouncedWait {
    /// Creates the shortest wait.
    pub fn new(now: Time) -> Self {
        Self { ms: ANNOUNCED_MIN.as_millis() as f64, read: 0, refused: 0, ends_at: now + DELAY_WINDOW }
    }

    /// Counts a frame that was read.
    pub fn handle_frame(&mut self, is_refused: bool) {
        self.read = self.read.saturating_add(1);
        self.refused = self.refused.saturating_add(is_refused.into());
    }

    /// Returns when to call [`Self::handle_timeout`].
    pub const fn poll_timeout(&self) -> Time {
        self.ends_at
    }

    /// Ends a window, and moves the wait.
    pub fn handle_timeout(&mut self, now: Time) {
        if now < self.ends_at {
            return;
        }
        let share = f64::from(self.refused) / f64::from(self.read.max(1));
        if share > GROWS_ABOVE {
            self.ms *= GROWTH;
        } else if share < SHRINKS_BELOW {
            self.ms *= SHRINKAGE;
        }
        self.ms = self.ms.clamp(ANNOUNCED_MIN.as_millis() as f64, ANNOUNCED_MAX.as_millis() as f64);
        (self.read, self.refused) = (0, 0);
        let window = Duration::from_millis(self.ms as u64 / 2).clamp(DELAY_WINDOW, WINDOW_MAX);
        self.ends_at = now + window;
    }

    /// Returns the wait to announce, up to 20 % shorter or longer by the random number, so that clients do not return
    /// together.
    pub fn announced(&self, random: u64) -> Duration {
        let part = random as f64 / u64::MAX as f64;
        Duration::from_micros((self.ms * 1_000.0 * (1.0 - JITTER + 2.0 * JITTER * part)) as u64)
    }

    /// Returns the wait without jitter, for metrics.
    pub const fn mean(&self) -> Duration {
        Duration::from_millis(self.ms as u64)
    }
}
