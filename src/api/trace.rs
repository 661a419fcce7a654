//! The admin API of traces: the steps of messages on this node.

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{MsgId, UserId},
};

use super::{Api, Problem, now_ms};
use crate::trace::{self, WATCH_MS};

/// What is asked for; one of them at the least.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    msg: Option<String>,
    user: Option<String>,
    /// Traces of 32 hex digits each, with commas between.
    trace: Option<String>,
}

/// The steps of those traces here. A message or user that is asked for is watched from now on.
pub(super) async fn steps(
    State(api): State<Api>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let bad = |why: String| Problem(Code::BadContent, why);
    let Query(Asked { msg, user, trace }) = asked.map_err(|error| bad(error.body_text()))?;
    if let Some(msg) = &msg {
        MsgId::new(msg).map_err(|error| Problem(Code::BadId, format!("msg: {error}")))?;
    }
    if let Some(user) = &user {
        UserId::new(user).map_err(|error| Problem(Code::BadId, format!("user: {error}")))?;
    }
    if msg.is_none() && user.is_none() && trace.is_none() {
        return Err(bad("name a message (msg=), a user (user=) or traces (trace=)".into()));
    }
    let traces = trace.as_deref().unwrap_or_default().split(',').filter(|text| !text.is_empty());
    let traces: Result<Vec<u128>, _> = traces.map(|text| u128::from_str_radix(text, 16)).collect();
    let traces = traces.map_err(|_| bad("trace: 32 hex digits each, with commas between".into()))?;
    let tracer = &api.ports.trace;
    for name in [&msg, &user].into_iter().flatten() {
        tracer.watch(name, now_ms());
    }
    let steps = tracer.find(&trace::Query { msg, user, traces });
    Ok(Json(json!({
        "node": api.ports.me.node.as_str(),
        "watchedMs": WATCH_MS,
        "steps": steps,
    })))
}
