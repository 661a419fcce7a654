//! The admin API of events: what this node noted lately, and what comes next.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
    http::header::CONTENT_TYPE,
    response::Response,
};
use serde::Deserialize;
use tidegate_protocol::Code;

use super::{Api, Problem};
use crate::events::Cursor;

/// Events of one answer.
const EVENTS_MAX: usize = 500;

/// How long an answer may wait for its first event, in ms.
const WAIT_MAX_MS: u64 = 25_000;

/// From where on, and how patiently.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// A cursor, or `end`; none = from the oldest event that is kept.
    after: Option<String>,
    /// How long to wait for an event when there is none, in ms.
    #[serde(default)]
    wait_ms: u64,
}

/// Events from a cursor on.
pub(super) async fn follow(
    State(api): State<Api>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Problem> {
    let bad = |why: String| Problem(Code::BadContent, why);
    let Query(Asked { after, wait_ms }) = asked.map_err(|error| bad(error.body_text()))?;
    if wait_ms > WAIT_MAX_MS {
        return Err(bad(format!("wait_ms: at most {WAIT_MAX_MS}")));
    }
    let events = &api.ports.events;
    let from = match after.as_deref() {
        None => None,
        Some("end") => Some(events.ring().end()),
        Some(cursor) => Some(cursor.parse::<Cursor>().map_err(|()| {
            bad("after: the `cursor` of an earlier answer, or `end` for what comes from now on".into())
        })?),
    };
    let page = events.ring().wait(from, EVENTS_MAX, Duration::from_millis(wait_ms)).await;
    let mut body = format!(
        "{{\"node\":\"{}\",\"cursor\":\"{}\",\"missed\":{},\"events\":[",
        api.ports.me.node, page.cursor, page.missed
    )
    .into_bytes();
    for (nth, event) in page.events.iter().enumerate() {
        if nth > 0 {
            body.push(b',');
        }
        body.extend(events.encode(event));
    }
    body.extend(b"]}");
    let mut answer = Response::new(Body::from(body));
    answer.headers_mut().insert(CONTENT_TYPE, axum::http::HeaderValue::from_static("application/json"));
    Ok(answer)
}
