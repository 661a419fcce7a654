//! Circuit breaker: calls to a service that fails are refused at once, and one probe at a time retries it.
//!
//! **Promise.** While a breaker is open, exactly one call at a time is permitted, the *probe*, and only once the retry time
//! has passed. A success of the probe closes the breaker; a failure opens it again for longer. Outcomes of calls from before
//! the last change are ignored, since they say nothing about the service as it is now. A probe without an outcome is
//! replaced once it has taken [`BreakerRule::probe_max`], so that a breaker never stays open by itself.
//!
//! **Failure.** An error, or a reply that took longer than [`BreakerRule::deadline`]. A breaker opens after
//! [`BreakerRule::in_row`] failures in a row, or after [`BreakerRule::in_recent`] among the last [`RECENT_CALLS`].
//!
//! **Detection.** A service that returns is used again at most [`BreakerRule::open_max`] and one call later.
//!
//! **Memory.** Less than 100 bytes, whatever the number of calls in flight.

use crate::Time;
use std::time::Duration;

/// Number of calls among which [`BreakerRule::in_recent`] counts failures.
pub const RECENT_CALLS: u32 = 20;

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRule {
    /// Failures in a row that open the breaker, at least 1.
    pub in_row: u32,
    /// Failures among the last [`RECENT_CALLS`] calls that open the breaker; 0 for no such condition.
    pub in_recent: u32,
    /// First open time, which doubles with each failed probe.
    pub open_min: Duration,
    /// Longest open time.
    pub open_max: Duration,
    /// Longest duration of a call that succeeded; a slower one counts as a failure.
    pub deadline: Duration,
    /// Time after which a probe without an outcome is replaced.
    pub probe_max: Duration,
}

/// Outcome of a permitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The service replied.
    Succeeded,
    /// No reply in time.
    Late,
    /// No connection, or a service that can't serve.
    Failed,
    /// The caller was cancelled, or the reply says nothing about the service.
    Abandoned,
}

/// Permission for one call; return it with [`Breaker::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPermit {
    /// State of the breaker that the call belongs to.
    epoch: u64,
    is_probe: bool,
    since: Time,
}

impl CallPermit {
    /// Returns whether the outcome of the call closes the breaker or keeps it open.
    pub const fn is_probe(&self) -> bool {
        self.is_probe
    }
}

/// Change of a breaker, to be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerChange {
    /// Calls are refused from now on.
    Opened,
    /// Calls are permitted again.
    Closed,
}

/// State of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// All calls are permitted.
    Closed,
    /// Calls are refused until the time.
    Open(Time),
    /// One probe is in flight, or may begin.
    HalfOpen,
}

/// Circuit breaker of one service.
#[derive(Clone, Debug)]
pub struct Breaker {
    rule: BreakerRule,
    /// Rises with each change of the state, and with each probe.
    epoch: u64,
    in_row: u32,
    /// Last calls, the newest in the lowest bit; set for a failure.
    recent: u32,
    /// Whether a failure since the last success was anything but a late reply.
    has_other_failure: bool,
    open: Option<OpenPeriod>,
    /// State of the random numbers for the jitter.
    random: u64,
}

#[derive(Clone, Copy, Debug)]
struct OpenPeriod {
    until: Time,
    /// Longest open time of the next period.
    next: Duration,
    /// Begin of the probe in flight.
    probing_since: Option<Time>,
}

impl Breaker {
    /// Creates a closed breaker. The seed chooses the jitter, so that nodes do not retry together.
    pub const fn new(rule: BreakerRule, seed: u64) -> Self {
        Self { rule, epoch: 0, in_row: 0, recent: 0, has_other_failure: false, open: None, random: seed }
    }

    /// Returns the permit for a call, `None` if the call must fail at once. Each permit needs one [`Self::record`].
    pub fn acquire(&mut self, now: Time) -> Option<CallPermit> {
        let probe_max = self.rule.probe_max;
        if let Some(open) = &mut self.open {
            let free_at = open.probing_since.map_or(open.until, |since| since + probe_max);
            if now < free_at {
                return None;
            }
            open.probing_since = Some(now);
            self.epoch += 1;
        }
        Some(CallPermit { epoch: self.epoch, is_probe: self.open.is_some(), since: now })
    }

    /// Returns whether nothing has changed since the call was permitted, so that its outcome counts.
    pub const fn is_current(&self, permit: CallPermit) -> bool {
        permit.epoch == self.epoch
    }

    /// Records the outcome of a permitted call. Returns the change that it caused.
    pub fn record(&mut self, permit: CallPermit, outcome: CallOutcome, now: Time) -> Option<BreakerChange> {
        if permit.epoch != self.epoch {
            return None;
        }
        let is_slow = now.since(permit.since) > self.rule.deadline;
        match outcome {
            CallOutcome::Abandoned => {
                self.abandon(permit);
                None
            }
            CallOutcome::Succeeded if !is_slow => self.succeed(),
            CallOutcome::Succeeded | CallOutcome::Late => self.fail(now),
            CallOutcome::Failed => {
                self.has_other_failure = true;
                self.fail(now)
            }
        }
    }

    /// Returns the state, for metrics and readiness.
    pub fn state(&self, now: Time) -> BreakerState {
        match self.open {
            None => BreakerState::Closed,
            Some(open) if open.probing_since.is_none() && now < open.until => BreakerState::Open(open.until),
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// Returns whether calls are refused, except for a probe.
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns whether all failures since the last success were late replies.
    pub const fn is_only_late(&self) -> bool {
        !self.has_other_failure
    }

    /// Makes the probe available again, without another wait: the caller, not the service, ended it.
    fn abandon(&mut self, permit: CallPermit) {
        if let Some(open) = self.open.as_mut().filter(|_| permit.is_probe) {
            open.probing_since = None;
            self.epoch += 1;
        }
    }

    fn succeed(&mut self) -> Option<BreakerChange> {
        self.in_row = 0;
        self.has_other_failure = false;
        self.recent <<= 1;
        self.open.take()?;
        self.recent = 0;
        self.epoch += 1;
        Some(BreakerChange::Closed)
    }

    fn fail(&mut self, now: Time) -> Option<BreakerChange> {
        let was_open = self.open;
        self.in_row = self.in_row.saturating_add(1);
        self.recent = self.recent << 1 | 1;
        let in_recent = (self.recent & ((1 << RECENT_CALLS) - 1)).count_ones();
        let opens = self.in_row >= self.rule.in_row
            || self.rule.in_recent > 0 && in_recent >= self.rule.in_recent
            || was_open.is_some();
        if !opens {
            return None;
        }
        let longest = was_open.map_or(self.rule.open_min, |open| open.next).min(self.rule.open_max);
        let until = now + self.jittered(longest);
        self.open = Some(OpenPeriod { until, next: longest.saturating_mul(2), probing_since: None });
        self.epoch += 1;
        was_open.is_none().then_some(BreakerChange::Opened)
    }

    /// Shortens a time by up to a half, at random.
    fn jittered(&mut self, longest: Duration) -> Duration {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let part = (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64;
        longest / 2 + (longest / 2).mul_f64(part)
    }
}
