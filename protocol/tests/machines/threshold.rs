//! Tests of limits that follow the load and the history: by example, and over a simulated week.

mod chart;
mod week;

use proptest::prelude::*;
use tidegate_protocol::machine::threshold::{
    BUSY_TARGET, DynamicLimit, HISTORY_MAX, HISTORY_MIN, HourMeter, HourOfWeek, LOAD_MAX, LOAD_MIN, LimitUse,
    LoadFactor, LoadPressure, PressureSignal, WeekProfile,
};

const MONDAY_9: HourOfWeek = HourOfWeek::at((4 * 24 + 9) * 3_600_000);

/// Base of the keys that learn.
const BASE: u32 = 1_000;

fn busy(value: f64) -> LoadPressure {
    LoadPressure { signal: PressureSignal::ShardBusy, shard: Some(1), value, target: BUSY_TARGET }
}

const fn limits(is_binding: bool, largest: f64) -> LimitUse {
    LimitUse { is_binding, largest }
}

/// Returns the smallest and largest load factor in the last minute of ten, of a loop of some delay.
fn last_minute(delay: usize, demand: f64) -> (f64, f64) {
    let mut load = LoadFactor::default();
    let mut factors = vec![1.0; delay];
    for _ in 0..600 {
        let applied = factors[factors.len() - delay];
        // The pressure is proportional to what is admitted.
        let pressure = busy(0.9 * demand * applied);
        load.handle_second(&[pressure], limits(demand > 1.0, 1.0));
        factors.push(load.factor());
    }
    let last = &factors[540..];
    (last.iter().copied().fold(f64::MAX, f64::min), last.iter().copied().fold(0.0, f64::max))
}

#[test]
fn threshold_is_constant_under_constant_load() {
    for delay in 1..=3 {
        for demand in [1.1, 1.5, 2.0, 4.0, 8.0] {
            let (least, most) = last_minute(delay, demand);
            assert!(most - least < 0.003, "{least} to {most} with a delay of {delay} s");
            assert!((0.95..=1.052).contains(&(most * demand)), "{most} of {demand}");
        }
    }
}

#[test]
fn threshold_is_above_one_only_while_a_limit_is_reached() {
    let mut load = LoadFactor::default();
    for _ in 0..100 {
        load.handle_second(&[busy(0.3)], limits(false, 0.5));
        assert_eq!(load.factor(), 1.0);
    }
    (0..100).for_each(|_| load.handle_second(&[busy(0.3)], limits(true, 1.0)));
    assert!((load.factor() - LOAD_MAX).abs() < 1e-9);
    (0..9).for_each(|_| load.handle_second(&[busy(0.3)], limits(false, 1.0)));
    assert!((load.factor() - LOAD_MAX).abs() < 1e-9, "a pause of 9 s");
    (0..10).for_each(|_| load.handle_second(&[busy(0.3)], limits(false, 0.5)));
    assert_eq!(load.factor(), 1.0);
}

#[test]
fn threshold_falls_fast_from_what_is_used_and_rises_slowly() {
    let mut load = LoadFactor::default();
    let step = (-0.25_f64).exp();
    for expected in [step, step * step, 0.5 * step] {
        load.handle_second(&[busy(9.0)], limits(false, 0.5));
        assert!((load.factor() - expected).abs() < 1e-9, "the margin of 0.5 counts for two steps");
    }
    (0..20).for_each(|_| load.handle_second(&[busy(9.0)], limits(true, 1.0)));
    assert!((load.factor() - LOAD_MIN).abs() < 1e-9);
    let seconds = (1..).find(|_| {
        load.handle_second(&[busy(0.1)], limits(true, 1.0));
        load.factor() >= 1.0
    });
    assert_eq!(seconds, Some(77), "3 % each second");
}

#[test]
fn threshold_of_a_quiet_node_falls_by_little_with_short_peaks() {
    let mut load = LoadFactor::default();
    for peak in [1, 2] {
        (0..peak).for_each(|_| load.handle_second(&[busy(9.0)], limits(false, 0.01)));
        assert!((load.factor() - (-0.25 * f64::from(peak)).exp()).abs() < 1e-9, "a peak of {peak} s");
        (0..20).for_each(|_| load.handle_second(&[busy(0.1)], limits(false, 0.01)));
        assert_eq!(load.factor(), 1.0);
    }
    (0..3).for_each(|_| load.handle_second(&[busy(9.0)], limits(false, 0.01)));
    assert!((load.factor() - LOAD_MIN).abs() < 1e-9, "no peak any more");
}

