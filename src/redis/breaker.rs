//! Circuit breaker: after several consecutive failures, calls fail at once, and one probe at a time retries the server.

use std::time::Duration;

use tidegate_protocol::Time;

use crate::backoff::Backoff;

/// Consecutive failures that open the breaker.
const FAILURES_MAX: u32 = 3;
/// Time for which it first stays open.
const OPEN_TIME_MIN: Duration = Duration::from_millis(100);
/// Limit on the open time, which doubles with each failed probe. Short, so that a server is used again within a second
/// of its return.
const OPEN_TIME_MAX: Duration = Duration::from_millis(800);

/// Circuit breaker: closed, open, or half open while a probe is in flight.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    /// Whether a failure since the last reply was anything but a late reply.
    has_other_failure: bool,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    until: Time,
    open_times: Backoff,
    is_probing: bool,
}

/// Permission for one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakerPermit {
    /// Call allowed: the breaker is closed.
    Normal,
    /// Single call allowed while the breaker is open; its outcome closes the breaker or keeps it open.
    Probe,
    /// Call refused: fail at once.
    Refused,
}

impl Breaker {
    /// Returns the permit for a call. A `Normal` or `Probe` permit must be followed by one call of
    /// [`Self::succeeded`], [`Self::failed`] or [`Self::abandoned`].
    pub(super) fn acquire(&mut self, now: Time) -> BreakerPermit {
        match &mut self.open {
            None => BreakerPermit::Normal,
            Some(open) if now < open.until || open.is_probing => BreakerPermit::Refused,
            Some(open) => {
                open.is_probing = true;
                BreakerPermit::Probe
            }
        }
    }

    /// Records that the server replied.
    pub(super) fn succeeded(&mut self, permit: BreakerPermit) {
        // A reply to a call from before the breaker opened does not show that the server works now.
        if permit == BreakerPermit::Probe || self.open.is_none() {
            *self = Self::default();
        }
    }

    /// Records a failure: no reply in time (`is_late`), no connection, or a server that can't serve. Returns whether it
    /// opened the breaker.
    pub(super) fn failed(&mut self, permit: BreakerPermit, is_late: bool, now: Time) -> bool {
        self.has_other_failure |= !is_late;
        match &mut self.open {
            Some(open) if permit == BreakerPermit::Probe => {
                open.until = now + open.open_times.next_delay();
                open.is_probing = false;
                true
            }
            Some(_) => false,
            None => {
                self.failures += 1;
                if self.failures < FAILURES_MAX {
                    return false;
                }
                let mut open_times = Backoff::new(OPEN_TIME_MIN, OPEN_TIME_MAX);
                let until = now + open_times.next_delay();
                self.open = Some(Open { until, open_times, is_probing: false });
                true
            }
        }
    }

    /// Returns whether all failures since the last reply were late replies.
    pub(super) fn is_only_late(&self) -> bool {
        !self.has_other_failure
    }

    /// Records that the caller was cancelled before an outcome.
    pub(super) fn abandoned(&mut self, permit: BreakerPermit) {
        if let Some(open) = self.open.as_mut()
            && permit == BreakerPermit::Probe
        {
            open.is_probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn three_consecutive_failures_open_it_and_one_probe_closes_it() {
        let mut breaker = Breaker::default();
        for outcome in [false, false, true, false, false] {
            let permit = breaker.acquire(at(0));
            assert_eq!(permit, BreakerPermit::Normal);
            if outcome { breaker.succeeded(permit) } else { assert!(!breaker.failed(permit, true, at(0))) }
        }
        assert!(breaker.failed(BreakerPermit::Normal, true, at(0)));
        assert_eq!(breaker.acquire(at(99)), BreakerPermit::Refused);
        assert_eq!(breaker.acquire(at(100)), BreakerPermit::Probe);
        assert_eq!(breaker.acquire(at(100)), BreakerPermit::Refused, "one at a time");
        assert!(breaker.failed(BreakerPermit::Probe, true, at(150)));
        assert_eq!(breaker.acquire(at(349)), BreakerPermit::Refused, "twice as long");
        assert_eq!(breaker.acquire(at(350)), BreakerPermit::Probe);
        breaker.abandoned(BreakerPermit::Probe);
        assert_eq!(breaker.acquire(at(350)), BreakerPermit::Probe, "an abandoned probe is repeated");
        breaker.succeeded(BreakerPermit::Normal);
        assert_eq!(breaker.acquire(at(350)), BreakerPermit::Refused, "an earlier call's reply is ignored");
        breaker.succeeded(BreakerPermit::Probe);
        assert_eq!(breaker.acquire(at(350)), BreakerPermit::Normal);
    }

    #[test]
    fn other_failure_is_remembered_until_a_reply() {
        let mut breaker = Breaker::default();
        let opened = [(); 3].map(|()| breaker.failed(BreakerPermit::Normal, true, at(0)));
        assert_eq!(opened, [false, false, true]);
        assert_eq!((breaker.acquire(at(0)), breaker.is_only_late()), (BreakerPermit::Refused, true));
        let probe = breaker.acquire(at(100));
        breaker.failed(probe, false, at(100));
        assert_eq!((breaker.acquire(at(100)), breaker.is_only_late()), (BreakerPermit::Refused, false));
        let probe = breaker.acquire(at(300));
        breaker.failed(probe, true, at(500));
        assert!(!breaker.is_only_late(), "a late reply after it changes nothing");
        let probe = breaker.acquire(at(900));
        breaker.succeeded(probe);
        assert!(breaker.is_only_late());
    }

    proptest! {
        /// At most one probe is in flight, a refusal lasts for the maximum open time at most, and a successful probe
        /// closes the breaker.
        #[test]
        fn breaker_never_locks_itself_out(steps in prop::collection::vec((0_u64..400, 0_u8..4), 1..200)) {
            let (mut breaker, mut now, mut out, mut probes) = (Breaker::default(), 0, Vec::new(), 0);
            let mut refused_since = None;
            for (passed, action) in steps {
                now += passed;
                if action == 0 || out.is_empty() {
                    let permit = breaker.acquire(at(now));
                    match permit {
                        BreakerPermit::Refused if probes == 0 => {
                            let since = *refused_since.get_or_insert(now);
                            prop_assert!(now - since < 800, "refused since {since}, now {now}");
                        }
                        BreakerPermit::Refused => {}
                        BreakerPermit::Probe | BreakerPermit::Normal => {
                            probes += u32::from(permit == BreakerPermit::Probe);
                            prop_assert!(probes <= 1);
                            refused_since = None;
                            out.push(permit);
                        }
                    }
                    continue;
                }
                let permit = out.remove(0);
                probes -= u32::from(permit == BreakerPermit::Probe);
                match action {
                    1 => {
                        breaker.succeeded(permit);
                        if permit == BreakerPermit::Probe {
                            prop_assert!(breaker.open.is_none());
                        }
                    }
                    2 => {
                        breaker.failed(permit, action == 2, at(now));
                        refused_since = None;
                    }
                    _ => breaker.abandoned(permit),
                }
            }
        }
    }
}
