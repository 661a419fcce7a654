//! Tests of permits: the server's log against an exact one, the table of its cases, and a simulated cluster.

mod cases;
mod cluster;

use proptest::prelude::*;
use std::time::Duration;
use tidegate_protocol::{
    Time,
    machine::permit::{
        ChargeStep, GRANT_BYTES_MAX, GRANT_RUNS_MAX, GrantLog, GrantRequest, KeyUses, LimitSource,
        PermitCheck, PermitRule, Permits, ShareSwitch, share_of,
    },
};

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn rule(limit: u32, window_ms: u64) -> PermitRule {
    PermitRule::new(limit, Duration::from_millis(window_ms))
}

/// Steps of the server's clock that are small or go back, with what is wanted and charged.
fn calls() -> impl Strategy<Value = Vec<(i64, u32, u32)>> {
    let step = prop_oneof![
        8 => 0..60_000_i64,
        2 => Just(0_i64),
        2 => 0..1_500_000_i64,
        1 => -3_000_000..0_i64,
    ];
    let charge = prop_oneof![9 => Just(0_u32), 1 => 0..40_u32];
    prop::collection::vec((step, 0..30_u32, charge), 1..250)
}

proptest! {
    /// Whatever the clock does, what was granted counts for at least its time: by the time that really passed, never more
    /// than the limit was granted within a life and a window, not counting charges.
    #[test]
    fn grant_never_exceeds_its_limit_when_the_clock_is_set_back(calls in calls(), limit in 1..60_u32) {
        let rule = rule(limit, 1_000);
        let counts_for = 1_050_000;
        let (mut value, mut clock, mut true_time) = (Vec::new(), 10_000_000_000_i64, 0_i64);
        let mut granted = Vec::<(i64, u32)>::new();
        for (step, want, charge) in calls {
            clock += step;
            // A clock that is set back by more than has passed.
            true_time += step.max(0);
            let mut log = GrantLog::decode(&value);
            let request = request(&rule, clock as u64, want, charge);
            let answer = log.grant(&request);
            value = log.encode();
            prop_assert!(value.len() <= GRANT_BYTES_MAX);
            prop_assert!(answer.granted <= want);
            let counted = granted.iter().filter(|it| it.0 + counts_for >= true_time).map(|it| it.1).sum::<u32>();
            if answer.granted > 0 {
                prop_assert!(counted + charge + answer.granted <= limit, "{} granted", answer.granted);
            }
            if charge + answer.granted > 0 {
                granted.push((true_time, charge + answer.granted));
            }
            if answer.granted < want {
                let later = |wait: u64| {
                    GrantLog::decode(&value).grant(&GrantRequest { want: 1, charge: 0, now_us: request.now_us + wait, ..request })
                };
                prop_assert_eq!(later(answer.wait_us).granted, 1, "after the wait");
                prop_assert_eq!(later(answer.wait_us - 1).granted, 0, "before the wait is over");
            }
        }
    }

    /// With a clock that only goes on, a refusal is justified by the limit within the time for which grants count and the
    /// merge time, which an exact limit does not have.
    #[test]
    fn grant_is_refused_only_with_a_reason(
        calls in prop::collection::vec((0..80_000_u64, 0..12_u32), 1..300),
        limit in prop_oneof![1..=16_u32, 17..80_u32],
    ) {
        let rule = rule(limit, 1_000);
        let counts_for = 1_050_000;
        let late = if limit > 16 { 1_050_000_u64.div_ceil(33) } else { 0 };
        let (mut log, mut now) = (GrantLog::default(), 5_000_000_u64);
        let mut granted = Vec::<(u64, u32)>::new();
        for (step, want) in calls {
            now += step;
            let within = |time: u64| granted.iter().filter(|it| it.0 + time >= now).map(|it| it.1).sum::<u32>();
            let answer = log.grant(&request(&rule, now, want, 0));
            if answer.granted < want {
                prop_assert!(within(counts_for + late) + answer.granted >= limit, "no reason at {}", now);
            }
            prop_assert!(log.encode().len().saturating_sub(8) / 12 <= GRANT_RUNS_MAX);
            granted.push((now, answer.granted));
        }
    }

    /// Values of any form are accepted, and grants stay within the limit.
    #[test]
    fn grant_accepts_any_value(value in prop::collection::vec(any::<u8>(), 0..500), is_valid in any::<bool>()) {
        let mut value = value;
        if is_valid && value.len() >= 8 {
            value[0] = 1;
            value.truncate(8 + (value.len() - 8) / 12 * 12);
        }
        let mut log = GrantLog::decode(&value);
        let answer = log.grant(&request(&rule(100, 1_000), 1_000_000_000, 50, 7));
        prop_assert!(answer.granted <= 50);
        prop_assert!(log.encode().len() <= GRANT_BYTES_MAX);
        prop_assert_eq!(GrantLog::decode(&log.encode()), log);
    }

    /// The shares of any nodes add up to the limit.
    #[test]
    fn share_adds_up_to_the_limit(nodes in prop::collection::hash_set(any::<u64>(), 1..9), limit in any::<u32>(), key in any::<u64>()) {
        let nodes: Vec<u64> = nodes.into_iter().collect();
        let shares = nodes.iter().map(|node| u64::from(share_of(limit, key, *node, &nodes)));
        prop_assert_eq!(shares.sum::<u64>(), u64::from(limit));
    }
}

