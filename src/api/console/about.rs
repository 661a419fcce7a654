//! Facts that the console needs first: the node, its rights, and the addresses of all nodes.

use std::time::Duration;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::Api;
use crate::{
    api::dev::forward, assign::address_for, drain::Forecast, net::upgrade::Transport, routes::NodeInfo,
};

/// Returns the facts.
pub(in crate::api) async fn about(State(api): State<Api>) -> Json<Value> {
    let (cluster, console) = (&api.cluster, &api.console);
    let snapshot = cluster.peers.snapshot();
    let own = snapshot.rows.iter().find(|row| row.info.boot == cluster.me).map(|row| &row.info);
    let features: Vec<&str> = [
        ("token", console.is_development),
        ("cut", console.is_development),
        ("abort", console.may_abort),
        ("forward", console.is_development),
        ("stats", true),
        ("flows", true),
        ("codes", true),
    ]
    .into_iter()
    .filter_map(|(name, is_on)| is_on.then_some(name))
    .collect();
    let peers: Vec<Value> = snapshot.others.iter().map(|row| peer(&row.info)).collect();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "node": cluster.me.node.as_str(),
        "boot": format!("{:x}", cluster.me.boot),
        "profile": if console.is_clustered { "cluster" } else { "single" },
        "development": console.is_development,
        "console": console.mode.name(),
        "durable": cluster.ports.bus.state().durable,
        "keys": api.gate.has_keys(),
        "startedMs": console.started_ms,
        "nowMs": crate::api::now_ms(),
        "features": features,
        "clients": {
            "ws": own.map(|info| addresses(info, Transport::Ws)).unwrap_or_default(),
            "tcp": own.map(|info| addresses(info, Transport::Tcp)).unwrap_or_default(),
        },
        "drainPlan": drain_plan(&api.drainer.forecast()),
        "nodes": 1 + peers.len(),
        "peers": peers,
        "stale": snapshot.stale,
    }))
}

fn drain_plan(plan: &Forecast) -> Value {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    json!({
        "clients": plan.clients,
        "perSecond": plan.per_second,
        "delayMs": ms(plan.delay),
        "slotsMs": ms(plan.slots),
        "expectedMs": ms(plan.expected),
        "deadlineMs": ms(plan.deadline),
        "raised": plan.is_raised,
    })
}

fn peer(info: &NodeInfo) -> Value {
    json!({
        "node": info.boot.node.as_str(),
        "boot": format!("{:x}", info.boot.boot),
        "version": info.description.version,
        // Another node's word for it: only what is a console by its form may become a link or a part of a command.
        "admin": forward::address(&info.description.console).map_or("", |_| &info.description.console),
        "ws": addresses(info, Transport::Ws),
        "tcp": addresses(info, Transport::Tcp),
    })
}

/// Returns the addresses at which clients reach a node by this transport.
fn addresses(info: &NodeInfo, transport: Transport) -> Vec<String> {
    info.client_addresses.iter().filter_map(|address| address_for(address, Some(transport))).collect()
}

/// Returns the WebSocket addresses of all live nodes. Only a node for development has any, because elsewhere the page
/// has no token to connect with.
pub(super) fn sockets_of_all(api: &Api) -> Vec<String> {
    if !api.console.is_development {
        return Vec::new();
    }
    let snapshot = api.cluster.peers.snapshot();
    let own = snapshot.rows.iter().filter(|row| row.info.boot == api.cluster.me);
    let all = own.chain(snapshot.others.iter());
    all.flat_map(|row| addresses(&row.info, Transport::Ws)).collect()
}
