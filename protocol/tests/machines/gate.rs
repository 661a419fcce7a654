//! Tests of the node guard: by example, over random work, and in a simulated overload.

mod overload;

use proptest::prelude::*;
use std::time::Duration;
use tidegate_protocol::{
    Time,
    machine::gate::{
        ANNOUNCED_MAX, ANNOUNCED_MIN, AnnouncedWait, COST_UNIT, GateClass, GateRule, LOAD_LEVEL_MAX,
        LoadGate, LoadLevel, StandingDelay,
    },
};

const RULE: GateRule = GateRule { min: 64, max: 4_096, excess: Duration::from_millis(20) };

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Fills a gate with requests of a class and returns how many were admitted.
fn fill(gate: &mut LoadGate, class: GateClass, is_light: bool) -> usize {
    (0..10_000).take_while(|_| gate.enter(class, COST_UNIT, is_light)).count()
}

#[test]
fn gate_gives_each_class_its_share_and_light_connections_more() {
    let gate = LoadGate::new(GateRule { min: 1_000, ..RULE }, at(0));
    let filled = GateClass::ALL.map(|class| fill(&mut gate.clone(), class, false));
    assert_eq!(filled, [500, 600, 800, 900, 950, 1_000]);
    let mut busy = gate.clone();
    assert_eq!(fill(&mut busy, GateClass::Send, false), 950);
    assert!(!busy.enter(GateClass::Read, COST_UNIT, true), "a lower class is refused");
    assert_eq!(fill(&mut busy, GateClass::Send, true), 50, "a quiet user is admitted");
    assert_eq!(fill(&mut busy, GateClass::Urgent, true), 50, "up to 1.05");
    assert_eq!((busy.in_flight(), busy.refused()), (1_050, 4));
}

#[test]
fn open_gate_refuses_once_work_was_delayed_for_some_windows_and_forgets_it_within_a_minute() {
    let mut gate = LoadGate::open(RULE, at(0));
    assert_eq!(gate.limit(), 4_096);
    let mut now = 0;
    let mut answer = |gate: &mut LoadGate, delay: Duration| {
        (0..8).for_each(|_| gate.leave(0, Some(delay)));
        now += 100;
        gate.handle_timeout(at(now));
    };
    answer(&mut gate, ms(1));
    (0..500).for_each(|_| assert!(gate.enter(GateClass::Send, COST_UNIT, false)));
    answer(&mut gate, ms(21));
    assert_eq!(gate.limit(), 4_096, "20 ms above the base");
    answer(&mut gate, ms(22));
    assert_eq!(gate.limit(), 3_481, "0.85 of it");
    let late = (1..).take_while(|_| {
        answer(&mut gate, ms(22));
        gate.enter(GateClass::Send, COST_UNIT, false)
    });
    assert_eq!(late.count(), 11, "0.95 of the limit is soon below what is in flight");
    assert!(gate.limit() < 500 && !gate.has_room(GateClass::Signal));
    gate.leave(511 * COST_UNIT, None);
    (0..250).for_each(|_| answer(&mut gate, ms(1)));
    assert_eq!(gate.limit(), 4_096);
}

#[test]
fn gate_counts_work_by_its_cost_and_admits_any_unit_when_idle() {
    let mut gate = LoadGate::new(RULE, at(0));
    assert!(gate.enter(GateClass::Signal, 10_000 * COST_UNIT, false), "idle");
    assert!(!gate.enter(GateClass::Urgent, 1, true));
    gate.leave(10_000 * COST_UNIT, None);
    // 20 receivers: 1 + 20/16.
    let admitted = (0..100).take_while(|_| gate.enter(GateClass::Urgent, COST_UNIT + 20, false)).count();
    assert_eq!(admitted, 28, "64 x 16 / 36");
    assert_eq!(gate.in_flight(), 63);
}

/// Runs a window of as much work as the smallest limit admits, with a delay; more is refused if that is wanted.
fn window(gate: &mut LoadGate, now: &mut u64, delay: Duration, is_refused: bool) {
    (0..32).for_each(|_| assert!(gate.enter(GateClass::Urgent, COST_UNIT, false)));
    if is_refused {
        fill(gate, GateClass::Urgent, false);
    } else {
        (0..32).for_each(|_| assert!(gate.enter(GateClass::Urgent, COST_UNIT, false)));
    }
    while gate.in_flight() > 8 {
        gate.leave(COST_UNIT, None);
    }
    (0..8).for_each(|_| gate.leave(COST_UNIT, Some(delay)));
    *now += 100;
    gate.handle_timeout(at(*now));
}

