//! Admin API of block lists: users that may not write to another one directly. Bans are in a module of their own.

use axum::{
    Json,
    extract::{Query, State},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::UserId};

pub(super) mod apisix;
pub(super) mod bans;
pub(super) mod entries;
pub(super) mod evidence;
pub(super) mod suspensions;

use super::{Api, Problem, extract::IdPath, now_ms};
use crate::store::{BlockOutcome, StoreError};

/// Entries of a page, and the most that a request may ask for.
const LIMIT: usize = 50;
const LIMIT_MAX: usize = 1_000;

/// Most users on one block list.
const BLOCKS_PER_USER_MAX: u64 = 10_000;

/// Part of a list that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlocksQuery {
    cursor: Option<String>,
    limit: Option<usize>,
}

fn user(text: &str) -> Result<UserId, Problem> {
    UserId::addressable(text).map_err(|error| Problem(Code::BadId, format!("user: {error}")))
}

fn unavailable(error: StoreError) -> Problem {
    let code = if matches!(error, StoreError::Unknown(_)) { Code::Unknown } else { Code::StoreUnavailable };
    Problem(code, error.to_string())
}

/// Returns a part of the block list of a user.
pub(super) async fn list(
    State(api): State<Api>,
    IdPath(of): IdPath<String>,
    query: Result<Query<BlocksQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let bad = |why: String| Problem(Code::BadContent, why);
    let Query(BlocksQuery { cursor, limit }) = query.map_err(|error| bad(error.body_text()))?;
    let limit = limit.unwrap_or(LIMIT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(bad(format!("limit: 1 to {LIMIT_MAX}")));
    }
    let of = user(&of)?;
    let after = cursor.map(|cursor| UserId::new(&cursor)).transpose();
    let after = after.map_err(|_| bad("cursor: take it from the last page".to_owned()))?;
    let mut found =
        api.cluster.ports.store.blocks(&of, after.as_ref(), limit + 1).await.map_err(unavailable)?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let blocks: Vec<Value> =
        found.iter().map(|it| json!({"user": it.other.as_str(), "time": it.time})).collect();
    let mut body = json!({"user": of.as_str(), "blocks": blocks});
    if let (true, Some(last), Some(body)) = (has_more, found.last(), body.as_object_mut()) {
        body.insert("next".into(), json!(last.other.as_str()));
    }
    Ok(Json(body))
}

/// Returns whether a user blocks another one.
pub(super) async fn show(
    State(api): State<Api>,
    IdPath((of, other)): IdPath<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let (of, other) = (user(&of)?, user(&other)?);
    let is_blocked = api.cluster.ports.store.is_blocked(&of, &other).await.map_err(unavailable)?;
    Ok(Json(json!({"user": of.as_str(), "other": other.as_str(), "blocked": is_blocked})))
}

/// Blocks a user.
pub(super) async fn block(
    State(api): State<Api>,
    IdPath((of, other)): IdPath<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let (of, other) = (user(&of)?, user(&other)?);
    if of == other {
        return Err(Problem(Code::BadContent, "users can't block themselves".into()));
    }
    let outcome = api.cluster.ports.store.block(&of, &other, now_ms(), BLOCKS_PER_USER_MAX).await;
    let outcome = outcome.map_err(unavailable)?;
    changed(&api, &of, &other, true, outcome).await
}

/// Ends a block.
pub(super) async fn unblock(
    State(api): State<Api>,
    IdPath((of, other)): IdPath<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let (of, other) = (user(&of)?, user(&other)?);
    let outcome = api.cluster.ports.store.unblock(&of, &other).await.map_err(unavailable)?;
    changed(&api, &of, &other, false, outcome).await
}

/// Puts the change in force on the nodes. Also if nothing changed: a repeated request may be one whose first answer was
/// lost, on another node.
async fn changed(
    api: &Api,
    of: &UserId,
    other: &UserId,
    is_blocked: bool,
    outcome: BlockOutcome,
) -> Result<Json<Value>, Problem> {
    if outcome == BlockOutcome::Full {
        return Err(Problem(Code::TooManyBlocks, String::new()));
    }
    let pending = api.cluster.publish_block(of, other, is_blocked).await;
    Ok(Json(json!({
        "user": of.as_str(),
        "other": other.as_str(),
        "blocked": is_blocked,
        "changed": outcome != BlockOutcome::Unchanged,
        "pending": pending,
    })))
}
