//! Frame budget: limits how many frames of one connection are read, whatever their size.
//!
//! A frame of one byte costs as much as a frame of hundreds, so a limit of bytes alone leaves a shard to a client that
//! sends many tiny ones. The budget is a leaky bucket: each frame adds to it, and time empties it. A full bucket is
//! *spent*: the driver reads nothing until [`FrameBudget::poll_timeout`], and the client notices only that its frames
//! take longer. A client that uses up each refill for [`PATIENCE`] persists, and the driver closes it.
//!
//! All methods take the limit in frames per second, which is shared by all connections; 0 for no limit, and a million
//! at most.

use crate::Time;
use std::time::Duration;

/// Time whose frames may arrive at once.
pub const BURST: Duration = Duration::from_secs(4);

/// Time after which a client persists whose budget is spent again and again, and was never half refilled.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Parts of a second; reading resumes once the frames of one part, at least one frame, are available.
const RESUMES_PER_SECOND: u64 = 10;

/// Parts of a frame. At a rate of n frames per second, n parts expire per millisecond.
const PARTS: u32 = 1_000;

/// Largest limit, whose burst fits into the counter.
const PER_SECOND_MAX: u32 = 1_000_000;

/// Result of [`FrameBudget::handle_timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameVerdict {
    /// The client keeps to the limit, or has not exceeded it for long.
    Fine,
    /// The client has exceeded the limit for [`PATIENCE`].
    Persists,
}

/// Frames of one connection that count now.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameBudget {
    /// Parts of frames that count, as of `at`.
    used: u32,
    /// Time since a timeout found the budget spent, while it is not half refilled; in ms.
    over_ms: u32,
    at: Time,
    over: bool,
    spent: bool,
}

impl FrameBudget {
    /// Counts a frame that was read.
    pub fn take(&mut self, per_second: u32, now: Time) {
        if per_second == 0 {
            return;
        }
        self.refill(per_second, now);
        self.used = self.used.saturating_add(PARTS);
        self.spent = u64::from(self.used) >= burst(per_second);
    }

    /// Takes back the count of a frame that turned out to be exempt.
    pub fn give_back(&mut self, per_second: u32) {
        self.used = self.used.saturating_sub(PARTS);
        self.spent &= u64::from(self.used) >= burst(per_second);
    }

    /// Returns whether no more frames may be read until [`Self::poll_timeout`].
    pub const fn is_spent(&self) -> bool {
        self.spent
    }

    /// Returns when to call [`Self::handle_timeout`], and to read again.
    pub fn poll_timeout(&self, per_second: u32) -> Option<Time> {
        if !self.spent {
            return None;
        }
        let excess = u64::from(self.used).saturating_sub(resume_level(per_second));
        let wait = excess.div_ceil(rate(per_second).max(1));
        Some(self.at + Duration::from_millis(wait))
    }

    /// Refills a spent budget. It is no longer spent once [`Self::poll_timeout`] has been reached.
    pub fn handle_timeout(&mut self, per_second: u32, now: Time) -> FrameVerdict {
        if !self.spent {
            return FrameVerdict::Fine;
        }
        self.refill(per_second, now);
        self.spent = u64::from(self.used) > resume_level(per_second);
        self.over = true;
        let over_for = Duration::from_millis(self.over_ms.into());
        if over_for >= PATIENCE { FrameVerdict::Persists } else { FrameVerdict::Fine }
    }

    fn refill(&mut self, per_second: u32, now: Time) {
        let ms = now.as_millis().saturating_sub(self.at.as_millis());
        let refilled = u32::try_from(ms.saturating_mul(rate(per_second))).unwrap_or(u32::MAX);
        self.used = self.used.saturating_sub(refilled);
        self.at = self.at.max(now);
        self.over &= u64::from(self.used) > burst(per_second) / 2;
        let over_ms = u64::from(self.over_ms).saturating_add(ms);
        self.over_ms = if self.over { u32::try_from(over_ms).unwrap_or(u32::MAX) } else { 0 };
    }
}

/// Returns the parts that expire per millisecond.
fn rate(per_second: u32) -> u64 {
    per_second.min(PER_SECOND_MAX).into()
}

/// Returns the parts of a full bucket.
fn burst(per_second: u32) -> u64 {
    rate(per_second) * BURST.as_secs() * u64::from(PARTS)
}

/// Returns the parts in a bucket from which reading resumes.
fn resume_level(per_second: u32) -> u64 {
    burst(per_second).saturating_sub((rate(per_second) / RESUMES_PER_SECOND).max(1) * u64::from(PARTS))
}
