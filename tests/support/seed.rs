//! The seed of tests that draw lots: the same in every run of a commit, and another in those that look for more.

use std::sync::Once;

/// Of a run that names none.
const DEFAULT: u64 = 0;

/// The number in `TIDEGATE_SEED`. The gate derives it from the commit, so that a run can be repeated; `cargo xtask soak` sets
/// others.
pub fn seed() -> u64 {
    static SAID: Once = Once::new();
    let seed = std::env::var("TIDEGATE_SEED")
        .map_or(DEFAULT, |text| text.parse().unwrap_or_else(|error| panic!("TIDEGATE_SEED={text}: {error}")));
    // Shown where the test fails.
    SAID.call_once(|| println!("TIDEGATE_SEED={seed}"));
    seed
}
