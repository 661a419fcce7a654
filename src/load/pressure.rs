//! Watch of the load: the pressure on the node, and the load level that follows from it.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_protocol::{
    Time,
    machine::{
        gate::LoadLevel,
        threshold::{BUSY_TARGET, LoadPressure, PressureSignal, STANDING_DELAY_TARGET},
    },
};

use super::figures::LoadFigures;
use crate::metrics::Metrics;

/// Weight of the last second in the mean of the busy part.
const BUSY_WEIGHT: f64 = 0.2;

/// Part of the memory that may be in use.
const MEMORY_TARGET: f64 = 0.8;

/// Age of the oldest unarchived record.
const ARCHIVE_TARGET: Duration = Duration::from_secs(30);

/// Largest pressure of a late archive, which shuts signals only: a database that is away makes no node busy.
const ARCHIVE_PRESSURE_MAX: f64 = 1.3;

/// What the watch can't read from the shards.
#[derive(Clone, Copy, Debug, Default)]
pub struct PressureInputs {
    /// Part of the memory budget that is used.
    pub memory: f64,
    /// Age of the oldest unarchived record of the owned partitions.
    pub archive_lag: Duration,
}

/// Signals of load, in parts of their targets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct LoadSignals {
    busy: f64,
    lag: f64,
    memory: f64,
    archive: f64,
}

impl LoadSignals {
    /// Returns the largest signal with its name.
    fn largest(&self) -> (f64, &'static str) {
        let signals =
            [(self.busy, "busy"), (self.lag, "lag"), (self.memory, "memory"), (self.archive, "archive")];
        signals.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
    }
}

impl fmt::Display for LoadSignals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { busy, lag, memory, archive } = self;
        write!(f, "busy {busy:.2}, lag {lag:.2}, memory {memory:.2}, archive {archive:.2}")
    }
}

/// Watch of the load of a node.
pub struct LoadWatch {
    load: Arc<LoadFigures>,
    metrics: Metrics,
    level: LoadLevel,
    /// Mean of the busy part of each shard.
    busy: Vec<f64>,
}

impl LoadWatch {
    /// Creates a watch at level 0.
    pub fn new(load: Arc<LoadFigures>, metrics: Metrics) -> Self {
        Self { load, metrics, level: LoadLevel::default(), busy: Vec::new() }
    }

    /// Takes the figures of the last second, and sets the level and the metrics. Returns the signals for the thresholds that
    /// follow the load.
    pub fn sample(&mut self, inputs: PressureInputs, now: Time) -> Vec<LoadPressure> {
        let shards = self.load.shards();
        self.busy.resize(shards.len(), 0.0);
        let (mut most, mut least, mut pressures) = (Duration::ZERO, Duration::ZERO, node_pressures(inputs));
        for (index, (shard, mean)) in shards.iter().zip(&mut self.busy).enumerate() {
            *mean += BUSY_WEIGHT * (shard.busy_ratio() - *mean);
            // Read first: a turn that ends meanwhile is counted as such, too.
            let running = shard.running(now);
            let (busy, lag) = (shard.take_busy(running), shard.take_lag());
            (most, least) = (most.max(lag.most), least.max(lag.least));
            let shard = u16::try_from(index).ok();
            let of_shard = |signal, value, target| LoadPressure { signal, shard, value, target };
            pressures.push(of_shard(PressureSignal::ShardBusy, busy, BUSY_TARGET));
            let delay = if lag.is_empty() { running } else { lag.least };
            pressures.push(of_shard(PressureSignal::StandingDelay, ms(delay), ms(STANDING_DELAY_TARGET)));
        }
        let busiest = self.busy.iter().copied().fold(0.0, f64::max);
        let archive = inputs.archive_lag.as_secs_f64() / ARCHIVE_TARGET.as_secs_f64();
        let signals = LoadSignals {
            busy: busiest / BUSY_TARGET,
            lag: least.as_secs_f64() / STANDING_DELAY_TARGET.as_secs_f64(),
            memory: inputs.memory / MEMORY_TARGET,
            archive: archive.min(ARCHIVE_PRESSURE_MAX),
        };
        let (largest, signal) = signals.largest();
        self.load.set_pressure(largest, signal);
        if self.level.handle_pressure(largest, now) {
            let level = self.level.level();
            tracing::warn!(level, signal, %signals, "load level changed");
            self.load.set_level(level);
        }
        let sum = |of: fn(&super::ShardFigures) -> f64| shards.iter().map(|shard| of(shard)).sum::<f64>();
        let busy_now = shards.iter().map(|shard| shard.busy_ratio()).fold(0.0, f64::max);
        let waits = shards.iter().map(|shard| shard.announced_wait()).max().unwrap_or_default();
        let m = &self.metrics;
        m.shard_lag.set(most.as_secs_f64());
        m.shard_busy.set(busy_now);
        m.load_level.set(f64::from(self.level.level()));
        m.load_pressure.set(largest);
        m.overload_wait.set(waits.as_secs_f64());
        m.gate_sends_limit.set(sum(|it| it.sends.limit().into()));
        m.gate_sends_in_flight.set(sum(|it| it.sends.in_flight() as f64));
        m.gate_logins_limit.set(sum(|it| it.logins.limit().into()));
        m.gate_logins_in_flight.set(sum(|it| it.logins.in_flight() as f64));
        m.gate_reads_limit.set(sum(|it| it.reads.limit().into()));
        m.gate_reads_in_flight.set(sum(|it| it.reads.in_flight() as f64));
        pressures
    }
}

