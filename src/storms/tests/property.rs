//! Tables against a naive list: random messages of some groups, with steps of the wall clock, or with take-overs.

use std::collections::BTreeMap;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate_protocol::machine::storm::{PastMessage, RECEIVE_SKEW_MS, StormInForce};

use super::*;

const THRESHOLD: u32 = 6;
const WINDOW_MS: i64 = 10_000;
const GROUPS: usize = 4;
const STEPS: usize = 250;

/// Groups as a list of all messages, each with its receive time and the owner's time.
#[derive(Default)]
struct Naive {
    messages: BTreeMap<usize, Vec<(i64, i64)>>,
    storms: BTreeMap<usize, NaiveStorm>,
    reports: Vec<(String, bool)>,
}

struct NaiveStorm {
    seq: usize,
    cooling_since: Option<i64>,
}

impl Naive {
    /// Counts the messages of the last window before `now` that were received within a window before `received`.
    fn count(&self, group: usize, received: i64, now: i64) -> u32 {
        let is_counted = |(t, r): &&(i64, i64)| {
            *r > now - WINDOW_MS && *t > received - WINDOW_MS && *t <= received + RECEIVE_SKEW_MS as i64
        };
        self.messages.get(&group).map_or(0, |all| all.iter().filter(is_counted).count() as u32)
    }

    /// Ends a storm without a message for two windows.
    fn end_if_idle(&mut self, group: usize, now: i64) {
        let last = self.messages.get(&group).and_then(|all| all.last());
        if last.is_some_and(|(_, r)| now >= r + 2 * WINDOW_MS)
            && let Some(storm) = self.storms.remove(&group)
        {
            self.reports.push((format!("g:x{group}/{}", storm.seq), true));
        }
    }

    fn message(&mut self, group: usize, received: i64, now: i64) -> usize {
        self.end_if_idle(group, now);
        let all = self.messages.entry(group).or_default();
        all.push((received, now));
        let seq = all.len();
        let is_exceeding = self.count(group, received, now) > THRESHOLD;
        match self.storms.get_mut(&group) {
            Some(storm) if is_exceeding => storm.cooling_since = None,
            None if is_exceeding => {
                self.storms.insert(group, NaiveStorm { seq, cooling_since: None });
                self.reports.push((format!("g:x{group}/{seq}"), false));
            }
            _ => {}
        }
        seq
    }

    fn tick(&mut self, wall: i64, now: i64) {
        for group in self.storms.keys().copied().collect::<Vec<_>>() {
            self.end_if_idle(group, now);
            let received = self.messages[&group].last().map_or(0, |(t, _)| *t);
            let count = self.count(group, wall, now).max(self.count(group, received, now));
            let Some(storm) = self.storms.get_mut(&group) else { continue };
            match storm.cooling_since {
                None if count <= THRESHOLD / 2 => storm.cooling_since = Some(now),
                Some(_) if count > THRESHOLD => storm.cooling_since = None,
                Some(since) if now >= since + WINDOW_MS => {
                    self.reports.push((format!("g:x{group}/{}", storm.seq), true));
                    self.storms.remove(&group);
                }
                _ => {}
            }
        }
    }

    fn past(&self, group: usize, below: u64) -> Vec<PastMessage> {
        let all = self.messages.get(&group).into_iter().flatten();
        let numbered = (1..).zip(all).take_while(|(seq, _)| *seq < below);
        numbered.map(|(seq, (t, _))| PastMessage { seq, received_ms: *t as u64 }).collect()
    }
}

/// Answers the table's requests for the past.
fn settle(world: &World, naive: &Naive, wall: i64) {
    for (of, below) in world.unread() {
        let n = (0..GROUPS).find(|n| group(*n) == of).unwrap();
        let messages = naive.past(n, below);
        world.table.restore(&of, GroupPast { end: below, messages: &messages, store_now_ms: wall as u64 });
    }
}

/// Replaces the owner; what the former one has in force is in the entries.
fn take_over(world: &mut World, naive: &Naive, version: u64) {
    let entries = Arc::clone(world.board.entries());
    for n in 0..GROUPS {
        let storm = world.table.active().into_iter().find(|it| it.group == group(n)).map(|it| it.storm);
        let entry = |storm: StormInForce| {
            (StormEntry { storm, action: None, exempt: Vec::new(), changes: 0 }, Duration::from_secs(1_000))
        };
        assert_eq!(storm.map(|it| it.seq), naive.storms.get(&n).map(|it| it.seq as u64));
        entries.apply(&group(n), version, storm.map(entry));
    }
    world.table = world.board.open(0, &world.events, &metrics::install().0);
    for (of, _) in entries.groups(|_| true) {
        world.table.adopt(&of);
    }
}

async fn run(seed: u64, has_take_overs: bool) {
    let what = format!("seed {seed}, {}", if has_take_overs { "take-overs" } else { "clock steps" });
    let mut rng = StdRng::seed_from_u64(seed);
    let rule = StormRule::new(THRESHOLD, Duration::from_millis(WINDOW_MS as u64));
    let board = StormBoard::new(rule, 1 << 20);
    let events = Arc::new(Events::new("", 1, 0));
    let table = board.open(0, &events, &metrics::install().0);
    let (mut world, mut naive) = (World { board, events, table }, Naive::default());
    if !has_take_overs {
        // A new owner takes the ages of past messages from the wall clock, so a step of it would count.
        time::advance(rule.window() * 2).await;
    }
    let (began, mut offset) = (time::Instant::now(), 1_000_000_000_i64);
    let mut busy = 0;
    for step in 0..STEPS {
        time::advance(Duration::from_millis(rng.random_range(0..1_500))).await;
        if !has_take_overs && rng.random_bool(0.02) {
            offset += rng.random_range(-20_000..20_000);
        }
        if has_take_overs && rng.random_bool(0.04) {
            take_over(&mut world, &naive, step as u64 + 1);
        }
        if rng.random_bool(0.05) {
            busy = rng.random_range(0..GROUPS);
        }
        let now = began.elapsed().as_millis() as i64;
        let wall = offset + now;
        settle(&world, &naive, wall);
        if rng.random_bool(0.6) {
            let n = if rng.random_bool(0.7) { busy } else { rng.random_range(0..GROUPS) };
            for _ in 0..rng.random_range(1..4) {
                let seq = naive.message(n, wall, now) as u64;
                world.table.count([(&group(n), seq, wall as u64)].into_iter());
                settle(&world, &naive, wall);
            }
        }
        // The ticks of a busy owner are late.
        if rng.random_bool(0.9) {
            world.table.tick(wall as u64);
            naive.tick(wall, now);
        }
        // The entry of a storm that is over is removed.
        for n in (0..GROUPS).filter(|n| !naive.storms.contains_key(n)) {
            world.board.entries().apply(&group(n), step as u64 + 1, None);
        }
        assert_eq!(world.reported(), naive.reports, "{what}, step {step}");
        for n in 0..GROUPS {
            let phase = world.view(&group(n)).map_or(StormPhase::Quiet, |view| view.phase);
            let expected = match naive.storms.get(&n) {
                None => StormPhase::Quiet,
                Some(NaiveStorm { cooling_since: None, .. }) => StormPhase::Storm,
                Some(_) => StormPhase::Cooling,
            };
            assert_eq!(phase, expected, "{what}, step {step}, group {n}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn table_reports_what_a_naive_list_does() {
    let seed = std::env::var("TIDEGATE_PROP_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = seed.map_or_else(|| (0..40).map(|_| rand::random()).collect(), |seed: u64| vec![seed]);
    for seed in seeds {
        run(seed, false).await;
        run(seed, true).await;
    }
}