#[test]
fn gate_grows_while_it_refuses_and_falls_with_a_standing_delay() {
    let (mut gate, mut now) = (LoadGate::new(RULE, at(0)), 0);
    window(&mut gate, &mut now, ms(1), false);
    assert_eq!(gate.limit(), 64, "nothing was refused");
    window(&mut gate, &mut now, ms(21), true);
    assert_eq!(
        gate.limit(),
        80,
        "20 ms above the base are not too much; a quarter before the first decrease"
    );
    (0..100).for_each(|_| window(&mut gate, &mut now, ms(1), true));
    assert_eq!(gate.limit(), 4_096, "up to the bound");
    window(&mut gate, &mut now, ms(22), true);
    (0..3).for_each(|_| window(&mut gate, &mut now, ms(22), true));
    assert_eq!(gate.limit(), 2_138);
    window(&mut gate, &mut now, ms(1), true);
    assert_eq!(gate.limit(), 2_245, "5 % after a decrease");
    (0..100).for_each(|_| window(&mut gate, &mut now, ms(1), true));
    window(&mut gate, &mut now, ms(22), true);
    assert_eq!(gate.limit(), 3_481);
    (0..100).for_each(|_| window(&mut gate, &mut now, ms(22), false));
    assert_eq!(gate.limit(), 64, "85 % each, down to the bound");
}

#[test]
fn gate_ignores_a_stall_of_some_units_and_a_window_without_answers() {
    let (mut gate, mut now) = (LoadGate::new(RULE, at(0)), 0);
    window(&mut gate, &mut now, ms(1), true);
    let limit = gate.limit();
    (0..70).for_each(|_| assert!(gate.enter(GateClass::Send, COST_UNIT, false)));
    for n in 0..70 {
        gate.leave(COST_UNIT, Some(ms(if n == 30 { 2 } else { 500 })));
    }
    now += 100;
    gate.handle_timeout(at(now));
    gate.handle_timeout(at(now + 99));
    now += 100;
    gate.handle_timeout(at(now));
    assert_eq!(gate.limit(), limit);
}

#[test]
fn late_answers_of_little_work_lower_no_limit() {
    let mut gate = LoadGate::open(RULE, at(0));
    let mut now = 0;
    let mut window = |gate: &mut LoadGate, count: usize, answered: usize, delay: u64| {
        (0..count).for_each(|_| assert!(gate.enter(GateClass::Send, COST_UNIT, false)));
        (0..count).for_each(|n| gate.leave(COST_UNIT, (n < answered).then_some(ms(delay))));
        now += 100;
        gate.handle_timeout(at(now));
        gate.limit()
    };
    window(&mut gate, 8, 8, 1);
    assert_eq!(window(&mut gate, 1, 1, 500), 4_096, "one message");
    assert_eq!(window(&mut gate, 63, 63, 500), 4_096, "less than the smallest limit in flight");
    assert_eq!(window(&mut gate, 1_000, 7, 500), 4_096, "too few delays");
    assert_eq!(window(&mut gate, 64, 8, 500), 3_481);
}

#[test]
fn gate_counts_what_it_is_not_asked_to_admit() {
    let mut gate = LoadGate::new(RULE, at(0));
    gate.enter_admitted(100 * COST_UNIT);
    assert!(!gate.enter(GateClass::Urgent, COST_UNIT, true));
    assert_eq!(gate.in_flight(), 100);
    gate.leave(100 * COST_UNIT, None);
    assert_eq!(gate.in_flight(), 0);
}

#[test]
fn gate_halves_a_limit_that_refuses_for_30_seconds_to_see_the_base() {
    let (mut gate, mut now) = (LoadGate::new(GateRule { max: 1_000, ..RULE }, at(0)), 0);
    let mut low = Vec::new();
    for _ in 0..1_300 {
        window(&mut gate, &mut now, ms(1), true);
        if gate.limit() == 500 {
            low.push(now);
        }
    }
    let lengths: Vec<u64> = low.iter().zip(&low[1..]).map(|(a, b)| b - a).collect();
    assert!(
        lengths.contains(&100) && lengths.iter().all(|length| [100, 29_900].contains(length)),
        "{lengths:?}"
    );
    assert_eq!(gate.limit(), 1_000);
}

