//! Figures of the load: what shards publish for the metrics, and the level in force.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_protocol::{Time, machine::gate::LoadGate};

/// Time over which a shard adds up its turns before it publishes them.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// Figures of all shards of a node, and its load level.
#[derive(Default)]
pub struct LoadFigures {
    level: AtomicU8,
    /// Largest signal of load in parts of its target, with its name.
    pressure: Mutex<(f64, &'static str)>,
    shards: Mutex<BTreeMap<usize, Arc<ShardFigures>>>,
}

impl LoadFigures {
    /// Returns the load level in force.
    pub fn level(&self) -> u8 {
        self.level.load(Relaxed)
    }

    /// Returns the largest signal of load in parts of its target, with its name.
    pub fn pressure(&self) -> (f64, &'static str) {
        *self.pressure.lock()
    }

    pub(super) fn set_pressure(&self, largest: f64, signal: &'static str) {
        *self.pressure.lock() = (largest, signal);
    }

    pub(super) fn set_level(&self, level: u8) {
        self.level.store(level, Relaxed);
    }

    /// Returns the figures of a shard, which exist from the first call on.
    pub fn shard(&self, index: usize) -> Arc<ShardFigures> {
        Arc::clone(self.shards.lock().entry(index).or_default())
    }

    /// Returns the figures of all shards, in order.
    pub fn shards(&self) -> Vec<Arc<ShardFigures>> {
        self.shards.lock().values().cloned().collect()
    }
}

/// Figures of one shard.
pub struct ShardFigures {
    /// Longest and shortest lag since they were last taken, in µs.
    most_us: AtomicU64,
    least_us: AtomicU64,
    /// Longest lag of the last second, in µs.
    last_us: AtomicU64,
    busy_permille: AtomicU32,
    /// Time in turns and time in all since they were last taken, in µs.
    busy_us: AtomicU64,
    passed_us: AtomicU64,
    /// Begin of the turn that is running, in µs since the start of the node, from 1 on; 0 between turns.
    begun_us: AtomicU64,
    /// Gate of sends.
    pub sends: GateFigures,
    /// Gate of logins.
    pub logins: GateFigures,
    /// Gate of reads.
    pub reads: GateFigures,
    wait_ms: AtomicU64,
}

impl Default for ShardFigures {
    fn default() -> Self {
        Self {
            most_us: AtomicU64::new(0),
            least_us: AtomicU64::new(u64::MAX),
            last_us: AtomicU64::new(0),
            busy_permille: AtomicU32::new(0),
            busy_us: AtomicU64::new(0),
            passed_us: AtomicU64::new(0),
            begun_us: AtomicU64::new(0),
            sends: GateFigures::default(),
            logins: GateFigures::default(),
            reads: GateFigures::default(),
            wait_ms: AtomicU64::new(0),
        }
    }
}

/// Figures of one gate of a shard.
#[derive(Default)]
pub struct GateFigures {
    limit: AtomicU32,
    in_flight: AtomicU64,
}

impl GateFigures {
    /// Returns the limit, in requests.
    pub fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// Returns the work in flight, in requests.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }

    pub(super) fn publish(&self, gate: &LoadGate) {
        self.limit.store(gate.limit(), Relaxed);
        self.in_flight.store(gate.in_flight(), Relaxed);
    }
}

/// Lags of a shard since they were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TakenLag {
    /// Longest one.
    pub(super) most: Duration,
    /// Shortest one: with a queue, even this is long.
    pub(super) least: Duration,
}

impl TakenLag {
    /// Returns whether no turn was published.
    pub(super) fn is_empty(self) -> bool {
        self.most.is_zero()
    }
}

impl ShardFigures {
    /// Returns the longest lag within the last second that was taken.
    pub fn lag(&self) -> Duration {
        Duration::from_micros(self.last_us.load(Relaxed))
    }

    /// Returns the part of the time that the shard's thread spent in turns.
    pub fn busy_ratio(&self) -> f64 {
        f64::from(self.busy_permille.load(Relaxed)) / 1_000.0
    }

    /// Returns the time for which a turn has been running that is too long to be published soon; zero if there is none. A
    /// shard that is blocked publishes nothing.
    pub(super) fn running(&self, now: Time) -> Duration {
        let begun_us = self.begun_us.load(Relaxed);
        let running = Duration::from_millis(now.as_millis()).saturating_sub(Duration::from_micros(begun_us));
        if begun_us > 0 && running > PUBLISH_INTERVAL { running } else { Duration::ZERO }
    }

    /// Returns the part of the time since the last call that the shard's thread spent in turns, the one that has been
    /// `running` included; without a turn, none. A limit with a window of a second lets work come in bursts of that period,
    /// so no shorter time would do.
    pub(super) fn take_busy(&self, running: Duration) -> f64 {
        let (busy, passed) = (self.busy_us.swap(0, Relaxed), self.passed_us.swap(0, Relaxed));
        let running = u64::try_from(running.as_micros()).unwrap_or(u64::MAX);
        let (busy, passed) = (busy.saturating_add(running), passed.saturating_add(running));
        (busy as f64 / passed.max(1) as f64).min(1.0)
    }

