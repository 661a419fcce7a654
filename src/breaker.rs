//! Breakers of the services that a node calls: one kind for Redis, Postgres, the hooks and the remote keys.
//!
//! A breaker costs its callers a lock for some comparisons. It shows its state as a metric, and its changes in the log.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use metrics::{Gauge, gauge};
use parking_lot::Mutex;
use tidegate_protocol::{
    Time,
    machine::breaker::{Breaker, BreakerChange, BreakerRule, CallOutcome, CallPermit},
};

/// Failures among the last calls that open a breaker, where single ones are frequent.
const RECENT_FAILURES: u32 = 10;

/// Longest time for which a breaker stays open where a call is cheap: the service is used again within a second of its
/// return.
const SHORT_OPEN_TIME: Duration = Duration::from_millis(800);

/// Shortest open time of such a breaker.
const SHORT_OPEN_TIME_MIN: Duration = Duration::from_millis(100);

/// Open time of a breaker whose calls are few.
const LONG_OPEN_TIME: Duration = Duration::from_secs(5);

/// Service with a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardedService {
    /// Redis.
    Redis,
    /// Mirror of storm windows in Redis.
    RedisMirror,
    /// Permits of limits of the cluster in Redis.
    RedisPermits,
    /// Reads of clients in Postgres.
    Postgres,
    /// Hook `login`.
    HookLogin,
    /// Hook `allow`.
    HookAllow,
    /// Hook `message.before`.
    HookBefore,
    /// Remote set of keys.
    Jwks,
}

impl GuardedService {
    const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::RedisMirror => "redis_mirror",
            Self::RedisPermits => "redis_permits",
            Self::Postgres => "postgres",
            Self::HookLogin => "hook_login",
            Self::HookAllow => "hook_allow",
            Self::HookBefore => "hook_before",
            Self::Jwks => "jwks",
        }
    }

    /// Returns the name of the metric, which [`crate::metrics`] describes.
    const fn metric(self) -> &'static str {
        match self {
            Self::Redis => "tidegate_breaker_redis_open",
            Self::RedisMirror => "tidegate_breaker_redis_mirror_open",
            Self::RedisPermits => "tidegate_breaker_redis_permits_open",
            Self::Postgres => "tidegate_breaker_postgres_open",
            Self::HookLogin => "tidegate_breaker_hook_login_open",
            Self::HookAllow => "tidegate_breaker_hook_allow_open",
            Self::HookBefore => "tidegate_breaker_hook_before_open",
            Self::Jwks => "tidegate_breaker_jwks_open",
        }
    }

    /// Returns when the breaker opens, for calls that end within `deadline`.
    const fn rule(self, deadline: Duration) -> BreakerRule {
        let probe_max = deadline.saturating_add(Duration::from_secs(1));
        let short = BreakerRule {
            in_row: 3,
            in_recent: 0,
            open_min: SHORT_OPEN_TIME_MIN,
            open_max: SHORT_OPEN_TIME,
            // Callers report calls that were too slow as late, since some of them wait before they begin.
            deadline: Duration::MAX,
            probe_max,
        };
        match self {
            Self::Redis | Self::RedisMirror | Self::RedisPermits | Self::Postgres | Self::Jwks => short,
            Self::HookLogin | Self::HookAllow | Self::HookBefore => BreakerRule {
                in_row: 5,
                in_recent: RECENT_FAILURES,
                open_min: LONG_OPEN_TIME,
                open_max: LONG_OPEN_TIME,
                ..short
            },
        }
    }
}

/// Circuit breaker of one client of a service.
pub struct ServiceBreaker {
    service: GuardedService,
    state: Mutex<Breaker>,
    begun: Instant,
    gauge: Gauge,
}

/// Permitted call. Dropped without an outcome, it counts as cancelled by its caller.
pub struct GuardedCall {
    breaker: Arc<ServiceBreaker>,
    permit: Option<CallPermit>,
}

impl ServiceBreaker {
    /// Creates a closed breaker for calls that end within `deadline`.
    pub fn new(service: GuardedService, deadline: Duration) -> Arc<Self> {
        let state = Mutex::new(Breaker::new(service.rule(deadline), rand::random()));
        Arc::new(Self { service, state, begun: Instant::now(), gauge: gauge!(service.metric()) })
    }

