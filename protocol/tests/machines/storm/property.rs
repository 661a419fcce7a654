//! Property tests of a watch against the naive list: several nodes with clocks that jump, backlogs, bursts and pauses.

use super::{
    WALL, message,
    model::{Model, Seen},
};
use proptest::prelude::*;
use std::time::Duration;
use tidegate_protocol::{
    Time,
    machine::storm::{RECEIVE_SKEW_MS, StormRule, StormWatch},
};

#[derive(Clone, Debug)]
enum Op {
    /// Messages of a node, each so much after the one before, with an own error of the receive time.
    Messages {
        node: usize,
        count: u64,
        gap: u64,
        error: i64,
    },
    /// Messages that were received over a longer time than they are decided in.
    Backlog {
        count: u64,
        gap: u64,
        before: u64,
    },
    /// The clock of a node is off by so much from now on; node 0 is the owner.
    Step {
        node: usize,
        error: i64,
    },
    Pause(u64),
    Tick,
}

fn op(window_ms: u64) -> impl Strategy<Value = Op> {
    let gap = prop_oneof![2 => Just(0), 3 => 0..=window_ms / 8, 1 => 0..=window_ms / 2];
    let error = prop_oneof![2 => Just(0), 2 => -200_i64..200, 1 => -7_200_000_i64..7_200_000];
    prop_oneof![
        8 => (0..3_usize, 1..12_u64, gap.clone(), -30_i64..30)
            .prop_map(|(node, count, gap, error)| Op::Messages { node, count, gap, error }),
        1 => (1..60_u64, gap, 0..20 * window_ms)
            .prop_map(|(count, gap, before)| Op::Backlog { count, gap, before }),
        1 => (0..3_usize, error).prop_map(|(node, error)| Op::Step { node, error }),
        2 => (0..2 * window_ms).prop_map(Op::Pause),
        6 => Just(Op::Tick),
    ]
}

/// Watch and model, which must agree after each step.
struct Pair {
    watch: StormWatch,
    model: Model,
    rule: StormRule,
    now: u64,
    seq: u64,
    errors: [i64; 3],
}

impl Pair {
    fn hit(&mut self, received: u64) -> Result<(), TestCaseError> {
        self.seq += 1;
        let event = self.watch.handle_message(&self.rule, message(self.seq, received, self.now));
        let expected = self.model.message(self.seq, received, self.now);
        self.agree(event.map(Seen::from), expected)
    }

    fn agree(&self, event: Option<Seen>, expected: Option<Seen>) -> Result<(), TestCaseError> {
        prop_assert_eq!(event, expected, "at {} ms", self.now);
        prop_assert_eq!(self.watch.phase(), self.model.phase());
        prop_assert_eq!(self.watch.report().copied(), self.model.report());
        Ok(())
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Messages { node, count, gap, error } => {
                for _ in 0..count {
                    self.now += gap;
                    self.hit((WALL + self.now).saturating_add_signed(self.errors[node] + error))?;
                }
            }
            Op::Backlog { count, gap, before } => {
                let first = WALL + self.now - before;
                for n in 0..count {
                    self.now += n % 2;
                    self.hit(first + n * gap)?;
                }
            }
            Op::Step { node, error } => self.errors[node] = error,
            Op::Pause(ms) => self.now += ms,
            Op::Tick => {
                let wall = (WALL + self.now).saturating_add_signed(self.errors[0]);
                let event = self.watch.handle_tick(&self.rule, Time::from_millis(self.now), wall);
                let expected = self.model.tick(self.now, wall);
                self.agree(event.map(Seen::from), expected)?;
            }
        }
        Ok(())
    }
}

fn history() -> impl Strategy<Value = (u32, u64, Vec<Op>)> {
    (0..30_u32, prop_oneof![1..40_u64, 100..3_000_u64]).prop_flat_map(|(threshold, window_ms)| {
        (Just(threshold), Just(window_ms), prop::collection::vec(op(window_ms), 1..80))
    })
}

proptest! {
    #[test]
    fn storm_watch_agrees_with_a_naive_list((threshold, window_ms, ops) in history()) {
        let mut pair = Pair {
            watch: StormWatch::default(),
            model: Model::new(threshold, window_ms),
            rule: StormRule::new(threshold, Duration::from_millis(window_ms)),
            now: 10_000,
            seq: 0,
            errors: [0; 3],
        };
        for op in ops {
            pair.apply(op)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Beyond the exact runs, a message stops counting a part of the window earlier at most, and never later.
    #[test]
    fn storm_watch_counts_a_large_storm_within_its_precision(
        per_ms in 1..4_u64,
        jitter in 1..40_u64,
        seed in any::<u64>(),
    ) {
        const WINDOW_MS: u64 = 10_240;
        let rule = StormRule::new(100, Duration::from_millis(WINDOW_MS));
        let round_ms = if jitter <= WINDOW_MS / 1_024 { WINDOW_MS / 1_024 } else { WINDOW_MS / 64 };
        let (mut watch, mut model) = (StormWatch::default(), Model::new(100, WINDOW_MS));
        let mut random = seed;
        for n in 0..per_ms * 14_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let now = 1_000 + n / per_ms;
            let received = WALL + now - (random >> 33) % jitter;
            watch.handle_message(&rule, message(n, received, now));
            model.push(received, now);
            if n % 997 == 0 {
                let count = watch.known(&rule, Time::from_millis(now));
                let most = model.count(WINDOW_MS, RECEIVE_SKEW_MS, received, now);
                let least = model.count(WINDOW_MS - round_ms, RECEIVE_SKEW_MS, received, now);
                prop_assert!((least..=most).contains(&count), "{count}, not {least} to {most}");
                prop_assert!(watch.heap_bytes() < 2 * 4_096 * 16 + 4_096, "{} bytes", watch.heap_bytes());
            }
        }
    }
}