fn request(rule: &PermitRule, now_us: u64, want: u32, charge: u32) -> GrantRequest {
    GrantRequest {
        now_us,
        want,
        charge,
        limit: rule.limit(),
        window_us: u64::try_from(rule.window().as_micros()).unwrap(),
        life_us: u64::try_from(rule.life().as_micros()).unwrap(),
    }
}

#[test]
fn grant_forgets_nothing_when_runs_are_merged() {
    let (rule, mut log) = (rule(10, 1_000), GrantLog::default());
    for n in 1..=60 {
        let answer = log.grant(&request(&rule, 1_000_000 + n * n, 1, 1));
        assert_eq!(answer.used, if n < 6 { 2 * n } else { n + 5 });
        assert!(log.encode().len() <= GRANT_BYTES_MAX);
    }
    // The first ones were merged, so they count as long as the last of them.
    assert_eq!(log.grant(&request(&rule, 2_050_000 + 3_600, 0, 0)).used, 1);
}

#[test]
fn share_of_a_small_limit_is_spread_over_the_nodes() {
    let nodes = [11, 22, 33];
    let mut counts = [0; 3];
    for key in 0..3_000 {
        for (count, node) in counts.iter_mut().zip(nodes) {
            *count += share_of(1, key, node, &nodes);
        }
    }
    assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
}

#[test]
fn permits_are_asked_for_what_waits_and_for_what_was_used() {
    let (rule, mut permits) = (rule(1_000, 3_200), Permits::default());
    assert_eq!(permits.check(at(0)), PermitCheck::Missing);
    assert_eq!(permits.poll_ask(&rule, 0, at(0)), None, "no request waits");
    (0..3).for_each(|_| permits.handle_waiting());
    let ask = permits.poll_ask(&rule, 0, at(0)).unwrap();
    assert_eq!((ask.id, ask.want), (1, 3));
    assert_eq!(permits.check(at(49)), PermitCheck::Waiting(at(50)));
    permits.handle_waiting();
    assert_eq!(permits.poll_ask(&rule, 0, at(49)), None, "one ask at a time");
    assert_eq!(permits.check(at(50)), PermitCheck::Overdue);
    assert!(permits.handle_answer(&rule, 1, 3, Duration::ZERO, at(60)), "it can still be used");
    assert!(!permits.handle_answer(&rule, 1, 3, Duration::ZERO, at(60)), "a doubled answer");
    assert_eq!((permits.held(at(99)), permits.held(at(100))), (3, 0), "life 100 ms from the sending");
    (0..3).for_each(|_| assert!(permits.take(&rule, at(99))));
    assert!(!permits.take(&rule, at(99)));
    assert_eq!(permits.poll_ask(&rule, 0, at(100)).unwrap().want, 1 + 3, "1.25 x 3, and one that waits");
}

#[test]
fn permits_are_refused_until_the_time_of_the_answer() {
    let (rule, mut permits) = (rule(10, 1_000), Permits::default());
    permits.handle_waiting();
    let ask = permits.poll_ask(&rule, 0, at(7)).unwrap();
    assert!(permits.handle_answer(&rule, ask.id, 0, Duration::from_micros(12_300), at(9)));
    assert_eq!(permits.check(at(21)), PermitCheck::Refused(at(22)));
    assert_eq!(permits.check(at(22)), PermitCheck::Missing);
    permits.handle_answer(&rule, ask.id, 5, Duration::ZERO, at(22));
    permits.handle_change();
    assert_eq!(permits.check(at(9)), PermitCheck::Missing);
}

#[test]
fn permits_remember_four_asks_and_merge_lots_with_the_earlier_end() {
    let (rule, mut permits) = (rule(1_000, 32_000), Permits::default());
    let mut ids = Vec::new();
    for n in 0..6 {
        permits.handle_waiting();
        ids.push(permits.poll_ask(&rule, 0, at(n * 50)).unwrap().id);
    }
    let answered = ids.iter().map(|id| permits.handle_answer(&rule, *id, 1, Duration::ZERO, at(300)));
    assert_eq!(answered.collect::<Vec<_>>(), [false, false, true, true, true, true]);
    permits.handle_waiting();
    let ask = permits.poll_ask(&rule, 0, at(900)).unwrap();
    permits.handle_answer(&rule, ask.id, 1, Duration::ZERO, at(901));
    assert_eq!(permits.held(at(1_249)), 2, "the last of six, sent at 250, and the merged one");
    assert_eq!(permits.held(at(1_250)), 0);
}

