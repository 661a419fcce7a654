//! Tests of the circuit breaker: by example, and over random outcomes.

use proptest::prelude::*;
use std::time::Duration;
use tidegate_protocol::{
    Time,
    machine::breaker::{
        Breaker, BreakerChange, BreakerRule, BreakerState, CallOutcome, CallPermit, RECENT_CALLS,
    },
};

const RULE: BreakerRule = BreakerRule {
    in_row: 3,
    in_recent: 10,
    open_min: Duration::from_millis(100),
    open_max: Duration::from_millis(800),
    deadline: Duration::from_millis(500),
    probe_max: Duration::from_millis(1_000),
};

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Opens the breaker at 0 and returns when it may be probed.
fn opened(seed: u64) -> (Breaker, u64) {
    let mut breaker = Breaker::new(RULE, seed);
    let permits = [(); 3].map(|()| breaker.acquire(at(0)).unwrap());
    let changes = permits.map(|permit| breaker.record(permit, CallOutcome::Failed, at(0)));
    assert_eq!(changes, [None, None, Some(BreakerChange::Opened)]);
    let BreakerState::Open(until) = breaker.state(at(0)) else { panic!("open") };
    (breaker, until.as_millis())
}

#[test]
fn breaker_opens_after_failures_in_a_row_and_one_probe_closes_it() {
    let (mut breaker, until) = opened(1);
    assert!((50..=100).contains(&until), "{until}");
    assert_eq!(breaker.acquire(at(until - 1)), None);
    let probe = breaker.acquire(at(until)).unwrap();
    assert!(probe.is_probe());
    assert_eq!((breaker.acquire(at(until)), breaker.state(at(until))), (None, BreakerState::HalfOpen));
    assert_eq!(breaker.record(probe, CallOutcome::Succeeded, at(until + 1)), Some(BreakerChange::Closed));
    assert_eq!(breaker.state(at(until + 1)), BreakerState::Closed);
    assert!(!breaker.acquire(at(until + 1)).unwrap().is_probe());
}

#[test]
fn breaker_stays_open_longer_with_each_failed_probe() {
    let (mut breaker, mut until) = opened(2);
    for longest in [200, 400, 800, 800, 800] {
        let probe = breaker.acquire(at(until)).unwrap();
        assert_eq!(breaker.record(probe, CallOutcome::Late, at(until)), None, "it was open before");
        let BreakerState::Open(next) = breaker.state(at(until)) else { panic!("open") };
        let open_for = next.as_millis() - until;
        assert!((longest / 2..=longest).contains(&open_for), "{open_for} of {longest}");
        until = next.as_millis();
    }
}

#[test]
fn breaker_counts_a_reply_after_the_deadline_as_a_failure() {
    let mut breaker = Breaker::new(RULE, 3);
    let permits = [(); 3].map(|()| breaker.acquire(at(0)).unwrap());
    for permit in &permits[..2] {
        assert_eq!(breaker.record(*permit, CallOutcome::Succeeded, at(501)), None);
    }
    assert_eq!(breaker.record(permits[2], CallOutcome::Succeeded, at(500)), None, "in time");
    let permits = [(); 3].map(|()| breaker.acquire(at(1_000)).unwrap());
    let changes = permits.map(|permit| breaker.record(permit, CallOutcome::Succeeded, at(1_501)));
    assert_eq!(changes, [None, None, Some(BreakerChange::Opened)]);
    assert!(breaker.is_only_late());
}

#[test]
fn breaker_opens_after_ten_failures_of_the_last_twenty_calls() {
    let calls = |every: u32| {
        let mut breaker = Breaker::new(RULE, 4);
        (0..300_u32).find(|n| {
            let permit = breaker.acquire(at(0)).unwrap();
            let outcome = if n % every == 0 { CallOutcome::Failed } else { CallOutcome::Succeeded };
            breaker.record(permit, outcome, at(0)).is_some()
        })
    };
    assert_eq!(calls(2), Some(18), "the tenth failure, within {RECENT_CALLS} calls");
    assert_eq!(calls(3), None);
}

