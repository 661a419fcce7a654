//! Section `[overload]`: whether a node refuses work before its queues grow, and from which delay on.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::load::GateSettings;

/// Delay of a node whose sends are answered after the ledger has decided, or by its own disk.
const EXCESS_DEFAULT: Duration = Duration::from_millis(50);

/// Delay of a node that answers after a database has archived, whose batches grow with the load.
const EXCESS_ARCHIVED: Duration = Duration::from_millis(200);

/// Protection against overload: gates and load level; see docs/overload.md.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct OverloadConfig {
    /// Whether the node refuses messages, logins, reads, joins and signals while it is overloaded. Otherwise it only shows
    /// what its gates and its load level measure.
    pub gates: bool,
    /// Standing delay of messages above its smallest of the last minute, in milliseconds, from which fewer are admitted.
    /// 0: 50 ms; 200 ms with node.profile = `cluster` and log.answer = `archived`.
    pub delay_ms: u64,
}

impl OverloadConfig {
    /// Returns the settings of the gates; `is_archived` says that messages are answered once a database has them.
    pub fn gate_settings(&self, is_archived: bool) -> GateSettings {
        let excess = match (self.delay_ms, is_archived) {
            (0, false) => EXCESS_DEFAULT,
            (0, true) => EXCESS_ARCHIVED,
            (ms, _) => Duration::from_millis(ms),
        };
        GateSettings { is_enabled: self.gates, excess }
    }

    pub(in crate::config) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(self.delay_ms <= 60_000, "overload.delay_ms: at most one minute");
    }
}
