//! Speed of the machine, by a fixed amount of work on two cores. Budgets are seconds of one machine; a slower one gets more.

use std::{
    collections::BTreeMap,
    hint, thread,
    time::{Duration, Instant},
};

/// Duration of the work on the machine of the budgets: the least of three, with nothing else running.
const REFERENCE: Duration = Duration::from_millis(52);

/// A machine that is slower by more than this is no machine for a test run.
const SLOWNESS_MAX: f64 = 2.0;

/// Returns by how much this machine is slower than that of the budgets: from 1 to [`SLOWNESS_MAX`].
pub(super) fn slowness() -> f64 {
    let least = (0..3).map(|_| on_two_cores()).min().unwrap_or_default();
    (least.as_secs_f64() / REFERENCE.as_secs_f64()).clamp(1.0, SLOWNESS_MAX)
}

fn on_two_cores() -> Duration {
    let began = Instant::now();
    thread::scope(|scope| {
        for seed in [1, 2] {
            scope.spawn(move || hint::black_box(work(seed)));
        }
    });
    began.elapsed()
}

/// Does what compilers and brokers do: small allocations, maps and comparisons of texts.
fn work(seed: u64) -> usize {
    let mut state = seed;
    let texts: BTreeMap<u64, String> = (0..100_000)
        .map(|number: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32, (number ^ state).to_string())
        })
        .collect();
    let mut sorted: Vec<&String> = texts.values().collect();
    sorted.sort();
    sorted.iter().step_by(7).map(|text| text.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowness_is_within_its_bounds() {
        assert!((1.0..=SLOWNESS_MAX).contains(&slowness()));
        assert_ne!(work(1), 0);
    }
}
