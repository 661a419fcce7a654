//! Whole nodes in one process, on paused time and from a seed: shards over pipes in memory, owners, routes with leases,
//! live rooms, clients that are session machines, and a history that the checker judges.
//!
//! Every node has a runtime of its own, which runs only when the world gives it a turn. So a crash drops all that a
//! node does, a frozen node gets no turns, and no thread decides the order. The same seed gives the same history. The
//! seeds begin at `TIDEGATE_SEED`; `WORLD_SEEDS=10000 cargo test -p tidegate-lab --test world` runs more of them,
//! `WORLD_SEED=7` one.

#[allow(dead_code, reason = "each user takes a part of it")]
#[path = "../../../tests/sim/bus.rs"]
mod bus;
mod client;
mod groups;
mod link;
mod nemesis;
mod node;
#[path = "../../../tests/support/pipes.rs"]
mod pipes;
#[path = "../../../tests/support/seed.rs"]
mod seed;
mod world;

use std::time::Duration;

use tidegate_lab::checker::{self, Budget, CheckReport, History};

use self::{seed::seed, world::World};

/// Number of seeds of a run without a setting.
const SEEDS: u64 = 20;

/// Waits on the clock of the present node, which the world advances.
pub(crate) async fn pass(time: Duration) {
    let end = tokio::time::timeout(time, std::future::pending::<()>()).await;
    assert!(end.is_err(), "only the timeout ends the wait");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a seed, and returns its history.
fn run(seed: u64) -> History {
    let mut world = World::new(seed);
    world.run();
    world.finish()
}

fn judged(history: &History) -> CheckReport {
    // A client that stalls reads what was announced to it up to four seconds later.
    checker::check(history, Budget { excuse_ns: 6_000_000_000, ..Budget::default() })
}

/// Returns all events as lines.
fn lines(history: &History) -> Vec<String> {
    history.events.iter().map(|event| history.line(event).expect("events are JSON")).collect()
}

#[test]
fn every_promise_is_kept_whatever_breaks() {
    let seeds: Vec<u64> = match number("WORLD_SEED") {
        Some(seed) => {
            tracing_subscriber::fmt()
                .with_env_filter(std::env::var("TIDEGATE_LOG").unwrap_or_else(|_| "info".to_owned()))
                .without_time()
                .with_test_writer()
                .init();
            vec![seed]
        }
        None => (0..number("WORLD_SEEDS").unwrap_or(SEEDS)).map(|nth| seed().wrapping_add(nth)).collect(),
    };
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| run(seed));
        let again = format!("alone: WORLD_SEED={seed} cargo test -p tidegate-lab --test world");
        let history = outcome.unwrap_or_else(|_| panic!("seed {seed} failed; {again}"));
        if let Ok(file) = std::env::var("WORLD_HISTORY") {
            std::fs::write(file, lines(&history).join("\n")).expect("the file can be written");
        }
        let report = judged(&history);
        assert!(report.is_clean(), "seed {seed}: {:#?}\n{again}", report.violations);
        if number("WORLD_SEED").is_some() {
            eprintln!("{report:#?}");
        }
    }
}

/// A process draws its hash seeds anew, so nothing may leave in the order of a map.
#[test]
fn equal_seeds_give_equal_histories_in_two_processes() {
    for nth in 0..4 {
        let seed = seed().wrapping_add(nth);
        let file = std::env::temp_dir().join(format!("tidegate-world-{}-{seed}", std::process::id()));
        let program = std::env::current_exe().expect("a test knows its program");
        let mut other = std::process::Command::new(program);
        other.args(["--exact", "every_promise_is_kept_whatever_breaks"]);
        other.env("WORLD_SEED", seed.to_string()).env("WORLD_HISTORY", &file).env("TIDEGATE_LOG", "error");
        let output = other.output().expect("the program runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let other = std::fs::read_to_string(&file).expect("the other process wrote its history");
        std::fs::remove_file(&file).expect("the file exists");
        let (one, other) = (lines(&run(seed)), other.lines().map(str::to_owned).collect::<Vec<_>>());
        if let Some(at) = one.iter().zip(&other).position(|(one, other)| one != other) {
            panic!("seed {seed}, event {at}: {} and {}", one[at], other[at]);
        }
        assert_eq!(one.len(), other.len(), "seed {seed}");
    }
}
