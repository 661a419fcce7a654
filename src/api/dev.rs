//! Admin API for development: tokens, cut connections and crashes, so that the console can show that none of them loses
//! a message. A node that is not for development has no key here, and refuses all of it.

use std::{process, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{State, rejection::JsonRejection},
    http::{StatusCode, header::CACHE_CONTROL},
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::json;
use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
};

use super::{Api, Problem, bad_body, refusal};
use crate::{auth, broker::ConnectionCutter};

/// Longest lifetime of a token, and the default, in ms.
const TTL_MAX_MS: u64 = 3_600_000;

/// Shortest lifetime of a token, in ms.
const TTL_MIN_MS: u64 = 1_000;

/// Longest wait for the shards to cut connections.
const CUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Means of a node for development.
pub struct DevTools {
    /// Key that tokens are signed with.
    pub token_key: Vec<u8>,
    /// Cutter of connections.
    pub cutter: ConnectionCutter,
}

/// Request for a token.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct TokenWish {
    user: String,
    device: Option<String>,
    ttl_ms: Option<u64>,
}

/// Request to cut connections.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CutWish {
    user: String,
    device: Option<String>,
}

/// Creates a token that expires within an hour.
pub(super) async fn token(
    State(api): State<Api>,
    wish: Result<Json<TokenWish>, JsonRejection>,
) -> Result<Response, Response> {
    let tools = tools(&api)?;
    let Json(TokenWish { user, device, ttl_ms }) = wish.map_err(|error| bad_body(error).into_response())?;
    let (user, device) = ids(&user, device.as_deref())?;
    let ttl_ms = ttl_ms.unwrap_or(TTL_MAX_MS);
    if !(TTL_MIN_MS..=TTL_MAX_MS).contains(&ttl_ms) {
        let message = format!("ttlMs: between {TTL_MIN_MS} and {TTL_MAX_MS}");
        return Err(Problem(Code::BadContent, message).into_response());
    }
    let device = device.as_ref().map(DeviceId::as_str);
    let token = auth::sign(&tools.token_key, user.as_str(), device, Duration::from_millis(ttl_ms));
    let body = json!({
        "user": user.as_str(),
        "device": device,
        "token": token,
        "expiresMs": super::now_ms() + ttl_ms,
    });
    Ok(([(CACHE_CONTROL, "no-store")], Json(body)).into_response())
}

/// Resets the sockets of a user's device on this node, or of all its devices.
pub(super) async fn cut(
    State(api): State<Api>,
    wish: Result<Json<CutWish>, JsonRejection>,
) -> Result<Response, Response> {
    let tools = tools(&api)?;
    let Json(CutWish { user, device }) = wish.map_err(|error| bad_body(error).into_response())?;
    let (user, device) = ids(&user, device.as_deref())?;
    let cut = tokio::time::timeout(CUT_TIMEOUT, tools.cutter.cut(&user, device.as_ref())).await;
    let late = |_| Problem(Code::Busy, "the shards are busy; some connections may be cut later".into());
    let cut = cut.map_err(|elapsed| late(elapsed).into_response())?;
    let device = device.as_ref().map(DeviceId::as_str);
    let node = api.cluster.me.node.as_str();
    Ok(Json(json!({"node": node, "user": user.as_str(), "device": device, "cut": cut})).into_response())
}

/// Ends the process at once, as a crash does. Only a node that `tidegate up` started does so.
pub(super) async fn abort(State(api): State<Api>) -> Result<Response, Response> {
    tools(&api)?;
    if api.console.may_abort {
        tracing::error!("aborting, as the console requested");
        process::abort();
    }
    let cure = "Start a cluster for development with `tidegate up`, or kill the process.";
    let message = "only a node that `tidegate up` started can be crashed by its console";
    Err(refusal(StatusCode::FORBIDDEN, Code::Forbidden, message, cure).into_response())
}

/// Returns the means of development, or the refusal of a node that is for something else.
pub(super) fn tools(api: &Api) -> Result<&Arc<DevTools>, Response> {
    api.dev.as_ref().ok_or_else(not_for_development)
}

/// Returns the refusal of a node that is for something else than development.
pub(super) fn not_for_development() -> Response {
    let cure = "Use a node for development: listen.client on loopback, and admin.development = `yes`.";
    refusal(StatusCode::FORBIDDEN, Code::Forbidden, "the node is not for development", cure).into_response()
}

fn ids(user: &str, device: Option<&str>) -> Result<(UserId, Option<DeviceId>), Response> {
    let bad = |name: &str, error: &dyn std::fmt::Display| {
        Problem(Code::BadId, format!("{name}: {error}")).into_response()
    };
    let user = UserId::new(user).map_err(|error| bad("user", &error))?;
    let device = device.map(DeviceId::new).transpose().map_err(|error| bad("device", &error))?;
    Ok((user, device))
}
