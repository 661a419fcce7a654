//! Admin API of events: the recent events of this node, and a long poll for the next ones.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
    http::header::CONTENT_TYPE,
    response::Response,
};
use serde::Deserialize;
use tidegate_protocol::Code;

use super::super::{Api, Problem};
use crate::events::Cursor;

/// Most events in one response.
const EVENTS_MAX: usize = 500;

/// Longest time that a request may wait for its first event, in ms.
const WAIT_MAX_MS: u64 = 25_000;

/// Parameters of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct EventsQuery {
    /// Cursor to start after, or `end`; `None` starts at the oldest event that is kept.
    after: Option<String>,
    /// How long to wait if there is no event, in ms.
    #[serde(default)]
    wait_ms: u64,
}

/// Returns the events after a cursor.
pub(in crate::api) async fn follow(
    State(api): State<Api>,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let bad = |why: String| Problem(Code::BadContent, why);
    let Query(EventsQuery { after, wait_ms }) = query.map_err(|error| bad(error.body_text()))?;
    if wait_ms > WAIT_MAX_MS {
        return Err(bad(format!("wait_ms: at most {WAIT_MAX_MS}")));
    }
    let events = &api.cluster.events;
    let from = match after.as_deref() {
        None => None,
        Some("end") => Some(events.ring().end()),
        Some(cursor) => Some(cursor.parse::<Cursor>().map_err(|()| {
            bad("after: use the `cursor` of an earlier response, or `end` for events from now on".into())
        })?),
    };
    let page = events.ring().wait(from, EVENTS_MAX, Duration::from_millis(wait_ms)).await;
    let mut body = format!(
        "{{\"node\":\"{}\",\"cursor\":\"{}\",\"missed\":{},\"events\":[",
        api.cluster.me.node, page.cursor, page.missed
    )
    .into_bytes();
    for (nth, event) in page.events.iter().enumerate() {
        if nth > 0 {
            body.push(b',');
        }
        body.extend(events.encode(event));
    }
    body.extend(b"]}");
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, axum::http::HeaderValue::from_static("application/json"));
    Ok(response)
}
