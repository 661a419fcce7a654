//! The numbers of a drain: what the settings mean for so many clients.

use std::time::Duration;

/// Slower than this many clients a second is no kindness to anybody; a node with few clients is gone soon.
const RATE_MIN: u32 = 50;

/// The time in which a client may come over with both connections open, at most.
const HANDOVER_MAX: Duration = Duration::from_millis(1_000);

/// For the answers and final frames of those whose slot comes last, at most.
const SETTLE_MAX: Duration = Duration::from_millis(6_000);

/// What whoever kills the process should allow beyond the drain.
const SPARE: Duration = Duration::from_millis(10_000);

/// How gently a node leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long the load balancer may take to look elsewhere.
    pub lb_delay: Duration,
    /// The time over which clients are spread, when that is not too fast.
    pub spread: Duration,
    /// Clients a second, at most; what the other nodes accept.
    pub max_rate: u32,
    /// For finishing what is under way when the clients are gone.
    pub flush: Duration,
    /// The whole drain.
    pub deadline: Duration,
}

/// What will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// For so many clients.
    pub conns: usize,
    /// From the first slot to the last.
    pub window: Duration,
    /// The length of a slot.
    pub handover: Duration,
    /// Clients a second, rounded up.
    pub rate: u32,
    /// Whether the deadline asks for more than `max_rate`.
    pub raised: bool,
    /// The deadline that leaves room for everything.
    pub deadline: Duration,
    /// The time that whoever kills the process should grant before they do.
    pub grace: Duration,
}

/// The plan for `conns` clients.
pub fn plan(conns: usize, settings: &Settings) -> Plan {
    settings.fit(conns, settings.rush_after().saturating_sub(settings.cordon()))
}

impl Settings {
    /// The plan for `conns` clients when `left` is left for their slots.
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
            grace: self.lb_delay + self.spread.max(fastest) + self.flush + SPARE,
        }
    }

    /// When those who are left are cut, from the beginning.
    pub(super) fn cut_after(&self) -> Duration {
        self.deadline - self.flush.min(self.deadline / 2)
    }

    /// When the slots must be over.
    pub(super) fn rush_after(&self) -> Duration {
        let cut = self.cut_after();
        cut - SETTLE_MAX.min(cut / 4)
    }

    /// How long the node stays cordoned: not so long that nothing is left for the clients.
    pub(super) fn cordon(&self) -> Duration {
        self.lb_delay.min(self.rush_after() / 2)
    }
}

fn at_rate(conns: usize, rate: u32) -> Duration {
    let ms = (conns as u128 * 1_000).div_ceil(u128::from(rate.max(1)));
    Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
}
