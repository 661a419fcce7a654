//! Frame budget: limits how many frames of one connection are read, whatever their size.
//!
//! A frame of one byte costs as much as a frame of hundreds, so a limit of bytes alone leaves a shard to a client that
//! sends many tiny ones. The budget is a leaky bucket: each frame adds to it, and time empties it. A full bucket is
//! *spent*: the driver reads nothing until [`FrameBudget::poll_timeout`], and the client notices only that its frames
//! take longer. A client that uses up each refill for [`PATIENCE`] persists, and the driver closes it.
//!
//! All methods take the limit in frames per second, which is shared by all connections; 0 for no limit.

use crate::Time;
use std::time::Duration;

/// Time whose frames may arrive at once.
pub const BURST: Duration = Duration::from_secs(4);

/// Time after which a client persists whose budget is spent again and again, and was never half refilled.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Parts of a second; reading resumes once the frames of one part, at least one frame, are available.
const RESUMES_PER_SECOND: u64 = 10;

/// Parts of a frame. At a rate of n frames per second, n parts expire per millisecond.
const PARTS: u64 = 1_000;

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
    used: u64,
    at: Time,
    /// First time at which the budget was found spent and after which it was never half refilled.
    over_since: Option<Time>,
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
        self.spent = self.used >= burst(per_second);
    }

    /// Takes back the count of a frame that turned out to be exempt.
    pub fn give_back(&mut self, per_second: u32) {
        self.used = self.used.saturating_sub(PARTS);
        self.spent &= self.used >= burst(per_second);
    }

    /// Returns whether no more frames may be read until [`Self::poll_timeout`].
    pub const fn is_spent(&self) -> bool {
        self.spent
    }

    /// Returns when to call [`Self::handle_timeout`], and to read again.
    pub fn poll_timeout(&self, per_second: u32) -> Option<Time> {
        let excess = self.used.saturating_sub(resume_level(per_second));
        let wait = excess.div_ceil(u64::from(per_second).max(1));
        self.spent.then(|| self.at + Duration::from_millis(wait))
    }

    /// Refills a spent budget. It is no longer spent once [`Self::poll_timeout`] has been reached.
    pub fn handle_timeout(&mut self, per_second: u32, now: Time) -> FrameVerdict {
        if !self.spent {
            return FrameVerdict::Fine;
        }
        self.refill(per_second, now);
        self.spent = self.used > resume_level(per_second);
        let since = *self.over_since.get_or_insert(now);
        if since + PATIENCE <= now { FrameVerdict::Persists } else { FrameVerdict::Fine }
    }

    fn refill(&mut self, per_second: u32, now: Time) {
        let ms = now.as_millis().saturating_sub(self.at.as_millis());
        self.used = self.used.saturating_sub(ms.saturating_mul(per_second.into()));
        self.at = self.at.max(now);
        if self.used <= burst(per_second) / 2 {
            self.over_since = None;
        }
    }
}

/// Returns the parts of a full bucket.
fn burst(per_second: u32) -> u64 {
    u64::from(per_second) * BURST.as_secs() * PARTS
}

/// Returns the parts in a bucket from which reading resumes.
fn resume_level(per_second: u32) -> u64 {
    burst(per_second) - (u64::from(per_second) / RESUMES_PER_SECOND).max(1) * PARTS
}