    /// Returns the permit for a call, `None` if the call must fail at once.
    pub fn acquire(self: &Arc<Self>) -> Option<GuardedCall> {
        let permit = self.state.lock().acquire(self.now())?;
        Some(GuardedCall { breaker: Arc::clone(self), permit: Some(permit) })
    }

    /// Returns whether all failures since the last success were late replies.
    pub fn is_only_late(&self) -> bool {
        self.state.lock().is_only_late()
    }

    fn now(&self) -> Time {
        Time::from_millis(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Records an outcome. Returns whether it opened the breaker, or keeps it open.
    fn record(&self, permit: CallPermit, outcome: CallOutcome) -> bool {
        let (change, is_current) = {
            let mut state = self.state.lock();
            let is_current = state.is_current(permit);
            let change = state.record(permit, outcome, self.now());
            // Within the lock, so that the metric shows the last change.
            if let Some(change) = change {
                self.gauge.set(if change == BreakerChange::Opened { 1.0 } else { 0.0 });
            }
            (change, is_current)
        };
        let service = self.service.name();
        match change {
            Some(BreakerChange::Opened) => {
                tracing::warn!(
                    service,
                    ?outcome,
                    "breaker open: calls fail at once, and one at a time tries again"
                );
            }
            Some(BreakerChange::Closed) => {
                tracing::info!(service, "breaker closed: the service answers again")
            }
            None => {}
        }
        let is_failure = matches!(outcome, CallOutcome::Failed | CallOutcome::Late);
        change == Some(BreakerChange::Opened) || (is_failure && permit.is_probe() && is_current)
    }
}

impl Drop for ServiceBreaker {
    /// A breaker that is replaced is not open any more. A closed one leaves the metric to others of its service.
    fn drop(&mut self) {
        if self.state.get_mut().is_open() {
            self.gauge.set(0.0);
        }
    }
}

impl GuardedCall {
    /// Records that the service replied.
    pub fn succeeded(mut self) {
        self.end(CallOutcome::Succeeded);
    }

    /// Records a failure: no connection, or a service that can't serve. Returns whether the breaker is open because of it.
    pub fn failed(mut self) -> bool {
        self.end(CallOutcome::Failed)
    }

    /// Records that there was no reply in time. Returns whether the breaker is open because of it.
    pub fn late(mut self) -> bool {
        self.end(CallOutcome::Late)
    }

    /// Returns whether the breaker has not changed since the call was permitted. A caller that had to wait for its turn
    /// fails otherwise.
    pub fn is_current(&self) -> bool {
        self.permit.is_some_and(|permit| self.breaker.state.lock().is_current(permit))
    }

    fn end(&mut self, outcome: CallOutcome) -> bool {
        self.permit.take().is_some_and(|permit| self.breaker.record(permit, outcome))
    }
}

impl Drop for GuardedCall {
    fn drop(&mut self) {
        self.end(CallOutcome::Abandoned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker(service: GuardedService) -> Arc<ServiceBreaker> {
        ServiceBreaker::new(service, Duration::from_secs(1))
    }

    #[test]
    fn third_failure_in_a_row_opens_it_and_cancelled_calls_do_not_count() {
        let breaker = breaker(GuardedService::Redis);
        assert!(!breaker.acquire().unwrap().late());
        drop(breaker.acquire());
        assert!(!breaker.acquire().unwrap().late());
        let waits = breaker.acquire().unwrap();
        assert!(waits.is_current());
        assert!(breaker.acquire().unwrap().late(), "opened");
        assert!(!waits.is_current());
        assert!(!waits.failed(), "a call from before says nothing");
        assert!(breaker.acquire().is_none() && breaker.is_only_late());
    }

    #[test]
    fn success_between_failures_keeps_it_closed() {
        let breaker = breaker(GuardedService::HookAllow);
        for _ in 0..4 {
            assert!(!breaker.acquire().unwrap().failed());
        }
        breaker.acquire().unwrap().succeeded();
        for _ in 0..4 {
            assert!(!breaker.acquire().unwrap().failed());
        }
        assert!(breaker.acquire().unwrap().failed(), "five in a row");
    }
}
