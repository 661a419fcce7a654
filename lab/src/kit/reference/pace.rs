//! Waits before a reconnect (SPEC section 8).

use std::time::{Duration, Instant};

use rand::RngExt as _;
use serde_json::Value;

/// Longest wait of the first attempt.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest wait of any attempt.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Wait after a close without a class.
const DEFAULT_AFTER_MS: u64 = 1_000;
/// Time of being live after which the attempts count from the start again.
const STABLE: Duration = Duration::from_secs(10);

/// What a client does after the end of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It connects again after this time.
    Wait(Duration),
    Never,
}

/// Attempts in a row, and the random numbers of their waits.
pub(super) struct Pace {
    random: Option<f64>,
    doubles: bool,
    attempts: u32,
    live_since: Option<Instant>,
}

impl Pace {
    pub(super) fn new(random: Option<f64>, doubles: bool) -> Self {
        Self { random, doubles, attempts: 0, live_since: None }
    }

    /// Notes a login.
    pub(super) fn live(&mut self, now: Instant) {
        self.live_since = Some(now);
    }

    /// Returns what follows a `close`, or an end without one.
    pub(super) fn after(&mut self, close: Option<&Value>, now: Instant) -> Next {
        if self.live_since.take().is_some_and(|since| now - since >= STABLE) {
            self.attempts = 0;
        }
        let close = close.unwrap_or(&Value::Null);
        let code = close["code"].as_u64().unwrap_or_default();
        let after_ms = close["afterMs"].as_u64();
        match close["reconnect"].as_str() {
            Some("RECONNECT_NEVER") => Next::Never,
            Some("RECONNECT_AFTER") => Next::Wait(self.announced(after_ms.unwrap_or_default())),
            Some("RECONNECT_NOW") => Next::Wait(self.back_off()),
            _ if (3_500..4_000).contains(&code) => Next::Never,
            _ if code > 0 => Next::Wait(self.announced(after_ms.unwrap_or(DEFAULT_AFTER_MS))),
            _ => Next::Wait(self.back_off()),
        }
    }

    /// Returns a random time below `most`.
    pub(super) fn part(&self, most: Duration) -> Duration {
        most.mul_f64(self.random.unwrap_or_else(|| rand::rng().random_range(0.0..1.0)))
    }

    fn announced(&mut self, after_ms: u64) -> Duration {
        self.attempts += 1;
        let wait = Duration::from_millis(after_ms);
        wait + self.part(wait / 10)
    }

    /// Returns the wait of the next attempt, which doubles with each in a row.
    pub(super) fn back_off(&mut self) -> Duration {
        let doublings = if self.doubles { self.attempts.min(10) } else { 0 };
        self.attempts += 1;
        self.part((FIRST_WAIT * (1 << doublings)).min(WAIT_MAX))
    }
}