#[test]
fn threshold_stays_without_signals() {
    let mut load = LoadFactor::default();
    load.handle_second(&[busy(2.0)], limits(true, 1.0));
    let before = load.factor();
    load.handle_second(&[], limits(true, 1.0));
    assert_eq!((load.factor(), load.pressure()), (before, None));
    let useless = LoadPressure { value: f64::NAN, ..busy(0.0) };
    load.handle_second(&[useless, busy(0.9)], limits(true, 1.0));
    assert_eq!((load.factor(), load.pressure()), (before, Some(busy(0.9))));
}

#[test]
fn threshold_above_one_returns_to_one_without_signals() {
    let mut load = LoadFactor::default();
    let useless = LoadPressure { value: f64::NAN, ..busy(0.0) };
    for signals in [&[][..], &[useless]] {
        (0..100).for_each(|_| load.handle_second(&[busy(0.3)], limits(true, 1.0)));
        assert!((load.factor() - LOAD_MAX).abs() < 1e-9);
        (0..7).for_each(|_| load.handle_second(signals, limits(true, 1.0)));
        assert_eq!((load.factor(), load.pressure()), (1.0, None));
    }
}

#[test]
fn threshold_is_explained_exactly() {
    let mut profile = WeekProfile::default();
    for _ in 0..5 {
        let mut meter = HourMeter::default();
        (0..3_600).for_each(|n| meter.handle_window(if n % 2 == 0 { 8_300 } else { 9_700 }, true));
        profile.learn(MONDAY_9, BASE, &mut meter);
    }
    let mut load = LoadFactor::default();
    let pressures = [busy(0.97), LoadPressure { value: 100.0, target: 2_000.0, ..busy(0.0) }];
    (0..3).for_each(|_| load.handle_second(&pressures, limits(true, 0.815)));
    let limit = DynamicLimit::new(10_000, 1_000, 15_000);
    let threshold = limit.threshold(&load, Some(&profile), MONDAY_9);
    assert_eq!(
        threshold.to_string(),
        "base 10,000 x load 0.8 x history 1.11 = 8,880 (bounds 1,000 to 15,000); load: shard 1 busy 0.97 of 0.90; \
         history: Monday 09:00, mean 9,000, deviation 700, 5 weeks"
    );
    assert_eq!(threshold.limit, 8_880);
    let elsewhere = limit.threshold(&LoadFactor::default(), Some(&profile), HourOfWeek::at(0));
    assert_eq!(elsewhere.to_string(), "base 10,000 x load 1 x history 1 = 10,000 (bounds 1,000 to 15,000)");
    let bounded = DynamicLimit::new(500, 1_000, 0).threshold(&load, None, MONDAY_9);
    assert_eq!((bounded.product, bounded.limit, bounded.max), (400, 1_000, 1_000));
}

#[test]
fn threshold_names_the_hour_of_a_week() {
    assert_eq!(HourOfWeek::at(0).to_string(), "Thursday 00:00");
    assert_eq!(MONDAY_9.to_string(), "Monday 09:00");
    // 2026-11-29 03:03 UTC.
    assert_eq!(HourOfWeek::at(1_795_921_380_000).to_string(), "Sunday 03:00");
}

/// Learns the hour with constant use for some weeks.
fn learn(profile: &mut WeekProfile, units: u32, weeks: usize) {
    for _ in 0..weeks {
        let mut meter = HourMeter::default();
        (0..3_600).for_each(|_| meter.handle_window(units, true));
        profile.learn(MONDAY_9, BASE, &mut meter);
    }
}