#[test]
fn permits_of_a_late_answer_never_last_longer_for_lack_of_lots() {
    let (rule, mut permits) = (rule(1_000, 32_000), Permits::default());
    let ask = |now: u64, permits: &mut Permits| {
        permits.handle_waiting();
        permits.poll_ask(&rule, 0, at(now)).unwrap().id
    };
    let first = ask(0, &mut permits);
    permits.handle_answer(&rule, first, 1, Duration::ZERO, at(1));
    let late = ask(10, &mut permits);
    for now in [60, 70, 80] {
        let id = ask(now, &mut permits);
        permits.handle_answer(&rule, id, 1, Duration::ZERO, at(now));
    }
    assert!(permits.handle_answer(&rule, late, 1, Duration::ZERO, at(90)));
    assert_eq!([999, 1_009, 1_010, 1_060].map(|now| permits.held(at(now))), [5, 4, 2, 1]);
}

#[test]
fn share_is_used_only_below_the_own_uses_of_the_last_window() {
    let (rule, mut uses) = (rule(30, 1_000), KeyUses::new(0));
    uses.handle_permits(&rule, 8, at(0));
    for _ in 0..2 {
        assert_eq!(uses.check_share(&rule, 10, at(500)), Ok(()));
        uses.commit_share(&rule, 10, at(500));
    }
    assert_eq!(uses.check_share(&rule, 10, at(500)), Err(at(1_001)));
    assert_eq!(uses.check_share(&rule, 0, at(1_001)), Err(at(2_001)));
    assert_eq!((uses.used(&rule, at(1_000)), uses.used(&rule, at(1_001))), (10, 2));
}

#[test]
fn share_switch_returns_to_permits_a_second_after_the_breaker_closed() {
    let mut switch = ShareSwitch::default();
    switch.handle_breaker(false, at(0));
    assert_eq!((switch.source(), switch.poll_timeout()), (LimitSource::Permits, None));
    switch.handle_breaker(true, at(10));
    assert_eq!(switch.source(), LimitSource::Shares);
    switch.handle_breaker(false, at(20));
    switch.handle_breaker(true, at(900));
    switch.handle_timeout(at(1_020));
    assert_eq!((switch.source(), switch.poll_timeout()), (LimitSource::Shares, None), "it opened again");
    switch.handle_breaker(false, at(1_100));
    switch.handle_breaker(false, at(1_500));
    assert_eq!(switch.poll_timeout(), Some(at(2_100)));
    switch.handle_timeout(at(2_099));
    assert_eq!(switch.source(), LimitSource::Shares);
    switch.handle_timeout(at(2_100));
    assert_eq!((switch.source(), switch.generation()), (LimitSource::Permits, 1));
}

#[test]
fn share_charges_the_uses_of_a_key_once_a_return() {
    let (rule, mut switch, mut uses) = (rule(30, 10_000), ShareSwitch::default(), KeyUses::new(0));
    uses.handle_permits(&rule, 7, at(0));
    assert_eq!(uses.poll_charge(&rule, &switch, at(1)), ChargeStep::Done);
    switch.handle_server_change();
    assert_eq!(uses.poll_charge(&rule, &switch, at(1)), ChargeStep::Send(7));
    uses.handle_charge_sent(1);
    assert_eq!(uses.poll_charge(&rule, &switch, at(500)), ChargeStep::Pending, "its call has not ended");
    uses.handle_charge_lost();
    assert_eq!(uses.poll_charge(&rule, &switch, at(500)), ChargeStep::Send(7), "the answer was lost");
    uses.handle_charge_sent(1);
    uses.handle_charged(&rule, at(510));
    assert_eq!(uses.poll_charge(&rule, &switch, at(52)), ChargeStep::Done);
    switch.handle_server_change();
    assert_eq!(uses.poll_charge(&rule, &switch, at(20_000)), ChargeStep::Done, "nothing to charge");
}

/// Goes on shares and returns to permits, which takes a second and a millisecond.
fn interrupt(switch: &mut ShareSwitch, now: u64) {
    switch.handle_breaker(true, at(now));
    switch.handle_breaker(false, at(now + 1));
    switch.handle_timeout(at(now + 1_001));
}

#[test]
fn share_charges_only_its_own_uses_to_the_same_server() {
    let (rule, mut switch, mut uses) = (rule(30, 60_000), ShareSwitch::default(), KeyUses::new(0));
    uses.handle_permits(&rule, 9, at(0));
    interrupt(&mut switch, 0);
    assert_eq!(uses.poll_charge(&rule, &switch, at(1_100)), ChargeStep::Done, "the server counted permits");
    interrupt(&mut switch, 2_000);
    (0..3).for_each(|_| uses.commit_share(&rule, 15, at(2_500)));
    assert_eq!(uses.poll_charge(&rule, &switch, at(3_100)), ChargeStep::Send(3));
    uses.handle_charge_sent(switch.generation());
    uses.commit_share(&rule, 15, at(3_110));
    uses.handle_charged(&rule, at(3_120));
    assert!(uses.is_charged(&rule, &switch, at(3_120)));
    interrupt(&mut switch, 4_000);
    assert_eq!(uses.poll_charge(&rule, &switch, at(5_100)), ChargeStep::Send(1), "one after the charge");
    switch.handle_server_change();
    assert_eq!(uses.poll_charge(&rule, &switch, at(5_100)), ChargeStep::Send(13), "another server");
}