    /// Returns the wait that refused clients are asked for, without jitter.
    pub fn announced_wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms.load(Relaxed))
    }

    pub(super) fn set_announced_wait(&self, wait: Duration) {
        self.wait_ms.store(wait.as_millis() as u64, Relaxed);
    }

    /// Returns the lags since the last call; without a turn, none.
    pub(super) fn take_lag(&self) -> TakenLag {
        let most = self.most_us.swap(0, Relaxed);
        let least = self.least_us.swap(u64::MAX, Relaxed).min(most);
        self.last_us.store(most, Relaxed);
        TakenLag { most: Duration::from_micros(most), least: Duration::from_micros(least) }
    }
}

/// Measurement of the turns of one shard, by its driver.
///
/// The lag of a turn is the time that a connection may have waited in it: the turn itself, and the turns before it if the
/// connection did not get its part of them.
pub struct TurnMeter {
    figures: Arc<ShardFigures>,
    /// Begin of the time whose turns are not published yet.
    since: Duration,
    busy: Duration,
    most: Duration,
    least: Duration,
}

impl TurnMeter {
    /// Creates a meter that publishes to the figures; times are those since the start of the node.
    pub fn new(figures: Arc<ShardFigures>, now: Duration) -> Self {
        Self { figures, since: now, busy: Duration::ZERO, most: Duration::ZERO, least: Duration::MAX }
    }

    /// Notes that a turn begins, so that one that does not end counts, too.
    pub fn begin(&self, begun: Duration) {
        let begun_us = u64::try_from(begun.as_micros()).unwrap_or(u64::MAX);
        self.figures.begun_us.store(begun_us.max(1), Relaxed);
    }

    /// Counts a turn, from the return of the poll to its end. `waited` is the time from the poll that reported a
    /// connection to its visit, as last measured by the shard.
    pub fn record(&mut self, begun: Duration, ended: Duration, waited: Duration) {
        self.figures.begun_us.store(0, Relaxed);
        let took = ended.saturating_sub(begun);
        let lag = took.max(waited);
        self.busy += took;
        self.most = self.most.max(lag);
        self.least = self.least.min(lag);
        let passed = ended.saturating_sub(self.since);
        if passed >= PUBLISH_INTERVAL {
            let us = |lag: Duration| u64::try_from(lag.as_micros()).unwrap_or(u64::MAX);
            self.figures.most_us.fetch_max(us(self.most), Relaxed);
            self.figures.least_us.fetch_min(us(self.least), Relaxed);
            self.figures.busy_us.fetch_add(us(self.busy), Relaxed);
            self.figures.passed_us.fetch_add(us(passed), Relaxed);
            let permille = self.busy.as_micros() * 1_000 / passed.as_micros().max(1);
            self.figures.busy_permille.store(permille.min(1_000) as u32, Relaxed);
            *self = Self::new(Arc::clone(&self.figures), ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn meter_publishes_busy_part_and_lags_of_its_turns() {
        let figures = Arc::new(ShardFigures::default());
        let mut meter = TurnMeter::new(Arc::clone(&figures), ms(0));
        meter.record(ms(10), ms(40), ms(0));
        meter.record(ms(100), ms(120), ms(75));
        assert_eq!(figures.take_lag(), TakenLag::default(), "not published yet");
        meter.record(ms(190), ms(250), ms(0));
        assert_eq!(figures.busy_ratio(), 0.44, "110 of 250 ms");
        assert_eq!(figures.take_lag(), TakenLag { most: ms(75), least: ms(30) }, "the wait exceeds its turn");
        assert_eq!(figures.lag(), ms(75), "of the last second");
        meter.record(ms(250), ms(260), ms(0));
        meter.record(ms(490), ms(510), ms(0));
        assert_eq!(figures.take_lag(), TakenLag { most: ms(20), least: ms(10) });
        assert_eq!(figures.take_lag(), TakenLag::default(), "without a turn");
        assert_eq!(figures.take_busy(ms(0)), 140.0 / 510.0, "of all that was published");
        assert_eq!(figures.take_busy(ms(0)), 0.0, "without a turn");
    }

    #[test]
    fn turn_that_does_not_end_keeps_its_shard_busy() {
        let figures = Arc::new(ShardFigures::default());
        let mut meter = TurnMeter::new(Arc::clone(&figures), ms(0));
        let at = Time::from_millis;
        meter.begin(ms(300));
        assert_eq!(figures.running(at(550)), ms(0), "about to be published");
        assert_eq!(figures.running(at(700)), ms(400));
        meter.record(ms(300), ms(800), ms(0));
        assert_eq!(figures.running(at(9_000)), ms(0));
        assert_eq!(figures.take_busy(ms(0)), 500.0 / 800.0);
        meter.begin(ms(900));
        assert_eq!(figures.take_busy(figures.running(at(1_900))), 1.0);
        meter.record(ms(900), ms(2_900), ms(0));
        assert_eq!(figures.take_busy(ms(0)), 2_000.0 / 2_100.0);
    }

    #[test]
    fn figures_of_a_shard_are_shared() {
        let figures = LoadFigures::default();
        figures.shard(1).set_announced_wait(ms(700));
        figures.shard(0);
        let waits: Vec<Duration> = figures.shards().iter().map(|it| it.announced_wait()).collect();
        assert_eq!(waits, [ms(0), ms(700)]);
    }
}
