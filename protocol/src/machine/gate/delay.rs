//! Standing delay: the smallest delay of a short time, above the smallest of a long one.

use crate::Time;
use std::time::Duration;

/// Time over which the smallest delay is taken.
pub const DELAY_WINDOW: Duration = Duration::from_millis(100);

/// Parts of the time over which the base is taken.
const BASE_PARTS: usize = 12;

/// Length of a part of the base.
const BASE_PART: Duration = Duration::from_secs(5);

/// Smallest delay of the last window, and its base: the smallest of the last 55 to 60 s.
#[derive(Clone, Debug)]
pub struct StandingDelay {
    /// End of the current window.
    ends_at: Time,
    /// Smallest delay of the current window, in µs; the largest number if there was none.
    least: u32,
    /// Delays of the current window, and of the last one.
    count: u32,
    last_count: u32,
    /// Smallest delay of the last window.
    last: Option<Duration>,
    /// Smallest delays of the parts, a ring.
    parts: [u32; BASE_PARTS],
    part: u64,
}

impl StandingDelay {
    /// Creates a delay without a base.
    pub fn new(now: Time) -> Self {
        Self {
            ends_at: now + DELAY_WINDOW,
            least: u32::MAX,
            count: 0,
            last_count: 0,
            last: None,
            parts: [u32::MAX; BASE_PARTS],
            part: part_of(now),
        }
    }

    /// Counts a delay.
    pub fn handle_delay(&mut self, delay: Duration) {
        self.least = self.least.min(u32::try_from(delay.as_micros()).unwrap_or(u32::MAX - 1));
        self.count = self.count.saturating_add(1);
    }

    /// Returns when the window ends.
    pub const fn poll_timeout(&self) -> Time {
        self.ends_at
    }

    /// Ends the window. Returns the smallest delay above the base, `None` if there was no delay.
    pub fn handle_timeout(&mut self, now: Time) -> Option<Duration> {
        self.ends_at = now + DELAY_WINDOW;
        let part = part_of(now);
        // More parts than the ring has clear all of it.
        for at in (self.part + 1..=part).take(BASE_PARTS) {
            self.parts[(at % BASE_PARTS as u64) as usize] = u32::MAX;
        }
        if part.saturating_sub(self.part) > BASE_PARTS as u64 {
            self.parts = [u32::MAX; BASE_PARTS];
        }
        self.part = self.part.max(part);
        self.last_count = std::mem::take(&mut self.count);
        let least = std::mem::replace(&mut self.least, u32::MAX);
        let current = &mut self.parts[(self.part % BASE_PARTS as u64) as usize];
        *current = (*current).min(least);
        self.last = (least < u32::MAX).then(|| Duration::from_micros(least.into()));
        self.excess()
    }

    /// Returns the smallest delay of the last window above the base, `None` if there was no delay in it.
    pub fn excess(&self) -> Option<Duration> {
        Some(self.last?.saturating_sub(self.base()?))
    }

    /// Returns the number of delays in the last window.
    pub const fn samples(&self) -> u32 {
        self.last_count
    }

    /// Returns the base, `None` if there was no delay yet.
    pub fn base(&self) -> Option<Duration> {
        let least = self.parts.iter().copied().min().filter(|least| *least < u32::MAX)?;
        Some(Duration::from_micros(least.into()))
    }
}

fn part_of(now: Time) -> u64 {
    now.as_millis() / BASE_PART.as_millis() as u64
}
