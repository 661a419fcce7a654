//! The admin API of the cluster: which nodes there are, and where a user is.

use axum::{
    Json,
    extract::{Path, State, rejection::JsonRejection},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::UserId};

use super::{Api, Problem, bad_body};
use crate::routes::{Draining, Lease, NodeRow, NodeState, RoutesError, Standing, TopicLag};

/// All nodes, as the routes list them now; as this node saw them last while those are away.
pub(super) async fn list(State(api): State<Api>) -> Json<Value> {
    let ports = &api.ports;
    let (rows, stale) = match ports.routes.nodes().await {
        Ok(rows) => (rows, false),
        Err(_) => (ports.peers.seen().rows.to_vec(), true),
    };
    let nodes: Vec<Value> = rows.iter().map(|row| node(row, row.info.boot == ports.me)).collect();
    Json(json!({
        "nodes": nodes,
        "partitions": ports.bus.partitions(),
        "archiveBehind": ports.peers.lags().list(),
        "stale": stale,
    }))
}

fn node(row: &NodeRow, answers: bool) -> Value {
    let info = &row.info;
    json!({
        "node": info.boot.node.as_str(),
        "boot": format!("{:x}", info.boot.boot),
        "state": match info.state {
            NodeState::Ready => "ready",
            NodeState::Cordoned => "cordoned",
            NodeState::Draining => "draining",
        },
        "lease": lease(row.lease),
        "beat": row.beat,
        "conns": info.conns,
        "capacity": info.capacity,
        "owns": info.owns,
        "stands": info.stands.iter().map(standing).collect::<Vec<_>>(),
        "clients": info.client_addresses,
        "peer": info.peer_address,
        "rules": info.rules,
        "self": answers,
        "weight": info.about.weight,
        "version": info.about.version,
        "share": info.about.share,
        "zone": info.about.zone,
        "labels": info.about.labels,
        "accepts": info.about.accepts,
        "drain": info.about.drain.as_ref().map(draining),
        "nodeTopic": info.about.node_topic.as_ref().map(node_topic),
    })
}

/// How far a node was in its own topic when it renewed its lease.
fn node_topic(it: &TopicLag) -> Value {
    json!({
        "position": it.position,
        "end": it.end,
        "behindRecords": it.behind(),
        "behindMs": it.behind_ms,
    })
}

/// How far a drain was when the node renewed its lease.
pub(super) fn draining(it: &Draining) -> Value {
    json!({
        "phase": it.phase,
        "from": it.from,
        "left": it.left,
        "unnoticed": it.unnoticed,
        "rate": it.rate,
        "forMs": it.for_ms,
    })
}

/// How much of the newcomers a node is to get; what is left out stays.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Weighed {
    weight: Option<u32>,
    share: Option<i16>,
}

/// Changes that for this node, until it starts again.
pub(super) async fn weigh(
    State(api): State<Api>,
    body: Result<Json<Weighed>, JsonRejection>,
) -> Result<Json<Value>, Problem> {
    let Json(wished) = body.map_err(bad_body)?;
    let fine = wished.weight.is_none_or(|weight| weight <= 1_000_000)
        && wished.share.is_none_or(|share| (-1..=100).contains(&share));
    if !fine {
        let what = "weight is at most 1000000; share is between 0 and 100 percent, or -1 for what no other version gets";
        return Err(Problem(Code::BadContent, what.into()));
    }
    let (weight, share) = api.assigner.set(wished.weight, wished.share);
    api.ports.peers.look_again();
    Ok(Json(json!({"weight": weight, "share": share})))
}

/// How far the owner of a partition was when it renewed its lease.
fn standing(it: &Standing) -> Value {
    json!({
        "partition": it.partition,
        "position": it.position,
        "end": it.end,
        "behindRecords": it.behind(),
        "behindMs": it.behind_ms,
        "behindBytes": it.behind_bytes,
    })
}

fn lease(lease: Lease) -> &'static str {
    match lease {
        Lease::Live => "live",
        Lease::Lapsed => "lapsed",
        Lease::Retired => "retired",
    }
}

/// On which nodes a user's devices are.
pub(super) async fn where_is(
    State(api): State<Api>,
    Path(user): Path<String>,
) -> Result<Json<Value>, Problem> {
    let user = UserId::new(&user).map_err(|error| Problem(Code::BadId, format!("user: {error}")))?;
    let away = |error: RoutesError| Problem(Code::Overloaded, error.to_string());
    let rows = api.ports.routes.lookup(std::slice::from_ref(&user)).await.map_err(away)?;
    let seen = api.ports.peers.seen();
    let route = |(device, token): (tidegate_protocol::id::DeviceId, crate::routes::Token)| {
        json!({
            "device": device.as_str(),
            "node": token.at.node.as_str(),
            "boot": format!("{:x}", token.at.boot),
            "epoch": token.epoch,
            // What a route is worth: a row of a run whose lease is over is swept.
            "lease": seen.lease_of(&token.at).map_or("unknown", lease),
        })
    };
    let routes: Vec<Value> = rows.into_iter().flatten().map(route).collect();
    Ok(Json(json!({"user": user.as_str(), "routes": routes})))
}
