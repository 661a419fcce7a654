//! A simulated week of a node, after two weeks of learning: daily peaks, a fault, a crowd, and a flood at night.
//!
//! Ten organisations share a node that processes 10,500 units per second, and their peaks add up to 9,000. Each has a
//! limit of 3,000. A refusal costs 6 % of an accepted unit. What waits for more than 5 s times out. The load factor gets
//! the signals one second late. A page of the docs shows the week, see `chart`.

use super::{busy, chart, limits};
use tidegate_protocol::machine::threshold::{
    DynamicLimit, HourMeter, HourOfWeek, LoadFactor, LoadPressure, PressureSignal, STANDING_DELAY_TARGET,
    WeekProfile,
};

/// Target of the standing delay, in ms.
const DELAY_MS: f64 = STANDING_DELAY_TARGET.as_millis() as f64;

const CAPACITY: f64 = 10_500.0;
const ORGS: f64 = 10.0;
const BASE: u32 = 3_000;
const REFUSAL_COST: f64 = 0.06;
const WEEK: u64 = 7 * 24 * 3_600;
/// Monday 00:00, in seconds since 1970.
const START: u64 = 4 * 24 * 3_600;

const fn at(day: u64, hour: u64, minute: u64) -> u64 {
    (day * 24 + hour) * 3_600 + minute * 60
}

pub(super) const FAULT: std::ops::Range<u64> = at(2, 9, 45)..at(2, 10, 15);
const CROWD: std::ops::Range<u64> = at(5, 12, 0)..at(5, 12, 20);
const FLOOD: std::ops::Range<u64> = at(3, 4, 0)..at(3, 4, 30);

/// Returns the units that all organisations together offer in a usual second.
fn usual(second: u64) -> f64 {
    let hour = (second % 86_400) as f64 / 3_600.0;
    let peak = if second / 86_400 % 7 < 5 { 9_000.0 } else { 6_000.0 };
    let shape = (1.0 + ((hour - 10.0) / 12.0 * std::f64::consts::PI).cos()) / 2.0;
    1_500.0 + (peak - 1_500.0) * shape * shape
}

/// One organisation, or nine that are alike.
#[derive(Default)]
struct Org {
    profile: WeekProfile,
    meter: HourMeter,
}

#[derive(Debug, Default)]
struct Totals {
    /// Seconds with a queue of more than 50 ms.
    slow_seconds: u64,
    longest_queue: f64,
    /// Seconds from the fault until the queue is below 50 ms again.
    fault_seconds: u64,
    /// Seconds from the end of the fault until everything is admitted.
    recovery_seconds: u64,
    /// Units per second of the crowd's second half, in parts of the capacity.
    crowd_admitted: f64,
    flood_admitted: f64,
    usual_offered: f64,
    usual_refused: f64,
    /// Points of the charts.
    chart: chart::Series,
}

struct Node {
    is_controlled: bool,
    load: LoadFactor,
    orgs: [Org; 2],
    queue: f64,
    /// Signals of the last second.
    signals: [LoadPressure; 2],
    limits_last: super::LimitUse,
    random: u64,
    totals: Totals,
}

impl Node {
    fn new(is_controlled: bool) -> Self {
        let delay = LoadPressure {
            signal: PressureSignal::StandingDelay,
            shard: Some(0),
            value: 0.0,
            target: DELAY_MS,
        };
        Self {
            is_controlled,
            load: LoadFactor::default(),
            orgs: Default::default(),
            queue: 0.0,
            signals: [busy(0.0), delay],
            limits_last: limits(false, 0.0),
            random: 24,
            totals: Totals::default(),
        }
    }

