//! The seed of randomised tests: fixed for a commit, so that a run can be repeated.

use std::sync::Once;

/// Seed of a run without a setting.
const DEFAULT: u64 = 0;

/// Returns the number in `TIDEGATE_SEED`. `cargo xtask test` derives it from the commit; `cargo xtask soak` sets new
/// ones.
pub(crate) fn seed() -> u64 {
    static SAID: Once = Once::new();
    let seed = std::env::var("TIDEGATE_SEED")
        .map_or(DEFAULT, |text| text.parse().unwrap_or_else(|error| panic!("TIDEGATE_SEED={text}: {error}")));
    // The output of a test is shown when it fails.
    SAID.call_once(|| println!("TIDEGATE_SEED={seed}"));
    seed
}
