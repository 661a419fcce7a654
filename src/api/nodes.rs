//! Admin API of the cluster: the nodes with their state, the share of new clients, and the routes of a user.

pub(super) mod limits;
pub(super) mod load;
pub(super) mod rules;

use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::UserId};

use super::{
    Api, Problem,
    extract::{IdPath, JsonObject},
};
use crate::routes::{Draining, Lease, NodeRow, NodeState, PartitionLag, RoutesError, TopicLag};

/// Lists all nodes as of now; while the routes are unavailable, as this node last saw them.
pub(super) async fn list(State(api): State<Api>) -> Json<Value> {
    let cluster = &api.cluster;
    let (rows, stale) = match cluster.ports.routes.nodes().await {
        Ok(rows) => (rows, false),
        Err(_) => (cluster.peers.snapshot().rows.to_vec(), true),
    };
    let nodes: Vec<Value> = rows.iter().map(|row| node(row, row.info.boot == cluster.me)).collect();
    Json(json!({
        "nodes": nodes,
        "partitions": cluster.ports.bus.partitions(),
        "archiveBehind": cluster.peers.lags().list(),
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
        "beat": row.renewals,
        "conns": info.conns,
        "capacity": info.capacity,
        "owns": info.owns,
        "stands": info.partition_lags.iter().map(partition_lag).collect::<Vec<_>>(),
        "clients": info.client_addresses,
        "peer": info.peer_address,
        "rules": info.rules,
        "self": answers,
        "weight": info.description.weight,
        "version": info.description.version,
        "share": info.description.share,
        "zone": info.description.zone,
        "labels": info.description.labels,
        "accepts": info.description.accepts,
        "drain": info.description.drain.as_ref().map(draining),
        "nodeTopic": info.description.node_topic.as_ref().map(node_topic),
    })
}

/// Renders the lag of a node in its own topic, as of its last lease renewal.
fn node_topic(lag: &TopicLag) -> Value {
    json!({
        "position": lag.position,
        "end": lag.end,
        "behindRecords": lag.behind(),
        "behindMs": lag.behind_ms,
    })
}

/// Renders the progress of a drain, as of the node's last lease renewal.
pub(super) fn draining(drain: &Draining) -> Value {
    json!({
        "phase": drain.phase,
        "from": drain.from,
        "left": drain.left,
        "unnoticed": drain.unnoticed,
        "rate": drain.rate,
        "forMs": drain.for_ms,
    })
}

/// Change of a node's share of new clients; missing fields stay as they are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct WeightChange {
    weight: Option<u32>,
    share: Option<i16>,
}

/// Changes weight and share of this node, until it restarts.
pub(super) async fn set_weight(
    State(api): State<Api>,
    JsonObject(change): JsonObject<WeightChange>,
) -> Result<Json<Value>, Problem> {
    let is_valid = change.weight.is_none_or(|weight| weight <= 1_000_000)
        && change.share.is_none_or(|share| (-1..=100).contains(&share));
    if !is_valid {
        let message = "weight is at most 1000000; share is between 0 and 100 percent, or -1 for users that no other version claims";
        return Err(Problem(Code::BadContent, message.into()));
    }
    let (weight, share) = api.assigner.set(change.weight, change.share);
    api.cluster.peers.request_refresh();
    Ok(Json(json!({"weight": weight, "share": share})))
}

/// Renders the lag of a partition, as of its owner's last lease renewal.
fn partition_lag(lag: &PartitionLag) -> Value {
    json!({
        "partition": lag.partition,
        "position": lag.position,
        "end": lag.end,
        "behindRecords": lag.behind(),
        "behindMs": lag.behind_ms,
        "behindBytes": lag.behind_bytes,
    })
}

fn lease(lease: Lease) -> &'static str {
    match lease {
        Lease::Live => "live",
        Lease::Lapsed => "lapsed",
        Lease::Retired => "retired",
    }
}

/// Lists the nodes that a user's devices are connected to.
pub(super) async fn where_is(
    State(api): State<Api>,
    IdPath(user): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let user = UserId::addressable(&user).map_err(|error| Problem(Code::BadId, format!("user: {error}")))?;
    let unavailable = |error: RoutesError| Problem(Code::Overloaded, error.to_string());
    let rows = api.cluster.ports.routes.lookup(std::slice::from_ref(&user)).await.map_err(unavailable)?;
    let peers = api.cluster.peers.snapshot();
    let route = |(device, token): (tidegate_protocol::id::DeviceId, crate::routes::Token)| {
        json!({
            "device": device.as_str(),
            "node": token.at.node.as_str(),
            "boot": format!("{:x}", token.at.boot),
            "epoch": token.epoch,
            // Tells live routes from stale ones, which are swept once the lease of their run has expired.
            "lease": peers.lease_of(&token.at).map_or("unknown", lease),
        })
    };
    let routes: Vec<Value> = rows.into_iter().flatten().map(route).collect();
    Ok(Json(json!({"user": user.as_str(), "routes": routes})))
}
