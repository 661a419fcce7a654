//! Seeded simulation of the ledger: many owners, one log, and every answer must equal the replay of the log.
//!
//! The seeds begin at `TIDEGATE_SEED`. `TIDEGATE_SIM_SEED=n` replays one, `TIDEGATE_SIM_SEEDS=count` runs another number of them.
#![allow(clippy::unwrap_used)]

mod check;
mod client;
mod model;
mod mutants;
mod ops;
mod owner;
mod rng;
#[allow(unreachable_pub, reason = "other test binaries hand it on")]
#[path = "../../../tests/support/seed.rs"]
mod seed;
mod store;
mod world;

use owner::Fault;
use world::Seen;

/// How many seeds a plain test run takes.
const SEEDS: u64 = 2_400;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a seed or a count is a number"))
}

fn add(total: &mut Seen, seen: Seen) {
    total.accepted += seen.accepted;
    total.duplicates += seen.duplicates;
    total.conflicts += seen.conflicts;
    total.broken += seen.broken;
    total.void += seen.void;
    total.refused += seen.refused;
    total.refused_before += seen.refused_before;
    total.evicted += seen.evicted;
    total.zombies_stopped += seen.zombies_stopped;
    total.replaced += seen.replaced;
    total.renamed += seen.renamed;
    total.given_up += seen.given_up;
}

#[test]
fn whoever_owns_the_partition_says_what_the_replay_says() {
    let (first, count) = match number("TIDEGATE_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (seed::seed(), number("TIDEGATE_SIM_SEEDS").unwrap_or(SEEDS)),
    };
    println!("{count} seeds from {first} on");
    let mut total = Seen::default();
    let whole = count >= 1_000;
    for seed in (0..count).map(|nth| first.wrapping_add(nth)) {
        match world::run(seed, Fault::None) {
            Ok(seen) => add(&mut total, seen),
            Err(broken) => panic!(
                "seed {seed}: {broken}\nreplay: TIDEGATE_SIM_SEED={seed} cargo test -p tidegate-protocol --test ledger_sim whoever"
            ),
        }
    }
    println!("{total:?}");
    if whole {
        let Seen { accepted, duplicates, conflicts, broken, void, refused, refused_before, .. } = total;
        let Seen { evicted, zombies_stopped, replaced, renamed, given_up, .. } = total;
        let met = [
            accepted,
            duplicates,
            conflicts,
            broken,
            void,
            refused,
            refused_before,
            evicted,
            zombies_stopped,
            replaced,
            renamed,
            given_up,
        ];
        // The rarest of them comes about 100 times, whatever the seed.
        assert!(met.iter().all(|count| *count > 50), "the simulation hardly meets some case: {total:?}");
    }
}