/// Returns the signals that are not of a shard.
fn node_pressures(inputs: PressureInputs) -> Vec<LoadPressure> {
    let of_node = |signal, value, target| LoadPressure { signal, shard: None, value, target };
    let lag = inputs.archive_lag.min(ARCHIVE_TARGET.mul_f64(ARCHIVE_PRESSURE_MAX));
    vec![
        of_node(PressureSignal::Memory, inputs.memory, MEMORY_TARGET),
        of_node(PressureSignal::ArchiveLag, ms(lag), ms(ARCHIVE_TARGET)),
    ]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::TurnMeter;

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1_000)
    }

    fn watch() -> LoadWatch {
        LoadWatch::new(Arc::default(), crate::metrics::install().0)
    }

    /// Records a second of turns, each as long as `turn_ms`, with as long a pause as `pause_ms`.
    fn second(watch: &LoadWatch, turn_ms: u64, pause_ms: u64) {
        let ms = Duration::from_millis;
        let mut meter = TurnMeter::new(watch.load.shard(0), ms(0));
        let mut now = 0;
        while now < 1_000 {
            meter.record(ms(now), ms(now + turn_ms), ms(0));
            now += turn_ms + pause_ms;
        }
    }

    #[test]
    fn shard_that_is_always_busy_for_seconds_begins_level_one() {
        let mut watch = watch();
        for n in 0..30 {
            second(&watch, 10, 2);
            watch.sample(PressureInputs::default(), at(n));
        }
        assert_eq!((watch.load.level(), watch.load.pressure().1), (0, "busy"), "0.83 busy");
        second(&watch, 10, 0);
        watch.sample(PressureInputs::default(), at(30));
        assert_eq!(watch.load.level(), 0, "one second");
        for n in 31..60 {
            second(&watch, 10, 0);
            watch.sample(PressureInputs::default(), at(n));
        }
        assert_eq!(watch.load.level(), 1);
    }

    #[test]
    fn queue_raises_the_level_and_one_long_turn_does_not() {
        let mut watch = watch();
        second(&watch, 1, 9);
        TurnMeter::new(watch.load.shard(0), Duration::ZERO).record(
            Duration::ZERO,
            Duration::from_secs(3),
            Duration::ZERO,
        );
        watch.sample(PressureInputs::default(), at(1));
        assert_eq!(watch.load.level(), 0, "a freeze");
        assert_eq!(watch.load.shard(0).lag(), Duration::from_secs(3));
        second(&watch, 190, 0);
        watch.sample(PressureInputs::default(), at(2));
        assert_eq!((watch.load.level(), watch.load.pressure()), (3, (1.9, "lag")));
        for n in 3..30 {
            second(&watch, 1, 9);
            watch.sample(PressureInputs::default(), at(n));
        }
        assert_eq!(watch.load.level(), 0, "falls by one in 5 s");
    }

    #[test]
    fn shard_that_is_blocked_is_busy() {
        let mut watch = watch();
        let values = |pressures: Vec<LoadPressure>| -> Vec<f64> {
            let of_shards = pressures.into_iter().filter(|it| it.shard.is_some());
            of_shards.map(|it| it.value).collect()
        };
        second(&watch, 1, 9);
        let meter = TurnMeter::new(watch.load.shard(0), Duration::from_secs(1));
        meter.begin(Duration::from_millis(1_100));
        let begun = values(watch.sample(PressureInputs::default(), at(1)));
        assert!((begun[0] - 0.1).abs() < 0.01, "{begun:?}");
        for n in 2..5 {
            let blocked = values(watch.sample(PressureInputs::default(), at(n)));
            assert_eq!(blocked, [1.0, n as f64 * 1_000.0 - 1_100.0], "for {n} s");
        }
        assert_eq!(watch.load.level(), 0, "one long turn does not raise the level");
    }

    #[test]
    fn late_archive_shuts_signals_only_and_full_memory_more() {
        let mut watch = watch();
        watch.sample(PressureInputs { memory: 0.5, archive_lag: Duration::from_secs(900) }, at(1));
        assert_eq!((watch.load.level(), watch.load.pressure()), (1, (ARCHIVE_PRESSURE_MAX, "archive")));
        watch.sample(PressureInputs { memory: 1.2, archive_lag: Duration::ZERO }, at(2));
        assert_eq!((watch.load.level(), watch.load.pressure().1), (2, "memory"));
    }
}
