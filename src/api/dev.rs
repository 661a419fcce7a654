//! Admin API for development: tokens, cut connections and crashes, so that the console can show that none of them loses
//! a message. A node that is not for development has no key here, and refuses all of it.

use std::{process, sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::State,
    http::{StatusCode, header::CACHE_CONTROL},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
};

use super::{Api, Problem, caller::Ends, extract::JsonObject, refusal};
use crate::{auth, broker::ConnectionCutter};

pub(in crate::api) mod forward;

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

/// Refusal of a development request, with a cure of its own if it has one.
pub(super) enum DevRefusal {
    /// Refusal with the cure of its code.
    Problem(Problem),
    /// Status, code, message and cure.
    Cured(StatusCode, Code, &'static str, &'static str),
}

/// Refusal of a node that is for something else than development.
pub(super) const NOT_FOR_DEVELOPMENT: DevRefusal = DevRefusal::Cured(
    StatusCode::FORBIDDEN,
    Code::Forbidden,
    "the node is not for development",
    "Use a node for development: listen.client on loopback, and admin.development = `yes`.",
);

/// Refusal of a caller that could not read the node's key.
const OTHER_ACCOUNT: DevRefusal = DevRefusal::Cured(
    StatusCode::FORBIDDEN,
    Code::Forbidden,
    "only the account that runs the node, or root, may do that",
    "Call from that account. Tokens: `tidegate token` asks it for the key's file in the same way.",
);

/// Refusal of a node that no `tidegate up` started.
const NOT_FOR_CRASHES: DevRefusal = DevRefusal::Cured(
    StatusCode::FORBIDDEN,
    Code::Forbidden,
    "only a node that `tidegate up` started can be crashed by its console",
    "Start a cluster for development with `tidegate up`, or kill the process.",
);

impl From<Problem> for DevRefusal {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl IntoResponse for DevRefusal {
    fn into_response(self) -> Response {
        match self {
            Self::Problem(problem) => problem.into_response(),
            Self::Cured(status, code, message, cure) => refusal(status, code, message, cure).into_response(),
        }
    }
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
    ends: Option<Extension<Ends>>,
    wish: Result<JsonObject<TokenWish>, Problem>,
) -> Result<Response, DevRefusal> {
    let tools = tools(&api)?;
    own_account(ends)?;
    let JsonObject(TokenWish { user, device, ttl_ms }) = wish?;
    let (user, device) = ids(&user, device.as_deref())?;
    if api.messages.is_system(&user) {
        let why = "this user is reserved for messages of the admin API (api.system_user)";
        return Err(Problem(Code::Forbidden, why.into()).into());
    }
    let ttl_ms = ttl_ms.unwrap_or(TTL_MAX_MS);
    if !(TTL_MIN_MS..=TTL_MAX_MS).contains(&ttl_ms) {
        let message = format!("ttlMs: between {TTL_MIN_MS} and {TTL_MAX_MS}");
        return Err(Problem(Code::BadContent, message).into());
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
    ends: Option<Extension<Ends>>,
    wish: Result<JsonObject<CutWish>, Problem>,
) -> Result<Json<Value>, DevRefusal> {
    let tools = tools(&api)?;
    own_account(ends)?;
    let JsonObject(CutWish { user, device }) = wish?;
    let (user, device) = ids(&user, device.as_deref())?;
    let cut = tokio::time::timeout(CUT_TIMEOUT, tools.cutter.cut(&user, device.as_ref())).await;
    let late = "the shards are busy; some connections may be cut later";
    let cut = cut.map_err(|_| Problem(Code::Busy, late.into()))?;
    let device = device.as_ref().map(DeviceId::as_str);
    let node = api.cluster.me.node.as_str();
    Ok(Json(json!({"node": node, "user": user.as_str(), "device": device, "cut": cut})))
}

/// Ends the process at once, as a crash does. Only a node that `tidegate up` or `tidegate demo` started does so.
pub(super) async fn abort(State(api): State<Api>, ends: Option<Extension<Ends>>) -> DevRefusal {
    if let Err(refusal) = tools(&api).and_then(|_| own_account(ends)) {
        return refusal;
    }
    if api.console.may_abort {
        tracing::error!("aborting, as the console requested");
        process::abort();
    }
    NOT_FOR_CRASHES
}

/// Refuses a caller that runs under another account than this node.
pub(super) fn own_account(ends: Option<Extension<Ends>>) -> Result<(), DevRefusal> {
    match ends {
        Some(Extension(ends)) if ends.is_own_account() => Ok(()),
        _ => Err(OTHER_ACCOUNT),
    }
}

/// Returns the means of development, or the refusal of a node that is for something else.
pub(super) fn tools(api: &Api) -> Result<&Arc<DevTools>, DevRefusal> {
    api.dev.as_ref().ok_or(NOT_FOR_DEVELOPMENT)
}

fn ids(user: &str, device: Option<&str>) -> Result<(UserId, Option<DeviceId>), Problem> {
    let bad = |name: &str, error: &dyn std::fmt::Display| Problem(Code::BadId, format!("{name}: {error}"));
    let user = UserId::addressable(user).map_err(|error| bad("user", &error))?;
    let device = device.map(DeviceId::addressable).transpose().map_err(|error| bad("device", &error))?;
    Ok((user, device))
}
