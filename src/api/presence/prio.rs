//! Admin API of the priorities of users in live rooms.

use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::UserId};

use crate::{
    api::{
        Api, Problem,
        blocks::entries::{TTLS_MS, bad, end_of, put_value, remove_record, with_change},
        extract::{IdPath, JsonObject},
    },
    cluster::{GuardChange, PriorityHandler},
    priorities::CLASS_MAX,
    store::{GuardKey, GuardKind, GuardOutcome},
};

/// Body of a change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct PriorityRequest {
    prio: u8,
    ttl_ms: Option<u64>,
}

/// Returns the priority that is set for a user.
pub(in crate::api) async fn show(
    State(api): State<Api>,
    IdPath(user): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let id = parse(&user)?;
    let set = api.cluster.priorities.get(&id);
    let set = set.ok_or_else(|| Problem(Code::NotFound, format!("no priority is set for {id}")))?;
    Ok(Json(json!({"user": id.as_str(), "prio": set.class, "untilMs": set.until_ms})))
}

/// Sets the priority of a user on all nodes, over that of its tokens.
pub(in crate::api) async fn set(
    State(api): State<Api>,
    IdPath(user): IdPath<String>,
    JsonObject(request): JsonObject<PriorityRequest>,
) -> Result<Json<Value>, Problem> {
    let (id, PriorityRequest { prio, ttl_ms }) = (parse(&user)?, request);
    if prio > CLASS_MAX {
        return Err(bad(format!("prio: 0 to {CLASS_MAX}")));
    }
    let until_ms = end_of(ttl_ms, &TTLS_MS, api.cluster.guard.now_ms())?;
    let change = put_value(&api, key(&id)?, PriorityHandler::encode(prio), until_ms).await?;
    if let GuardOutcome::Full(_) = change.outcome {
        return Err(Problem(Code::Conflict, "the store has the maximum number of priorities".to_owned()));
    }
    let body = json!({"user": id.as_str(), "prio": prio, "untilMs": until_ms});
    Ok(Json(with_change(body, &change)))
}

/// Removes the priority of a user: that of its tokens is in force again.
pub(in crate::api) async fn remove(
    State(api): State<Api>,
    IdPath(user): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let id = parse(&user)?;
    let change = remove_of(&api, &id).await?;
    let is_removed = matches!(change.outcome, GuardOutcome::Stored(_));
    Ok(Json(with_change(json!({"user": id.as_str(), "removed": is_removed}), &change)))
}

/// Removes the priority of a user, if there is one.
pub(in crate::api) async fn remove_of(api: &Api, user: &UserId) -> Result<GuardChange, Problem> {
    remove_record(api, &key(user)?).await
}

fn key(user: &UserId) -> Result<GuardKey, Problem> {
    GuardKey::new(GuardKind::Priority, user.as_str()).map_err(|error| bad(error.to_string()))
}

fn parse(user: &str) -> Result<UserId, Problem> {
    UserId::addressable(user).map_err(|error| Problem(Code::BadId, format!("user: {error}")))
}
