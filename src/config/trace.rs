//! Section `[trace]`: how many messages are traced, and how many of their steps are kept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tracing of messages, for `tidegate trace`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct TraceConfig {
    /// New messages traced per second, in addition to watched ones.
    pub per_second: u32,
    /// Steps kept in memory, about 400 bytes each; the oldest are evicted. 0: tracing is off.
    pub events_max: usize,
}

impl Default for TraceConfig {
    fn default() -> Self {
        Self { per_second: 10, events_max: 10_000 }
    }
}

impl TraceConfig {
    /// Returns the number of new messages traced per second; 0 if no steps are kept.
    pub fn per_second(&self) -> u32 {
        if self.events_max == 0 { 0 } else { self.per_second }
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(self.per_second <= 10_000, "trace.per_second: at most 10000");
        need(self.events_max <= 1_000_000, "trace.events_max: at most 1000000");
    }
}