#[test]
fn threshold_learns_only_clean_hours() {
    let mut profile = WeekProfile::default();
    for (clean, weeks) in [(3_239, 0), (3_240, 1), (3_600, 2)] {
        let mut meter = HourMeter::default();
        (0..3_600).for_each(|n| meter.handle_window(if n < clean { 1_000 } else { 9_000 }, n < clean));
        profile.learn(MONDAY_9, BASE, &mut meter);
        let known = profile.expected(MONDAY_9);
        assert_eq!((known.is_some(), profile.is_known()), (weeks == 2, weeks == 2), "known after two");
    }
    let known = profile.expected(MONDAY_9).unwrap();
    assert!((known.mean - 1_000.0).abs() < 1.0, "{known}");
    assert!((profile.factor(MONDAY_9, 1_000) - 1.15).abs() < 0.01, "three deviations of 5 %");
}

#[test]
fn threshold_of_an_idle_key_is_learnt_once_it_is_busy() {
    let mut profile = WeekProfile::default();
    learn(&mut profile, 0, 3);
    assert_eq!(profile.factor(MONDAY_9, BASE), HISTORY_MIN);
    let weeks = (1..100).find(|_| {
        let limit = profile.factor(MONDAY_9, BASE) * f64::from(BASE);
        learn(&mut profile, limit as u32, 1);
        profile.factor(MONDAY_9, BASE) >= 1.0
    });
    assert!((5..30).contains(&weeks.unwrap()), "{weeks:?}");
    // A flood of one week gains nothing.
    let mut profile = WeekProfile::default();
    learn(&mut profile, 0, 3);
    learn(&mut profile, 1_000_000, 1);
    assert_eq!(profile.factor(MONDAY_9, BASE), HISTORY_MIN);
}

#[test]
fn threshold_moves_by_little_with_a_ramp_and_follows_growth() {
    let mut profile = WeekProfile::default();
    learn(&mut profile, 1_000, 4);
    let mut before = profile.factor(MONDAY_9, 1_000);
    let mut grown = 0;
    for week in 1..60 {
        let limit = profile.factor(MONDAY_9, 1_000) * 1_000.0;
        // Always what the limit admits.
        learn(&mut profile, limit as u32, 1);
        let factor = profile.factor(MONDAY_9, 1_000);
        assert!(factor <= before * 1.12, "week {week}: {before} to {factor}");
        before = factor;
        grown = if factor < HISTORY_MAX { week } else { grown };
    }
    assert!((3..20).contains(&grown), "a key that grows gets its limit after {grown} weeks");
    // One that floods gains no more.
    let mut profile = WeekProfile::default();
    learn(&mut profile, 1_000, 4);
    learn(&mut profile, 1_000_000, 1);
    assert!(profile.factor(MONDAY_9, 1_000) <= 1.15 * 1.07);
}

proptest! {
    /// Whatever the signals, the factors are within their bounds.
    #[test]
    fn threshold_is_within_its_bounds(
        seconds in prop::collection::vec((any::<f64>(), any::<f64>(), any::<bool>(), any::<f64>()), 1..60),
        weeks in prop::collection::vec((any::<u32>(), any::<u32>(), any::<bool>()), 0..6),
        (base, min, max) in any::<(u32, u32, u32)>(),
    ) {
        let mut load = LoadFactor::default();
        for (value, target, is_binding, largest) in seconds {
            let before = load.factor();
            load.handle_second(&[LoadPressure { value, target, ..busy(0.0) }], limits(is_binding, largest));
            prop_assert!((LOAD_MIN - 1e-9..=LOAD_MAX + 1e-9).contains(&load.factor()));
            prop_assert!(load.factor() <= before * 1.031, "{} to {}", before, load.factor());
        }
        let mut profile = WeekProfile::default();
        for (a, b, is_clean) in weeks {
            let mut meter = HourMeter::default();
            (0..100).for_each(|n| meter.handle_window(if n % 3 == 0 { a } else { b }, is_clean || n > 0));
            profile.learn(MONDAY_9, base, &mut meter);
            let factor = profile.factor(MONDAY_9, base);
            prop_assert!((HISTORY_MIN..=HISTORY_MAX).contains(&factor));
        }
        prop_assert_eq!(&WeekProfile::from_bytes(&profile.to_bytes()), &profile);
        let threshold = DynamicLimit::new(base, min, max).threshold(&load, Some(&profile), MONDAY_9);
        prop_assert!(threshold.limit >= min.max(1) && threshold.limit <= max.max(min).max(1));
    }
}
