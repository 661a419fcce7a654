//! Admin API of traces: the steps of messages on all nodes, which the queried node collects from its peers.
//!
//! Only POST makes nodes watch a message or user. A GET changes nothing, because a web page can make a browser send
//! one.

use std::collections::HashMap;

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{MsgId, UserId},
};

use super::super::{Api, Problem, extract::JsonObject};
use crate::{
    cluster::Cluster,
    trace::{FOUND_TRACES, TraceEvent, TraceFilter as StepsQuery, WATCH_MS},
};

/// Most steps in a response, over all nodes; the newest are returned.
const STEPS_MAX: usize = 10_000;

/// Parameters of a request; at least one is required.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct TraceQuery {
    msg: Option<String>,
    user: Option<String>,
    /// Trace ids of 32 hex digits each, separated by commas.
    trace: Option<String>,
}

/// Returns the recorded steps of the requested traces, sorted by time.
pub(in crate::api) async fn steps(
    State(api): State<Api>,
    query: Result<Query<TraceQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(query) = query.map_err(|error| Problem(Code::BadContent, error.body_text()))?;
    collect(&api, query, false).await
}

/// Returns the steps as [`steps`] does, and makes all nodes watch the message or user from now on.
pub(in crate::api) async fn watch(
    State(api): State<Api>,
    JsonObject(query): JsonObject<TraceQuery>,
) -> Result<Json<Value>, Problem> {
    collect(&api, query, true).await
}

async fn collect(
    api: &Api,
    TraceQuery { msg, user, trace }: TraceQuery,
    is_watched: bool,
) -> Result<Json<Value>, Problem> {
    let bad = |why: String| Problem(Code::BadContent, why);
    if let Some(msg) = &msg {
        MsgId::new(msg).map_err(|error| Problem(Code::BadId, format!("msg: {error}")))?;
    }
    if let Some(user) = &user {
        UserId::addressable(user).map_err(|error| Problem(Code::BadId, format!("user: {error}")))?;
    }
    if msg.is_none() && user.is_none() && trace.is_none() {
        return Err(bad("name a message (msg=), a user (user=) or traces (trace=)".into()));
    }
    let traces = trace.as_deref().into_iter().flat_map(|ids| ids.split(','));
    let traces: Option<Vec<u128>> = traces.map(trace_id).collect();
    let traces =
        traces.ok_or_else(|| bad("trace: write ids of 32 hex digits, separated by commas".into()))?;
    if traces.len() > FOUND_TRACES {
        return Err(bad(format!("trace: at most {FOUND_TRACES} at once")));
    }
    let query = StepsQuery { msg: msg.clone(), user: user.clone(), traces, is_passive: !is_watched };
    let mut collected = query_all(&api.cluster, &query).await;
    if msg.is_some() || user.is_some() {
        // Other steps of a trace may not name the message or the user: query again, by trace.
        let traces = newest(&collected.steps);
        collected = query_all(&api.cluster, &StepsQuery { traces, ..StepsQuery::default() }).await;
    }
    collected.steps.sort_by_key(|(_, step)| step.time_us);
    let steps = &collected.steps[collected.steps.len().saturating_sub(STEPS_MAX)..];
    let steps: Result<Vec<Value>, _> = steps.iter().map(|(node, step)| with_node(node, step)).collect();
    let names = msg.as_deref().into_iter().chain(user.as_deref());
    let watched_ms =
        if is_watched { WATCH_MS } else { api.cluster.trace.watched_for(super::super::now_ms(), names) };
    Ok(Json(json!({
        "node": api.cluster.me.node.as_str(),
        "watchedMs": watched_ms,
        "steps": steps.map_err(|error| Problem(Code::Internal, error.to_string()))?,
        "silent": collected.silent,
    })))
}

fn trace_id(text: &str) -> Option<u128> {
    let is_id = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| is_id)
}

/// Steps collected from all nodes.
struct CollectedSteps {
    /// Each step with the name of its node.
    steps: Vec<(String, TraceEvent)>,
    /// Nodes that did not answer, or are too old to support the query.
    silent: Vec<String>,
}

/// Queries this node and all its peers concurrently; a peer has the time of a link call to reply.
async fn query_all(cluster: &Cluster, query: &StepsQuery) -> CollectedSteps {
    let own = cluster.trace.find_and_watch(query).into_iter().map(|step| (cluster.me.node.to_string(), step));
    let mut collected = CollectedSteps { steps: own.collect(), silent: Vec::new() };
    let others = cluster.peers.others();
    let calls = others.iter().map(|row| cluster.ports.link.traces(&row.info.boot, query.clone()));
    for (row, reply) in others.iter().zip(join_all(calls).await) {
        let node = row.info.boot.node.to_string();
        match reply {
            Ok(steps) => collected.steps.extend(steps.into_iter().map(|step| (node.clone(), step))),
            Err(error) => {
                tracing::debug!(%error, node, "peer returned no trace steps; they are missing in the response");
                collected.silent.push(node);
            }
        }
    }
    collected
}

/// Returns the traces of these steps; if there are too many, those with the latest steps.
fn newest(steps: &[(String, TraceEvent)]) -> Vec<u128> {
    let mut last: HashMap<u128, u64> = HashMap::new();
    for (_, step) in steps {
        let time = last.entry(step.id()).or_default();
        *time = step.time_us.max(*time);
    }
    let mut traces: Vec<(u64, u128)> = last.into_iter().map(|(id, time)| (time, id)).collect();
    traces.sort_unstable_by(|a, b| b.cmp(a));
    traces.into_iter().take(FOUND_TRACES).map(|(_, id)| id).collect()
}

fn with_node(node: &str, step: &TraceEvent) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(step)?;
    value["node"] = node.into();
    Ok(value)
}
