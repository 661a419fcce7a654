//! Load watch of the node: brings what only the node knows to the watch of the load, each second.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use foldhash::HashSet;
use tidegate_protocol::Time;
use tokio::time::MissedTickBehavior;

use crate::{
    broker::Broker,
    budget,
    clock::wall_ms,
    config::Config,
    limits::RuleGuard,
    load::{LoadWatch, PressureInputs},
};

/// Interval at which the load is sampled.
const LOAD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Samples the load for as long as the node runs, and lets the rules follow it; `start` is the time base of the shards.
pub(super) fn watch(
    broker: &Broker,
    config: &Config,
    rules: &Arc<RuleGuard>,
    start: Instant,
) -> impl Future<Output = ()> + Send + use<> {
    let (limits, rules) = (&config.limits, Arc::clone(rules));
    let load = LoadWatch::new(Arc::clone(&broker.load), broker.metrics());
    let cluster = Arc::clone(&broker.cluster);
    let (limit, with_sockets) = (budget::memory_limit(limits.memory_bytes), limits.memory_counts_sockets);
    let inputs = move || {
        let used = budget::memory_used(with_sockets);
        let lag_ms = cluster.owned.partition_lags().iter().map(|it| it.behind_ms).max();
        PressureInputs {
            memory: used as f64 / (limit as f64).max(1.0),
            archive_lag: Duration::from_millis(lag_ms.unwrap_or(0)),
        }
    };
    let board = Arc::clone(&broker.cluster);
    let storms = move || {
        let storms = board.storms.entries().groups(|_| true);
        storms.into_iter().map(|(group, _)| group.as_str().to_owned()).collect()
    };
    let now = move || Time::from_millis(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX));
    sample(load, rules, inputs, storms, now)
}

async fn sample(
    mut load: LoadWatch,
    rules: Arc<RuleGuard>,
    inputs: impl Fn() -> PressureInputs + Send,
    storms: impl Fn() -> HashSet<String> + Send,
    now: impl Fn() -> Time + Send,
) {
    let mut tick = tokio::time::interval(LOAD_CHECK_INTERVAL);
    // Each tick is a step of the load factor: after a freeze, one second of load must not count several times.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let at = now();
        let pressures = load.sample(inputs(), at);
        let storms = storms();
        rules.follow_load(&pressures, at, wall_ms(), |conversation| storms.contains(conversation));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::{task::yield_now, time::advance};

    use super::*;
    use crate::{
        limits::{LimitCall, LimitLevel, LimitRefusal, LimitSubjects, RuleSet},
        load::{LoadFigures, TurnMeter},
        metrics,
    };

    const RULE: &str = "[[rule]]\nid = \"all\"\nlevel = \"node\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 100\n\
                        dynamic = { min = 20, max = 150 }\n";

    /// A node with one shard, whose busy part is proportional to the messages that the rule admits.
    struct Story {
        figures: Arc<LoadFigures>,
        rules: Arc<RuleGuard>,
        began: tokio::time::Instant,
        offered: u64,
    }

    impl Story {
        fn now(&self) -> Time {
            Time::from_millis(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
        }

        /// Offers messages for a second; each that is admitted keeps the shard busy for `cost_ms`. Returns those admitted.
        async fn second(&self, cost_ms: u64) -> u64 {
            let mut meter = TurnMeter::new(self.figures.shard(0), Duration::ZERO);
            let ms = Duration::from_millis;
            let (mut admitted, mut at) = (0, 0);
            for n in 0..self.offered {
                let send =
                    self.rules.admit(LimitCall::Send, &LimitSubjects::default(), self.now(), false, || {
                        Ok::<_, LimitRefusal>(())
                    });
                let cost = if send.is_ok() { cost_ms } else { 0 };
                admitted += u64::from(send.is_ok());
                let due = n * 1_000 / self.offered;
                at = at.max(due);
                meter.record(ms(at), ms(at + cost), ms(0));
                at += cost;
                // In small steps, or the ticks of the watch come late and move.
                for _ in due..(n + 1) * 1_000 / self.offered {
                    advance(ms(1)).await;
                }
            }
            admitted
        }

        fn limit(&self) -> (u32, String) {
            let states = self.rules.states(LimitLevel::Node, "", self.now()).expect("a level");
            let threshold = states[0].threshold.expect("a dynamic rule");
            (threshold.limit, threshold.to_string())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn limit_falls_with_the_load_and_returns() {
        let metrics = metrics::install().0;
        let rules = RuleSet::parse(RULE, Duration::from_secs(1)).unwrap();
        let story = Story {
            figures: Arc::default(),
            rules: Arc::new(RuleGuard::new(&rules, metrics.clone(), Instant::now())),
            began: tokio::time::Instant::now(),
            offered: 80,
        };
        let watch = LoadWatch::new(Arc::clone(&story.figures), metrics);
        let (began, idle) = (story.began, PressureInputs::default);
        let now = move || Time::from_millis(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        let watching = tokio::spawn(sample(watch, Arc::clone(&story.rules), idle, HashSet::default, now));
        for _ in 0..10 {
            assert_eq!(story.second(5).await, 80, "below the limit nothing is refused");
        }
        assert_eq!(story.limit().0, 100);
        // Each message costs four times as much: the shard would be busy for 1.6 s of each second.
        let mut admitted = 0;
        for _ in 0..60 {
            admitted = story.second(20).await;
        }
        let (limit, why) = story.limit();
        assert!((40..=53).contains(&limit) && (38..=48).contains(&admitted), "{admitted}: {why}");
        assert!(why.starts_with("base 100 x load 0.") && why.contains("load: shard 0 busy 0.9"), "{why}");
        for _ in 0..60 {
            admitted = story.second(5).await;
        }
        assert_eq!((admitted, story.limit().0), (80, 100), "{}", story.limit().1);
        watching.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn freeze_counts_as_one_step() {
        let metrics = metrics::install().0;
        let rules = RuleSet::parse(RULE, Duration::from_secs(1)).unwrap();
        let rules = Arc::new(RuleGuard::new(&rules, metrics.clone(), Instant::now()));
        let samples = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&samples);
        let inputs = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            PressureInputs::default()
        };
        let watch = LoadWatch::new(Arc::default(), metrics);
        let watching = tokio::spawn(sample(watch, rules, inputs, HashSet::default, || Time::ZERO));
        for count in 1..9 {
            for _ in 0..99 {
                yield_now().await;
            }
            assert_eq!(samples.load(Ordering::Relaxed), count, "after {} freezes", count - 1);
            advance(LOAD_CHECK_INTERVAL * 20).await;
        }
        watching.abort();
    }
}
