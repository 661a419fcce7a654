//! Monotonic time for the state machines, in milliseconds since a start; always passed as an argument.

use std::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

/// A point in monotonic time, in milliseconds since the node's start. Never the wall clock (flaws S32, S36).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Start of the node.
    pub const ZERO: Self = Self(0);

    /// Creates the point `ms` milliseconds after the start.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// Returns the milliseconds since the start.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the time elapsed since `earlier`; zero if this is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    /// Subtracts with saturation, and rounds as the addition does, so that both are inverse.
    fn sub(self, by: Duration) -> Self {
        let ms = u64::try_from(by.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(ms))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Adds with saturation and rounds up to whole milliseconds, so that a deadline is never early.
    fn add(self, by: Duration) -> Self {
        let ms = u64::try_from(by.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(ms))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}
