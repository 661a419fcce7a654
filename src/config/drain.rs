//! Section `[drain]`: the planned stop of a node.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_protocol::machine::drain::Settings;

use super::Config;

/// Default time for load balancers to stop choosing the node, in a drain.
const LB_DELAY_DEFAULT: Duration = Duration::from_millis(5_000);

/// Drain of a node, from the signal to the end of the process.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct DrainConfig {
    /// How long the node keeps accepting while `/readyz` answers 503, until load balancers stop choosing it. 0: 5 s,
    /// or no delay if `listen.client` is a loopback address.
    pub lb_delay_ms: u64,
    /// Time over which clients are moved and closed; shorter with few clients, because the pace need not drop below
    /// 50 per second.
    pub spread_ms: u64,
    /// Most clients closed per second; fewer if the other nodes accept fewer (assign.accepts). The spread then
    /// stretches, up to the deadline.
    pub max_rate: u32,
    /// Time to finish pending work after the last client has left.
    pub flush_ms: u64,
    /// Time for the whole drain; clients that remain are cut, and the exit code is 3.
    pub deadline_ms: u64,
    /// Time between the signal and the kill, such as `terminationGracePeriodSeconds` of a pod. 0: unknown. If it is
    /// too short to drain a full node, `tidegate config check` fails and the node logs a warning when it starts.
    pub grace_ms: u64,
}

impl Default for DrainConfig {
    fn default() -> Self {
        Self {
            lb_delay_ms: 0,
            spread_ms: 30_000,
            max_rate: 500,
            flush_ms: 5_000,
            deadline_ms: 50_000,
            grace_ms: 0,
        }
    }
}

impl Config {
    /// Returns the settings of the drain machine. A loopback listener gets no delay, because it has no load balancer.
    pub fn drain_settings(&self) -> Settings {
        let ms = Duration::from_millis;
        let drain = &self.drain;
        let lb_delay = match drain.lb_delay_ms {
            0 if self.listen.client.ip().is_loopback() => Duration::ZERO,
            0 => LB_DELAY_DEFAULT,
            given => ms(given),
        };
        Settings {
            lb_delay,
            spread: ms(drain.spread_ms),
            max_rate: drain.max_rate,
            flush: ms(drain.flush_ms),
            deadline: ms(drain.deadline_ms),
        }
    }

    pub(super) fn check_drain(&self, need: &mut impl FnMut(bool, &str)) {
        let (drain, settings) = (&self.drain, self.drain_settings());
        let spans = [drain.lb_delay_ms, drain.spread_ms, drain.flush_ms, drain.deadline_ms, drain.grace_ms];
        need(spans.iter().all(|ms| *ms <= 3_600_000), "drain: each at most one hour");
        need(drain.max_rate > 0, "drain.max_rate: at least 1");
        need(drain.flush_ms >= 100, "drain.flush_ms: at least 100 ms");
        need(
            settings.deadline > settings.lb_delay + settings.flush,
            "drain.deadline_ms: more than drain.lb_delay_ms (5 s unless set) and drain.flush_ms together",
        );
    }
}
