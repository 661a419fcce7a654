//! How many messages have their steps noted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Steps of messages, for `tidegate trace`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Trace {
    /// New messages a second whose steps are noted, besides those that somebody asked for.
    pub per_second: u32,
    /// Steps kept in memory, about 400 bytes each; the oldest go. 0 = nothing is traced.
    pub events_max: usize,
}

impl Default for Trace {
    fn default() -> Self {
        Self { per_second: 10, events_max: 10_000 }
    }
}

impl Trace {
    /// New messages a second.
    pub fn per_second(&self) -> u32 {
        if self.events_max == 0 { 0 } else { self.per_second }
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(self.per_second <= 10_000, "trace.per_second: at most 10000");
        need(self.events_max <= 1_000_000, "trace.events_max: at most 1000000");
    }
}
