//! Load level: shuts the classes of requests from below, by the pressure on the node.

use super::GateClass;
use crate::Time;
use std::time::Duration;

/// Highest level, at which only sends and what is above them are admitted.
pub const LOAD_LEVEL_MAX: u8 = 4;

/// Pressure above which each level begins.
const BEGINS: [f64; LOAD_LEVEL_MAX as usize] = [1.1, 1.4, 1.8, 2.5];

/// Part of its begin below which a level may end.
const ENDS_PART: f64 = 0.9;

/// Time for which the pressure must be low before the level falls by one.
const FALL_TIME: Duration = Duration::from_secs(5);

/// Level of a node, 0 to [`LOAD_LEVEL_MAX`]: up at once, down by one after each 5 s of less pressure.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadLevel {
    level: u8,
    /// Begin of the time in which the pressure was low.
    low_since: Option<Time>,
}

impl LoadLevel {
    /// Takes the pressure: the largest signal of load, in parts of its target. Returns whether the level changed.
    pub fn handle_pressure(&mut self, pressure: f64, now: Time) -> bool {
        let before = self.level;
        // A comparison with NaN is false, so it counts as no pressure.
        let reached = BEGINS.iter().filter(|begin| pressure > **begin).count() as u8;
        let ends_below = self.level.checked_sub(1).map_or(0.0, |at| BEGINS[usize::from(at)] * ENDS_PART);
        if reached > self.level {
            self.level = reached;
            self.low_since = None;
        } else if self.level == 0 || pressure >= ends_below {
            self.low_since = None;
        } else {
            let since = *self.low_since.get_or_insert(now);
            if now.since(since) >= FALL_TIME {
                self.level -= 1;
                self.low_since = Some(now);
            }
        }
        self.level != before
    }

    /// Returns the level.
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// Returns whether requests of the class are admitted.
    pub fn admits(&self, class: GateClass) -> bool {
        Self::admits_at(self.level, class)
    }

    /// Returns whether requests of the class are admitted at a level.
    pub const fn admits_at(level: u8, class: GateClass) -> bool {
        class as u8 >= level
    }
}