    /// Returns a factor of 0.97 to 1.03.
    fn noise(&mut self) -> f64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        0.97 + 0.06 * ((self.random >> 40) as f64 / (1_u64 << 24) as f64)
    }

    fn second(&mut self, second: u64, has_events: bool) {
        let of_week = second % WEEK;
        let hour = HourOfWeek::at((START + of_week) * 1_000);
        let is = |event: &std::ops::Range<u64>| has_events && event.contains(&of_week);
        let capacity = if is(&FAULT) { CAPACITY / 2.0 } else { CAPACITY };
        let crowd = if is(&CROWD) { 25_000.0 / ORGS } else { 0.0 };
        let usual = usual(of_week) / ORGS;
        let flooded = if is(&FLOOD) { 9_000.0 } else { usual * self.noise() + crowd };
        let offered = [flooded, usual * self.noise() + crowd];
        let (mut admitted, mut refused, mut largest, mut is_binding) = ([0.0; 2], 0.0, 0.0_f64, false);
        for ((org, offered), (admitted, count)) in
            self.orgs.iter().zip(offered).zip(admitted.iter_mut().zip([1.0, ORGS - 1.0]))
        {
            let limit = DynamicLimit::new(BASE, 100, 4_500);
            let threshold = limit.threshold(&self.load, Some(&org.profile), hour);
            let limit = f64::from(if self.is_controlled { threshold.limit } else { BASE });
            *admitted = f64::min(offered, limit);
            refused += (offered - *admitted) * count;
            is_binding |= offered > limit && threshold.history_hundredths >= 100;
            let at_full_load = f64::from(BASE * threshold.history_hundredths) / 100.0;
            largest = largest.max(offered.min(at_full_load) / at_full_load);
        }
        let arrived = admitted[0] + admitted[1] * (ORGS - 1.0);
        let work = self.queue + arrived + refused * REFUSAL_COST;
        let done = work.min(capacity);
        self.queue = (work - done).min(capacity * 5.0);
        self.learn(admitted, refused);
        let wait = self.queue / capacity;
        if self.is_controlled {
            self.load.handle_second(&self.signals, self.limits_last);
        }
        self.signals = [busy(done / capacity), LoadPressure { value: wait * 1_000.0, ..self.signals[1] }];
        self.limits_last = limits(is_binding, largest);
        if has_events {
            self.count(of_week, wait, arrived, admitted[0], refused);
            self.totals.chart.handle_second(&chart::Second {
                of_week,
                offered: arrived + refused,
                admitted: arrived,
                capacity,
                wait,
                factor: self.load.factor(),
            });
        }
        if of_week % 3_600 == 3_599 {
            for org in &mut self.orgs {
                org.profile.learn(hour, BASE, &mut org.meter);
            }
        }
    }

    fn learn(&mut self, admitted: [f64; 2], refused: f64) {
        let is_clean = refused == 0.0 && self.load.factor() >= 0.95;
        for (org, admitted) in self.orgs.iter_mut().zip(admitted) {
            org.meter.handle_window(admitted as u32, is_clean);
        }
    }

    fn count(&mut self, of_week: u64, wait: f64, arrived: f64, flooder: f64, refused: f64) {
        let totals = &mut self.totals;
        totals.slow_seconds += u64::from(wait > 0.05);
        totals.longest_queue = totals.longest_queue.max(wait);
        if wait > 0.05 && FAULT.contains(&of_week) {
            totals.fault_seconds = of_week - FAULT.start + 1;
        }
        if refused > 0.0 && (FAULT.end..FAULT.end + 600).contains(&of_week) {
            totals.recovery_seconds = of_week - FAULT.end + 1;
        }
        if (CROWD.start + 600..CROWD.end).contains(&of_week) {
            totals.crowd_admitted += arrived / CAPACITY / 600.0;
        }
        if FLOOD.contains(&of_week) {
            totals.flood_admitted += flooder / (FLOOD.end - FLOOD.start) as f64;
        }
        if ![FAULT, CROWD, FLOOD].iter().any(|it| (it.start..it.end + 600).contains(&of_week)) {
            totals.usual_offered += arrived + refused;
            totals.usual_refused += refused;
        }
    }

    fn week(is_controlled: bool) -> Totals {
        let mut node = Self::new(is_controlled);
        if is_controlled {
            (0..2 * WEEK).for_each(|second| node.second(second, false));
        }
        (0..WEEK).for_each(|second| node.second(second, true));
        node.totals
    }
}

#[track_caller]
fn near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() <= 0.05, "{value}, not {expected}");
}

/// Returns the rows of the table for one kind of limits, in the order of [`ROWS`].
fn cells(totals: &Totals) -> [String; 6] {
    let part = 100.0 * totals.usual_refused / totals.usual_offered;
    [
        totals.slow_seconds.to_string(),
        format!("{:.2} s", totals.longest_queue),
        format!("{} s", totals.fault_seconds),
        format!("{part:.4} %"),
        format!("{:.2}", totals.crowd_admitted),
        format!("{:.0}", totals.flood_admitted),
    ]
}

const ROWS: [&str; 6] = [
    "seconds of the week with a queue of more than 50 ms",
    "longest queue; what waits for 5 s times out",
    "time from the fault until the queue is below 50 ms again",
    "refused outside of fault, crowd and flood",
    "admitted of the crowd, in parts of the capacity",
    "admitted of the flood at night, units per second",
];

#[test]
fn threshold_keeps_queues_short_over_a_week() {
    let fixed = Node::week(false);
    let controlled = Node::week(true);
    let rows: Vec<_> = ROWS.into_iter().zip(cells(&fixed)).zip(cells(&controlled)).collect();
    println!("{rows:#?}");
    near(fixed.slow_seconds as f64, 3_015.0);
    near(fixed.longest_queue, 5.0);
    near(fixed.crowd_admitted, 2.86);
    near(fixed.flood_admitted, 3_000.0);
    assert!(controlled.slow_seconds <= 20, "of a week");
    near(controlled.longest_queue, 3.42);
    assert_eq!(controlled.fault_seconds, 13);
    assert!(controlled.recovery_seconds <= 43, "{}", controlled.recovery_seconds);
    near(controlled.crowd_admitted, 0.73);
    near(controlled.flood_admitted, 1_500.0);
    assert!(controlled.usual_refused <= controlled.usual_offered * 0.000_03, "0.003 % of usual hours");
    let table: String = rows
        .iter()
        .map(|((row, fixed), controlled)| format!("| {row} | {fixed} | {controlled} |\n"))
        .collect();
    chart::check_table(&format!("| | fixed limits | limits that follow |\n|---|---|---|\n{table}"));
    chart::check_file("docs/img/thresholds-week.svg", &chart::week(&controlled.chart));
    chart::check_file("docs/img/thresholds-fault.svg", &chart::fault(&fixed.chart, &controlled.chart));
}