#[test]
fn breaker_ignores_calls_from_before_it_opened() {
    let mut breaker = Breaker::new(RULE, 5);
    let earlier = breaker.acquire(at(0)).unwrap();
    for _ in 0..3 {
        let permit = breaker.acquire(at(0)).unwrap();
        breaker.record(permit, CallOutcome::Failed, at(0));
    }
    assert_eq!(breaker.record(earlier, CallOutcome::Succeeded, at(10)), None);
    assert_eq!(breaker.acquire(at(10)), None);
    let probe = breaker.acquire(at(100)).unwrap();
    assert_eq!(breaker.record(earlier, CallOutcome::Failed, at(100)), None);
    assert_eq!(breaker.record(probe, CallOutcome::Succeeded, at(101)), Some(BreakerChange::Closed));
    assert_eq!(breaker.record(probe, CallOutcome::Failed, at(101)), None, "an outcome counts once");
}

#[test]
fn breaker_replaces_a_probe_that_never_ends_or_was_abandoned() {
    let (mut breaker, until) = opened(6);
    let lost = breaker.acquire(at(until)).unwrap();
    assert_eq!(breaker.acquire(at(until + 999)), None);
    let probe = breaker.acquire(at(until + 1_000)).unwrap();
    assert_eq!(breaker.record(lost, CallOutcome::Succeeded, at(until + 1_000)), None, "it was replaced");
    assert_eq!(breaker.record(probe, CallOutcome::Abandoned, at(until + 1_001)), None);
    assert_eq!(breaker.state(at(until + 1_001)), BreakerState::HalfOpen);
    assert!(breaker.acquire(at(until + 1_001)).unwrap().is_probe());
}

#[test]
fn breaker_tells_late_replies_from_other_failures() {
    let (mut breaker, until) = opened(7);
    assert!(!breaker.is_only_late());
    let probe = breaker.acquire(at(until)).unwrap();
    breaker.record(probe, CallOutcome::Succeeded, at(until));
    assert!(breaker.is_only_late());
}

proptest! {
    /// At most one probe counts at a time, a breaker is refused for the longest open time at most while no probe is in
    /// flight, and the outcome of a probe decides.
    #[test]
    fn breaker_has_one_probe_and_never_locks_itself_out(
        steps in prop::collection::vec((0_u64..300, 0_u8..5), 1..300),
        seed in any::<u64>(),
    ) {
        let (mut breaker, mut now) = (Breaker::new(RULE, seed), 0);
        let mut out = Vec::<(CallPermit, u64)>::new();
        let mut refused_since = None;
        for (passed, action) in steps {
            now += passed;
            let is_probing = out.iter().any(|(permit, since)| permit.is_probe() && since + 1_000 > now);
            if action == 0 || out.is_empty() {
                match breaker.acquire(at(now)) {
                    None if is_probing => {}
                    None => {
                        let since = *refused_since.get_or_insert(now);
                        prop_assert!(now - since < 800, "refused since {}, now {}", since, now);
                    }
                    Some(permit) => {
                        prop_assert!(!permit.is_probe() || !is_probing, "two probes at {}", now);
                        refused_since = None;
                        out.push((permit, now));
                    }
                }
                continue;
            }
            let (permit, since) = out.remove(0);
            let counts = permit.is_probe() && since + 1_000 > now;
            let outcome = [CallOutcome::Succeeded, CallOutcome::Late, CallOutcome::Failed, CallOutcome::Abandoned]
                [usize::from(action) - 1];
            let change = breaker.record(permit, outcome, at(now));
            refused_since = refused_since.filter(|_| change.is_none() && !permit.is_probe());
            if counts {
                let is_closed = breaker.state(at(now)) == BreakerState::Closed;
                prop_assert_eq!(is_closed, outcome == CallOutcome::Succeeded && now - since <= 500);
            }
            if permit.is_probe() {
                // A replaced probe stays in the list until its outcome, which changes nothing.
                prop_assert!(counts || change.is_none() || since + 1_000 <= now);
            }
        }
    }
}
