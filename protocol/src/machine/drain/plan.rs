//! Drain plan: computes pace and durations from the settings and the number of clients.

use std::time::Duration;

/// Minimum pace, in clients per second: a slower one helps no other node, and few clients leave quickly anyway.
const RATE_MIN: u32 = 50;

/// Maximum length of a slot, in which a client may have both connections open.
const HANDOVER_MAX: Duration = Duration::from_millis(1_000);

/// Maximum time for the answers and final frames of clients with the last slots.
const SETTLE_MAX: Duration = Duration::from_millis(6_000);

/// Time that a process manager should allow beyond the drain before it kills the process.
const GRACE_SPARE: Duration = Duration::from_millis(10_000);

/// Settings of the drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time for the load balancer to stop sending clients.
    pub lb_delay: Duration,
    /// Time over which the closes are spread, unless that exceeds `max_rate`.
    pub spread: Duration,
    /// Maximum pace in clients per second, as the other nodes accept them.
    pub max_rate: u32,
    /// Time for finishing pending work after the last client.
    pub flush: Duration,
    /// Time for the whole drain.
    pub deadline: Duration,
}

/// Pace and durations of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of clients.
    pub conns: usize,
    /// Time from the first slot to the last.
    pub window: Duration,
    /// Length of a slot.
    pub handover: Duration,
    /// Clients per second, rounded up.
    pub rate: u32,
    /// Whether the deadline forces a higher pace than `max_rate`.
    pub raised: bool,
    /// Shortest deadline that fits the whole drain.
    pub deadline: Duration,
    /// Grace period that a process manager should grant before it kills the process.
    pub grace: Duration,
}

/// Returns the plan for `conns` clients.
pub fn plan(conns: usize, settings: &Settings) -> Plan {
    settings.fit(conns, settings.rush_after().saturating_sub(settings.cordon()))
}

impl Settings {
    /// Returns the plan for `conns` clients with the time `left` for their slots.
    pub(super) fn fit(&self, conns: usize, left: Duration) -> Plan {
        let fastest = at_rate(conns, self.max_rate);
        let wanted = self.spread.min(at_rate(conns, RATE_MIN)).max(fastest);
        let handover = wanted.min(HANDOVER_MAX).min(left / 4);
        let window = wanted.min(left.saturating_sub(handover));
        let rate = (conns as u128 * 1_000).div_ceil(window.as_millis().max(1));
        Plan {
            conns,
            window,
            handover,
            rate: u32::try_from(rate).unwrap_or(u32::MAX),
            raised: window < fastest,
            deadline: self.lb_delay + wanted + wanted.min(HANDOVER_MAX) + SETTLE_MAX + self.flush,
            grace: self.lb_delay + self.spread.max(fastest) + self.flush + GRACE_SPARE,
        }
    }

    /// Returns the time from the start until remaining clients are cut.
    pub(super) fn cut_after(&self) -> Duration {
        self.deadline - self.flush.min(self.deadline / 2)
    }

    /// Returns the time from the start until all slots must have ended.
    pub(super) fn rush_after(&self) -> Duration {
        let cut = self.cut_after();
        cut - SETTLE_MAX.min(cut / 4)
    }

    /// Returns how long the node stays cordoned: at most half of the time before the slots must end.
    pub fn cordon(&self) -> Duration {
        self.lb_delay.min(self.rush_after() / 2)
    }
}

fn at_rate(conns: usize, rate: u32) -> Duration {
    let ms = (conns as u128 * 1_000).div_ceil(u128::from(rate.max(1)));
    Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
}
