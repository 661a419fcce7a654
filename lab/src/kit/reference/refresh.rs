//! Refresh of the token on a live connection (SPEC section 3).

use std::time::{Duration, Instant};

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

use super::pace::Pace;

/// Longest lead of a refresh before the end of the token, apart from its random part.
const LEAD_MAX: Duration = Duration::from_secs(300);
/// Shortest interval between two refreshes that a node accepts.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// When the token of a connection is replaced, and the request that replaces it.
#[derive(Debug, Default)]
pub(super) struct TokenRefresh {
    /// When the connection began, and the time of its node then, in ms since 1970; `None` without the feature.
    clock: Option<(Instant, u64)>,
    due: Option<Instant>,
    /// Id of the unanswered request.
    request: Option<u64>,
}

/// Outcome of a refresh.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refreshed {
    Done,
    /// Code and name of a lasting refusal.
    Refused(Value, Value),
    /// Temporary refusal: the client repeats the request later.
    Later,
}

impl TokenRefresh {
    /// Returns the refresh of a connection with this `welcome`, which logged in with `token`.
    pub(super) fn new(welcome: &Value, token: &Value, pace: &Pace, now: Instant) -> Self {
        let mut features = welcome["features"].as_array().into_iter().flatten();
        let time = welcome["serverTime"].as_u64().filter(|_| features.any(|it| it == "refresh"));
        let mut refresh = Self { clock: time.map(|time| (now, time)), ..Self::default() };
        refresh.plan(token, pace, now);
        refresh
    }

    /// Sets when a token is to be replaced: never, if the client can't read its end.
    pub(super) fn plan(&mut self, token: &Value, pace: &Pace, now: Instant) {
        self.due = self.clock.zip(expiry_ms(token)).and_then(|((began, time), end)| {
            let left = (began + Duration::from_millis(end.checked_sub(time)?)).checked_duration_since(now)?;
            let lead = (left / 4).min(LEAD_MAX);
            Some(now + (left - lead - pace.part(lead)).max(REFRESH_INTERVAL))
        });
    }

    /// Returns the request if it is due and there is another token.
    pub(super) fn request(&mut self, id: u64, token: Option<&Value>, now: Instant) -> Option<Value> {
        self.due.filter(|due| *due <= now)?;
        let token = token?;
        (self.due, self.request) = (None, Some(id));
        Some(json!({"id": id, "refresh": {"token": token}}))
    }

    /// Returns the outcome if the frame is the answer.
    pub(super) fn answered(&mut self, frame: &Value, now: Instant) -> Option<Refreshed> {
        self.request.take_if(|id| frame["id"] == *id)?;
        let error = &frame["error"];
        if error["temporary"] == true {
            let wait = Duration::from_millis(error["retryAfterMs"].as_u64().unwrap_or_default());
            self.due = Some(now + wait);
            return Some(Refreshed::Later);
        }
        Some(match error.is_object() {
            true => Refreshed::Refused(error["code"].clone(), error["name"].clone()),
            false => Refreshed::Done,
        })
    }
}

/// Returns the claim `exp` of a token in ms, if it is a JWT with one.
fn expiry_ms(token: &Value) -> Option<u64> {
    let payload = token.as_str()?.split('.').nth(1)?;
    let claims: Value = serde_json::from_slice(&BASE64URL_NOPAD.decode(payload.as_bytes()).ok()?).ok()?;
    claims["exp"].as_u64()?.checked_mul(1_000)
}
