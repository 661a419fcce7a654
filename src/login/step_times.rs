//! Step times of a login, for the log.

use std::time::Duration;

use tokio::time;

use crate::{mail::ConnKey, routes::Route};

/// Duration of each step of a login, logged at level `debug`.
pub(super) struct StepTimes {
    since: time::Instant,
    all: Vec<(&'static str, Duration)>,
}

impl StepTimes {
    pub(super) fn begin() -> Self {
        Self { since: time::Instant::now(), all: Vec::new() }
    }

    pub(super) fn done(&mut self, step: &'static str) {
        let now = time::Instant::now();
        self.all.push((step, now - self.since));
        self.since = now;
    }

    pub(super) fn log(&self, key: ConnKey, route: &Route, stage: &'static str) {
        let connection = format_args!("{:x}", key.pack());
        tracing::debug!(%connection, user = %route.user, device = %route.device, steps = ?self.all, stage, "login timings");
    }
}
