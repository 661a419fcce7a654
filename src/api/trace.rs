//! The admin API of traces: the steps of messages on all nodes, which the node that is asked collects from its peers.
//!
//! Only POST has nodes watch a message or user. A GET changes nothing: a web page can have a browser send one.

use std::collections::HashMap;

use axum::{
    Json,
    extract::{
        Query, State,
        rejection::{JsonRejection, QueryRejection},
    },
};
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{MsgId, UserId},
};

use super::{Api, Problem, bad_body};
use crate::{
    ports::Ports,
    trace::{Event, FOUND_TRACES, Query as Wanted, WATCH_MS},
};

/// The most steps that an answer has, of all nodes: the newest.
const STEPS_MAX: usize = 10_000;

/// What is asked for; one of them at the least.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    msg: Option<String>,
    user: Option<String>,
    /// Traces of 32 hex digits each, with commas between.
    trace: Option<String>,
}

/// The steps of those traces that nodes have recorded, by time.
pub(super) async fn steps(
    State(api): State<Api>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(asked) = asked.map_err(|error| Problem(Code::BadContent, error.body_text()))?;
    collect(&api, asked, false).await
}

/// The same, and all nodes watch the message or user from now on.
pub(super) async fn watch(
    State(api): State<Api>,
    asked: Result<Json<Asked>, JsonRejection>,
) -> Result<Json<Value>, Problem> {
    let Json(asked) = asked.map_err(bad_body)?;
    collect(&api, asked, true).await
}

async fn collect(
    api: &Api,
    Asked { msg, user, trace }: Asked,
    is_watched: bool,
) -> Result<Json<Value>, Problem> {
    let bad = |why: String| Problem(Code::BadContent, why);
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
    if traces.len() > FOUND_TRACES {
        return Err(bad(format!("trace: at most {FOUND_TRACES} at once")));
    }
    let wanted = Wanted { msg: msg.clone(), user: user.clone(), traces, is_passive: !is_watched };
    let mut said = ask_all(&api.ports, &wanted).await;
    if msg.is_some() || user.is_some() {
        // What a node knows under another name: whole traces are wanted.
        let traces = newest(&said.steps);
        said = ask_all(&api.ports, &Wanted { traces, ..Wanted::default() }).await;
    }
    said.steps.sort_by_key(|(_, step)| step.time_us);
    let steps = &said.steps[said.steps.len().saturating_sub(STEPS_MAX)..];
    let steps: Result<Vec<Value>, _> = steps.iter().map(|(node, step)| with_node(node, step)).collect();
    Ok(Json(json!({
        "node": api.ports.me.node.as_str(),
        "watchedMs": if is_watched { WATCH_MS } else { 0 },
        "steps": steps.map_err(|error| Problem(Code::Internal, error.to_string()))?,
        "silent": said.silent,
    })))
}

/// What the nodes said.
struct Said {
    /// Each step with its node.
    steps: Vec<(String, Event)>,
    /// Who did not answer, or is too old to.
    silent: Vec<String>,
}

/// Asks this node and, each within the time of a call, all its peers at once.
async fn ask_all(ports: &Ports, wanted: &Wanted) -> Said {
    let own = ports.trace.ask(wanted).into_iter().map(|step| (ports.me.node.to_string(), step));
    let mut said = Said { steps: own.collect(), silent: Vec::new() };
    let others = ports.peers.others();
    let asked = others.iter().map(|row| ports.link.traces(&row.info.boot, wanted.clone()));
    for (row, answer) in others.iter().zip(join_all(asked).await) {
        let node = row.info.boot.node.to_string();
        match answer {
            Ok(steps) => said.steps.extend(steps.into_iter().map(|step| (node.clone(), step))),
            Err(error) => {
                tracing::debug!(%error, node, "a peer told no steps");
                said.silent.push(node);
            }
        }
    }
    said
}

/// The traces that these steps are of; of too many those that went on last.
fn newest(steps: &[(String, Event)]) -> Vec<u128> {
    let mut last: HashMap<u128, u64> = HashMap::new();
    for (_, step) in steps {
        let time = last.entry(step.id()).or_default();
        *time = step.time_us.max(*time);
    }
    let mut traces: Vec<(u64, u128)> = last.into_iter().map(|(id, time)| (time, id)).collect();
    traces.sort_unstable_by(|a, b| b.cmp(a));
    traces.into_iter().take(FOUND_TRACES).map(|(_, id)| id).collect()
}

fn with_node(node: &str, step: &Event) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(step)?;
    value["node"] = node.into();
    Ok(value)
}