#[test]
fn standing_delay_forgets_its_base_after_a_minute() {
    let mut delay = StandingDelay::new(at(0));
    assert_eq!((delay.handle_timeout(at(100)), delay.base()), (None, None));
    let mut forgotten_at = None;
    for n in 2..1_000 {
        delay.handle_delay(if n < 10 { ms(2) } else { ms(30) });
        delay.handle_delay(ms(300));
        let excess = delay.handle_timeout(at(n * 100)).unwrap();
        assert!([ms(0), ms(28)].contains(&excess));
        if n >= 10 && excess == ms(0) {
            forgotten_at = forgotten_at.or(Some(n * 100));
        }
    }
    assert!((55_000..=60_000).contains(&forgotten_at.unwrap()), "{forgotten_at:?}");
    delay.handle_delay(ms(7));
    assert_eq!(delay.handle_timeout(at(10_000_000)), Some(ms(0)), "a pause clears all parts");
    assert_eq!(delay.base(), Some(ms(7)));
}

#[test]
fn load_level_rises_at_once_and_falls_by_one_each_five_seconds() {
    let mut level = LoadLevel::default();
    assert!(!level.handle_pressure(1.1, at(0)));
    assert!(level.handle_pressure(1.9, at(100)));
    assert_eq!(level.level(), 3);
    let admitted = GateClass::ALL.map(|class| level.admits(class));
    assert_eq!(admitted, [false, false, false, true, true, true]);
    assert!(!level.handle_pressure(1.7, at(200)), "not below 0.9 of its begin");
    level.handle_pressure(1.0, at(300));
    level.handle_pressure(1.7, at(5_000));
    level.handle_pressure(1.0, at(5_100));
    assert!(!level.handle_pressure(1.0, at(10_099)), "the time began again");
    let mut falls = Vec::new();
    for now in (10_100..40_000).step_by(100) {
        if level.handle_pressure(f64::NAN.min(0.5), at(now)) {
            falls.push(now);
        }
    }
    assert_eq!(falls, [10_100, 15_100, 20_100]);
    level.handle_pressure(f64::INFINITY, at(50_000));
    assert_eq!(level.level(), LOAD_LEVEL_MAX);
    assert!(level.admits(GateClass::Send) && !level.admits(GateClass::New));
}

#[test]
fn announced_wait_follows_the_share_of_refusals() {
    let mut wait = AnnouncedWait::new(at(0));
    let window = |refused: u32, wait: &mut AnnouncedWait| {
        (0..100).for_each(|n| wait.handle_frame(n < refused));
        let now = wait.poll_timeout().as_millis();
        wait.handle_timeout(at(now - 1));
        wait.handle_timeout(at(now));
        wait.mean()
    };
    assert_eq!(window(5, &mut wait), ms(500), "5 % are not too many");
    assert_eq!(window(6, &mut wait), ms(625));
    assert_eq!(window(1, &mut wait), ms(625), "1 % are not too few");
    assert_eq!(window(0, &mut wait), ms(500));
    assert_eq!(window(0, &mut wait), ANNOUNCED_MIN);
    (0..30).for_each(|_| {
        window(100, &mut wait);
    });
    assert_eq!(wait.mean(), ANNOUNCED_MAX);
    let before = wait.poll_timeout();
    window(100, &mut wait);
    assert_eq!(wait.poll_timeout().since(before), ms(2_000), "a step takes longer for a longer wait");
    assert_eq!((wait.announced(0), wait.announced(u64::MAX)), (ms(24_000), ms(36_000)));
}

proptest! {
    /// Work in flight is what was admitted and has not left, within the share of its class unless the gate was idle; the
    /// limit is within its bounds.
    #[test]
    fn gate_is_within_its_bounds(
        steps in prop::collection::vec((0_usize..6, 0_u32..400, any::<bool>(), 0_u64..60, 0_u8..4), 1..300),
    ) {
        let (mut gate, mut open, mut now) = (LoadGate::new(GateRule { max: 100, ..RULE }, at(0)), Vec::new(), 0);
        for (class, cost, is_light, passed, action) in steps {
            now += passed;
            gate.handle_timeout(at(now));
            prop_assert!((32..=100).contains(&gate.limit()));
            let work = open.iter().map(|cost| u64::from(*cost)).sum::<u64>();
            prop_assert_eq!(gate.in_flight(), work.div_ceil(16));
            if action == 0 && !open.is_empty() {
                gate.leave(open.remove(0), Some(ms(passed)));
                continue;
            }
            let class = GateClass::ALL[class];
            let part = class.share() + if is_light { 0.05 } else { 0.0 };
            let most = f64::from(gate.limit() + 1) * 16.0 * part;
            if gate.enter(class, cost, is_light) {
                prop_assert!(open.is_empty() || work == 0 || (work + u64::from(cost)) as f64 <= most);
                open.push(cost);
            } else {
                prop_assert!((work + u64::from(cost)) as f64 > f64::from(gate.limit()) * 16.0 * part);
            }
        }
    }
}
