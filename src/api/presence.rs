//! Admin API of presence: the connected devices of users, from the routes of nodes with a live lease.

use std::collections::HashSet;

use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
};

pub(super) mod connections;
pub(super) mod person;
pub(super) mod prio;
pub(super) mod rooms;

use super::{
    Api, Problem,
    extract::{IdPath, JsonObject},
};
use crate::routes::{Lease, NodeBoot, RoutesError, Token};

/// Most users in one request.
const USERS_MAX: usize = 1_000;

/// Body of a request for many users.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PresenceQuery {
    users: Vec<String>,
}

/// Returns the presence of one user.
pub(super) async fn of_user(
    State(api): State<Api>,
    IdPath(user): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let found = lookup(&api, std::slice::from_ref(&user)).await?;
    Ok(Json(found.into_iter().next().unwrap_or_default()))
}

/// Returns the presence of many users, in the order of the request.
pub(super) async fn of_users(
    State(api): State<Api>,
    JsonObject(PresenceQuery { users }): JsonObject<PresenceQuery>,
) -> Result<Json<Value>, Problem> {
    if users.len() > USERS_MAX {
        return Err(Problem(Code::BadContent, format!("at most {USERS_MAX} users per request")));
    }
    Ok(Json(json!({"users": lookup(&api, &users).await?})))
}

async fn lookup(api: &Api, users: &[String]) -> Result<Vec<Value>, Problem> {
    let ids: Result<Vec<UserId>, _> = users.iter().map(|user| UserId::addressable(user)).collect();
    let ids = ids.map_err(|error| Problem(Code::BadId, format!("user: {error}")))?;
    let unavailable = |error: RoutesError| Problem(Code::Overloaded, error.to_string());
    let routes = &api.cluster.ports.routes;
    let rows = routes.lookup(&ids).await.map_err(unavailable)?;
    // Fetched now: routes left by a dead node must not count, and those of a new node must.
    let nodes = routes.nodes().await.map_err(unavailable)?;
    let live = nodes.into_iter().filter(|row| row.lease == Lease::Live).map(|row| row.info.boot);
    let live: HashSet<NodeBoot> = live.collect();
    Ok(ids.iter().zip(rows).map(|(user, rows)| presence(user, rows, &live)).collect())
}

fn presence(user: &UserId, rows: Vec<(DeviceId, Token)>, live: &HashSet<NodeBoot>) -> Value {
    let devices: Vec<Value> = rows
        .into_iter()
        .filter(|(_, token)| live.contains(&token.at))
        .map(|(device, token)| json!({"device": device.as_str(), "node": token.at.node.as_str()}))
        .collect();
    json!({"user": user.as_str(), "online": !devices.is_empty(), "devices": devices})
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::NodeId;

    use super::*;

    #[test]
    fn device_on_a_node_without_a_live_lease_is_offline() {
        let at = |node: &str, boot| NodeBoot { node: NodeId::new(node).unwrap(), boot };
        let row = |device: &str, at: NodeBoot| (DeviceId::new(device).unwrap(), Token { at, epoch: 1 });
        let (bob, live) = (UserId::new("bob").unwrap(), HashSet::from([at("n1", 7)]));
        let shown = presence(&bob, vec![row("phone", at("n1", 7)), row("desk", at("n2", 1))], &live);
        let phone = json!([{"device": "phone", "node": "n1"}]);
        assert_eq!(shown, json!({"user": "bob", "online": true, "devices": phone}));
        let shown = presence(&bob, vec![row("phone", at("n1", 6))], &live);
        assert_eq!(shown, json!({"user": "bob", "online": false, "devices": []}), "another run of the node");
    }
}
