//! Limits that follow the load of the node and the history of subjects: their values now, and how much of them is used.
//!
//! Once a second the values are computed from the load factor and the profiles of the busiest subjects, and put into the
//! stripes of each dynamic rule, so that a request costs a comparison with another number and no arithmetic. Each request
//! is admitted by the limit of its time: at an admitted request, its window has no more requests than the limit that is in
//! force then.

mod follow;
mod keys;
mod profiles;
#[cfg(test)]
mod tests;

pub use self::profiles::{ProfileKey, StoredProfile};

use std::{
    cell::Cell,
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use foldhash::{HashMap, HashMapExt as _};
use parking_lot::Mutex;
use tidegate_protocol::{
    Time,
    machine::{
        rate::RateLimit,
        threshold::{HourOfWeek, LoadFactor, Threshold},
    },
};

use self::keys::{BusyKeys, NewKey, RuleKey, RuleSubject, mix};
use super::{kinds::LimitLevel, rule::LimitRule};

/// Admitted requests of a rule of which one is counted for its subject, to find the busiest ones.
const SAMPLED: u64 = 16;

/// Load and history that the limits of dynamic rules follow.
pub(super) struct Thresholds {
    followed: Mutex<FollowedLoad>,
    /// Covers no other lock. A request, which holds those of stripes, does not wait for it.
    keys: Mutex<BusyKeys>,
}

/// Load factor and hour of the last second.
#[derive(Clone, Copy)]
struct FollowedLoad {
    factor: LoadFactor,
    hour: HourOfWeek,
}

impl Default for FollowedLoad {
    fn default() -> Self {
        Self { factor: LoadFactor::default(), hour: HourOfWeek::at(0) }
    }
}

impl Thresholds {
    /// Creates thresholds of an unloaded node without a history.
    pub(super) fn new(seed: u64) -> Self {
        Self { followed: Mutex::default(), keys: Mutex::new(BusyKeys::new(seed)) }
    }

    /// Returns the limit of a dynamic rule now for subjects without a history, and what it follows from.
    pub(super) fn of(&self, rule: &LimitRule) -> Option<Threshold> {
        let FollowedLoad { factor, hour } = *self.followed.lock();
        Some(rule.dynamic?.threshold(&factor, None, hour))
    }

    /// Returns the limit of a subject of a dynamic rule now, by the serial of its windows.
    pub(super) fn of_key(&self, rule: &LimitRule, serial: u64, key: u64) -> Option<Threshold> {
        let FollowedLoad { factor, hour } = *self.followed.lock();
        let keys = self.keys.lock();
        let profile = keys.get(&RuleKey { serial, key }).map(|entry| &entry.profile);
        Some(rule.dynamic?.threshold(&factor, profile, hour))
    }

    /// Counts a request that a rule admitted, the `nth` one, for its subject: about one of [`SAMPLED`]. A sample is lost if
    /// the subjects are in use, so that no request waits.
    pub(super) fn count(
        &self,
        rule: &LimitRule,
        serial: u64,
        nth: u64,
        key: u64,
        name: impl FnOnce() -> Option<String>,
    ) {
        // A hash, so that no regular order of requests leaves a subject out.
        if !mix(nth).is_multiple_of(SAMPLED) || rule.dynamic.is_none() || !has_history(rule.level) {
            return;
        }
        let Some(mut keys) = self.keys.try_lock() else { return };
        keys.count(RuleKey { serial, key }, || {
            let subject = RuleSubject { rule: rule.id.as_ref().into(), level: rule.level, name: name()? };
            let window_ms = u32::try_from(rule.limit.window().as_millis()).unwrap_or(u32::MAX);
            Some(NewKey { subject, base: rule.limit.count(), window_ms })
        });
    }
}

/// Returns whether subjects of the level have a history: they are few, and each stands for many users.
const fn has_history(level: LimitLevel) -> bool {
    matches!(
        level,
        LimitLevel::Organisation | LimitLevel::Channel | LimitLevel::Conversation | LimitLevel::Key
    )
}

/// Limits of the subjects of one stripe of a dynamic rule.
pub(super) struct StripeLimits {
    limit: RateLimit,
    /// Most requests of a subject that counted at a time since this was last taken.
    most_used: u32,
    /// Limits of the busiest subjects.
    own: HashMap<u64, OwnLimit>,
}

/// Limit of a subject with a profile.
#[derive(Clone)]
struct OwnLimit {
    limit: RateLimit,
    /// Limit at a load factor of 1.
    unloaded: u32,
    /// Whether the history lowers the limit.
    is_lowered: bool,
    most_used: u32,
    /// Whether a request was refused since this was last taken.
    is_limited: Cell<bool>,
}

impl StripeLimits {
    /// Creates the limits of a rule that is not lowered.
    pub(super) fn new(limit: RateLimit) -> Self {
        Self { limit, most_used: 0, own: HashMap::new() }
    }

    /// Returns the limit of a subject.
    pub(super) fn of(&self, key: u64) -> RateLimit {
        self.own(key).map_or(self.limit, |own| own.limit)
    }

    fn own(&self, key: u64) -> Option<&OwnLimit> {
        if self.own.is_empty() { None } else { self.own.get(&key) }
    }

    /// Replaces the limit of the subjects without one of their own.
    pub(super) const fn set(&mut self, limit: RateLimit) {
        self.limit = limit;
    }

    /// Notes how many requests of a subject count.
    pub(super) fn note_use(&mut self, key: u64, used: u32) {
        let own = if self.own.is_empty() { None } else { self.own.get_mut(&key) };
        let most = own.map_or(&mut self.most_used, |own| &mut own.most_used);
        *most = (*most).max(used);
    }
}

/// What a dynamic rule did since the load was last followed.
#[derive(Default)]
pub(super) struct LimitSignals {
    /// Whether it refused a request, or let one wait.
    has_limited: AtomicBool,
    /// Whether it did so to a subject whose limit its history does not lower.
    is_binding: AtomicBool,
    /// Largest parts of the limit that were used in former seconds of the window.
    recent: Mutex<RecentUse>,
}

impl LimitSignals {
    /// Notes that the rule refused a request of the subject, or would have without its dry run.
    pub(super) fn note_refusal(&self, limits: &StripeLimits, key: u64, is_dry_run: bool) {
        let own = limits.own(key);
        if let Some(own) = own {
            own.is_limited.set(true);
        }
        if is_dry_run {
            return;
        }
        self.has_limited.store(true, Relaxed);
        if own.is_none_or(|own| !own.is_lowered) {
            self.is_binding.store(true, Relaxed);
        }
    }
}

/// Largest values of the seconds of a window: each with its time, later ones smaller.
#[derive(Default)]
struct RecentUse(VecDeque<(Time, f64)>);

impl RecentUse {
    /// Adds the value of the last second, and returns the largest one of the window. With a window of a second, that is the
    /// value itself.
    fn largest(&mut self, value: f64, window: Duration, now: Time) -> f64 {
        if window <= Duration::from_secs(1) {
            return value;
        }
        while self.0.back().is_some_and(|(_, smaller)| *smaller <= value) {
            self.0.pop_back();
        }
        self.0.push_back((now, value));
        while self.0.front().is_some_and(|(at, _)| now.since(*at) > window) {
            self.0.pop_front();
        }
        self.0.front().map_or(value, |(_, largest)| *largest)
    }
}
