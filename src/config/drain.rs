//! The section `[drain]`: how a node leaves.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_protocol::machine::drain::Settings;

use super::Config;

/// How long load balancers are given to look elsewhere.
const LB_DELAY: Duration = Duration::from_millis(5_000);

/// How a node leaves: what happens between a signal and the end of the process.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Drain {
    /// How long the node goes on accepting with `/readyz` at 503, until load balancers look elsewhere; 0 = 5 s, or
    /// none when `listen.client` is a loopback address.
    pub lb_delay_ms: u64,
    /// Clients move, and are closed, spread over this time; less when they are few: it need not be slower than 50 a
    /// second.
    pub spread_ms: u64,
    /// Clients closed a second, at most; less when the other nodes accept less (assign.accepts). The spread stretches for it, up to
    /// the deadline.
    pub max_rate: u32,
    /// For finishing what is under way when the clients are gone.
    pub flush_ms: u64,
    /// The whole drain; clients that are left then are cut, and the exit code is 3.
    pub deadline_ms: u64,
    /// What is granted between the signal and the kill, as `terminationGracePeriodSeconds` of a pod; 0 = not known. Too short for
    /// a drain of a full node: `tidegate config check` fails, and the node says so when it starts.
    pub grace_ms: u64,
}

impl Default for Drain {
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
    /// The drain as its machine takes it: with nobody but this machine to connect, no load balancer is waited for.
    pub fn drain_settings(&self) -> Settings {
        let ms = Duration::from_millis;
        let drain = &self.drain;
        let lb_delay = match drain.lb_delay_ms {
            0 if self.listen.client.ip().is_loopback() => Duration::ZERO,
            0 => LB_DELAY,
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
