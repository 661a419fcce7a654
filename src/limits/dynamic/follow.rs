//! Step of each second: from the signals of the load to the limits in force.

use std::sync::atomic::Ordering::Relaxed;

use foldhash::{HashMap, HashMapExt as _};
use tidegate_protocol::{
    Time,
    machine::threshold::{HourOfWeek, LimitUse, LoadPressure, Threshold},
};

use super::{
    super::guard::{RuleGuard, RuleInForce},
    FollowedLoad, OwnLimit, Thresholds,
    keys::{KeySecond, RuleKey},
};

impl RuleGuard {
    /// Follows the load of the last second: the limits of dynamic rules are lowered fast while it is too large, and rise
    /// slowly while it is small. Call it each second; `wall_ms` is the wall clock, by which hours are learnt. `is_stormy`
    /// returns whether a conversation has a storm, which is nothing to learn from.
    pub fn follow_load(
        &self,
        pressures: &[LoadPressure],
        now: Time,
        wall_ms: u64,
        is_stormy: impl Fn(&str) -> bool,
    ) {
        let in_force = self.in_force.get();
        let (used, seconds) = take_use(&in_force.rules, now);
        let (hour, former, factor) = {
            let mut followed = self.thresholds.followed.lock();
            followed.factor.handle_second(pressures, used);
            let former = std::mem::replace(&mut followed.hour, HourOfWeek::at(wall_ms));
            (followed.hour, former, followed.factor.factor())
        };
        {
            let mut keys = self.thresholds.keys.lock();
            keys.handle_second(&seconds, factor, is_stormy);
            if hour != former {
                keys.end_hour(former);
            }
            keys.retain(|serial| in_force.has(serial));
            self.metrics.limit_histories.set(keys.all().len() as f64);
        }
        self.thresholds.apply(&in_force.rules);
        let thresholds = in_force.rules.iter().filter_map(|it| self.thresholds.of(&it.rule));
        self.metrics.load_factor.set(factor);
        self.metrics.rules_lowered.set(thresholds.filter(|it| it.limit < it.base).count() as f64);
    }
}

impl Thresholds {
    /// Keeps the history of the subjects of rules that begin new windows of the same length, as with another limit.
    pub(in crate::limits) fn carry(&self, former: &[RuleInForce], rules: &[RuleInForce]) {
        for it in rules.iter().filter(|it| it.rule.dynamic.is_some()) {
            let is_former = |other: &&RuleInForce| {
                let (rule, other) = (&it.rule, &other.rule);
                rule.id == other.id
                    && rule.level == other.level
                    && rule.limit.window() == other.limit.window()
            };
            if let Some(from) = former.iter().find(is_former).map(|it| it.windows.serial)
                && from != it.windows.serial
            {
                self.keys.lock().carry(from, it.windows.serial, it.rule.limit.count());
            }
        }
    }

    /// Puts the present limits of the dynamic rules in force.
    pub(in crate::limits) fn apply(&self, rules: &[RuleInForce]) {
        for it in rules {
            let Some(threshold) = self.of(&it.rule) else { continue };
            let mut own = self.own_limits(it);
            let limit = it.rule.limit.with_count(threshold.limit);
            for mut stripe in it.windows.stripes() {
                stripe.set_limit(limit);
                if let Some(limits) = &mut stripe.limits {
                    limits.own.retain(|key, known| {
                        let Some(new) = own.remove(key) else { return false };
                        (known.limit, known.unloaded, known.is_lowered) =
                            (new.limit, new.unloaded, new.is_lowered);
                        true
                    });
                }
            }
            for (key, new) in own {
                if let Some(limits) = &mut it.windows.stripe(key).limits {
                    limits.own.insert(key, new);
                }
            }
        }
    }

    /// Returns the limits of the subjects of a rule that have a profile.
    fn own_limits(&self, of: &RuleInForce) -> HashMap<u64, OwnLimit> {
        let FollowedLoad { factor, hour } = *self.followed.lock();
        let mut own = HashMap::new();
        let Some(dynamic) = of.rule.dynamic else { return own };
        let keys = self.keys.lock();
        for entry in keys.all().iter().filter(|entry| entry.of.serial == of.windows.serial) {
            let threshold = dynamic.threshold(&factor, Some(&entry.profile), hour);
            own.insert(
                entry.of.key,
                OwnLimit {
                    limit: of.rule.limit.with_count(threshold.limit),
                    unloaded: unloaded(&threshold),
                    is_lowered: threshold.history_hundredths < 100,
                    most_used: 0,
                    is_limited: false.into(),
                },
            );
        }
        own
    }
}

/// Returns the limit at a load factor of 1.
fn unloaded(threshold: &Threshold) -> u32 {
    let product = u64::from(threshold.base) * u64::from(threshold.history_hundredths) / 100;
    u32::try_from(product).unwrap_or(u32::MAX).clamp(threshold.min, threshold.max)
}

/// Returns what the dynamic rules did since the last call, and what the subjects with a profile used of them.
fn take_use(rules: &[RuleInForce], now: Time) -> (LimitUse, Vec<KeySecond>) {
    let mut all = LimitUse { is_binding: false, largest: 0.0 };
    let mut seconds = Vec::new();
    for it in rules.iter().filter(|it| it.rule.dynamic.is_some()) {
        let (serial, mut largest) = (it.windows.serial, 0.0_f64);
        let part = |used: u32, limit: u32| f64::from(used) / f64::from(limit.max(1));
        for mut stripe in it.windows.stripes() {
            let stripe = &mut *stripe;
            let Some(limits) = &mut stripe.limits else { continue };
            largest = largest.max(part(std::mem::take(&mut limits.most_used), it.rule.limit.count()));
            for (key, own) in &mut limits.own {
                // A long window has requests of former seconds.
                let used = std::mem::take(&mut own.most_used).max(stripe.table.used(*key, now));
                largest = largest.max(part(used, own.unloaded));
                let is_limited = own.is_limited.take() && !own.is_lowered;
                seconds.push(KeySecond { of: RuleKey { serial, key: *key }, used, is_limited });
            }
        }
        let (signals, is_enforced) = (&it.windows.signals, !it.rule.is_dry_run);
        largest = signals.recent.lock().largest(largest, it.rule.limit.window(), now);
        all.is_binding |= signals.is_binding.swap(false, Relaxed) && is_enforced;
        if signals.has_limited.swap(false, Relaxed) {
            largest = largest.max(1.0);
        }
        if is_enforced {
            all.largest = all.largest.max(largest);
        }
    }
    (all, seconds)
}
