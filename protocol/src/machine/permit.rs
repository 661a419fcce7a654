//! Cluster scope of a rate limit: permits that a server grants, and shares while it is unavailable.
//!
//! A shard takes permits for a key from the server, and uses them without asking again. All of this is pure: the driver
//! carries [`PermitAsk`]s to the server and answers back.
//!
//! **Never over.** The server grants a permit at `g` and counts it until `g + life + window`. The shard uses it before
//! `sent + life` by its monotonic clock, where `sent` is before the call, so before `g + life`. Whenever it is used, it is
//! counted for a window after that: at most [`PermitRule::limit`] permits are used in any window. Lost answers waste
//! permits. Late answers give fewer permits that can be used, and doubled ones are ignored.
//!
//! **Never late by more than the life and the merge time** of the rule: a unit is free again at most that much after an
//! exact log would free it; 1/16 of the window from 1.6 s on, 1/12 at 1 s. Limits of at most 16 are late by the life only.
//!
//! **Unavailable server.** A node uses its *share* of the limit, and only while its own uses of the last window, permits
//! included, are below it. The shares of all nodes add up to the limit, so uses by share are at most the limit in any
//! window; so are those by permit. The total is **at most twice the limit in any window, however often the server comes and
//! goes**, and at most the limit in a window without permits. Condition: all nodes know the same list of nodes. On return a
//! key stays on its share until the node's uses of the last window by share were *charged* to the server, and all its uses if
//! another server answers. A server that lost its data can grant the limit once more until all nodes have charged.
//!
//! **Clock of the server.** When it is set back, counted permits count as granted now, so the limit holds and keys are shut
//! for at most `window + life`. When it is set forward, windows are shorter by the step.
//!
//! **Memory.** On the server at most [`GRANT_BYTES_MAX`] a key. In a shard [`Permits`], less than 256 bytes a key; in a node
//! [`KeyUses`], at most 96 bytes inline a key, 136 on the heap for busy ones, and up to 192 for those that used their share.

mod grant;
mod permits;
mod share;

pub use self::{
    grant::{GRANT_BYTES_MAX, GRANT_RUNS_MAX, Grant, GrantLog, GrantRequest},
    permits::{ANSWER_TIMEOUT, PermitAsk, PermitCheck, Permits},
    share::{ChargeStep, KeyUses, LimitSource, ShareSwitch, share_of},
};

use super::rate::{RateLimit, WINDOW_MAX};
use std::time::Duration;

/// Shortest window of a limit in cluster scope.
pub const CLUSTER_WINDOW_MIN: Duration = Duration::from_secs(1);

/// Shortest life of a permit, long enough for a round trip.
const LIFE_MIN_MS: u64 = 50;

/// Parts of a window; a permit lives for one of them.
const LIVES: u64 = 32;

/// Limit of a rule in cluster scope: a number of uses in any window of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitRule {
    limit: u32,
    window_ms: u64,
}

impl PermitRule {
    /// Creates a rule of at least 1 use in any window of [`CLUSTER_WINDOW_MIN`] to [`WINDOW_MAX`].
    pub fn new(limit: u32, window: Duration) -> Self {
        let window = window.clamp(CLUSTER_WINDOW_MIN, WINDOW_MAX);
        Self { limit: limit.max(1), window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Returns the number of uses in a window.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the window.
    pub const fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    /// Returns how long a permit may be used.
    pub fn life(&self) -> Duration {
        Duration::from_millis((self.window_ms / LIVES).max(LIFE_MIN_MS))
    }

    /// Returns the request of an ask that reaches the server at `now_us`, by the server's clock.
    pub fn request(&self, ask: PermitAsk, now_us: u64) -> GrantRequest {
        GrantRequest {
            now_us,
            want: ask.want,
            charge: ask.charge,
            limit: self.limit,
            window_us: self.window_ms * 1_000,
            life_us: u64::try_from(self.life().as_micros()).unwrap_or(u64::MAX),
        }
    }

    fn node_limit(&self, count: u32) -> RateLimit {
        RateLimit::new(count, self.window())
    }
}
