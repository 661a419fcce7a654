//! Admin API of presence: the connected devices of users, from the routes of nodes with a live lease.

use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
};

pub(super) mod closed_rooms;
pub(super) mod connections;
pub(super) mod person;
pub(super) mod prio;
pub(super) mod rooms;

use super::{
    Api, Problem,
    extract::{IdPath, JsonObject},
};
use crate::{presence::connected_devices, routes::Token};

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
    let found = connected_devices(&*api.cluster.ports.routes, &ids).await;
    let found = found.map_err(|error| Problem(Code::Overloaded, error.to_string()))?;
    Ok(ids.iter().zip(found.of_users).map(|(user, devices)| presence(user, devices)).collect())
}

fn presence(user: &UserId, devices: Vec<(DeviceId, Token)>) -> Value {
    let device = |(device, token): &(DeviceId, Token)| json!({"device": device.as_str(), "node": token.at.node.as_str()});
    let devices: Vec<Value> = devices.iter().map(device).collect();
    json!({"user": user.as_str(), "online": !devices.is_empty(), "devices": devices})
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::NodeId;

    use super::*;
    use crate::routes::NodeBoot;

    #[test]
    fn user_is_online_with_a_connected_device() {
        let at = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 7 };
        let phone = (DeviceId::new("phone").unwrap(), Token { at, epoch: 1 });
        let bob = UserId::new("bob").unwrap();
        let shown = json!([{"device": "phone", "node": "n1"}]);
        assert_eq!(presence(&bob, vec![phone]), json!({"user": "bob", "online": true, "devices": shown}));
        assert_eq!(presence(&bob, vec![]), json!({"user": "bob", "online": false, "devices": []}));
    }
}
