//! Admin API of suspensions: users and devices that may not send for a time.

use axum::{
    Extension, Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::Value;

use super::entries::{BanListQuery, RecordToPut, bad_id, key, page_of, page_request, put, removed, view};
use crate::{
    api::{
        Api, Problem,
        access::Caller,
        extract::{IdPath, JsonObject},
    },
    bans::BanSubject,
    store::GuardKind,
};

/// Shortest and longest time of a suspension that has an end: 1 s, and 30 days.
const TTL_MS_MIN: u64 = 1_000;
const TTL_MS_MAX: u64 = 2_592_000_000;

/// Body of a suspension.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct SuspensionRequest {
    subject: String,
    reason: String,
    ttl_ms: Option<u64>,
}

/// Lists suspensions in force on this node.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    query: Result<Query<BanListQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let (after, limit) = page_request(query)?;
    let now_ms = api.cluster.guard.now_ms();
    let found = api.cluster.suspensions.list(after.as_ref(), limit + 1, now_ms);
    Ok(Json(page_of("suspensions", found, limit)))
}

/// Suspends a user or a device on all nodes.
pub(in crate::api) async fn suspend(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    JsonObject(request): JsonObject<SuspensionRequest>,
) -> Result<Json<Value>, Problem> {
    let SuspensionRequest { subject, reason, ttl_ms } = request;
    let (subject, ttls) = (sender(&subject)?, TTL_MS_MIN..=TTL_MS_MAX);
    let key = key(GuardKind::Suspend, &subject)?;
    put(&api, &caller, &subject, RecordToPut { key, reason, ttl_ms, ttls }).await
}

/// Lifts a suspension.
pub(in crate::api) async fn lift(
    State(api): State<Api>,
    IdPath(subject): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let subject = sender(&subject)?;
    removed(&api, &key(GuardKind::Suspend, &subject)?, &subject).await
}

/// Returns the suspensions that concern a user or a device.
pub(in crate::api) fn suspensions_of(api: &Api, subject: &BanSubject) -> Vec<Value> {
    let found = api.cluster.suspensions.of(subject, api.cluster.guard.now_ms());
    found.iter().map(|(subject, entry)| view(subject, entry)).collect()
}

/// Parses the subject of a suspension.
fn sender(text: &str) -> Result<BanSubject, Problem> {
    match text.parse::<BanSubject>().map_err(bad_id)? {
        BanSubject::Network(_) => {
            Err(bad_id(format!("`{text}`: use user:<id> or device:<user>/<device>; networks are banned")))
        }
        subject => Ok(subject),
    }
}
