//! Guard: what administrators and nodes decide about callers, from the store to the parts that apply it.

pub mod apisix;
mod candidates;
mod decisions;
mod order_faults;
pub mod permits;
pub mod profiles;
pub mod rules;
mod sentinel;
mod wide_bans;

pub use sentinel::Sentinel;

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// Interval of the looks of tasks that follow what a node decides about callers.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the times of a task's looks; a late one delays the ones after it.
fn looks() -> Interval {
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
