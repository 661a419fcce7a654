//! Admin API of bans and of networks that are never banned.

use axum::{
    Extension, Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::Code;

use super::{
    entries::{
        BanListQuery, RecordToPut, bad, bad_id, bans_of, key, page_of, page_request, put, removed, view,
    },
    evidence::evidence_of,
    suspensions::suspensions_of,
};
use crate::{
    api::{
        Api, Problem,
        access::Caller,
        extract::{IdPath, JsonObject},
    },
    bans::{BanKind, BanSubject},
    networks::Network,
    store::GuardKind,
};

/// Shortest and longest time of a ban that has an end: 30 s, and about 10 years. A node that could not read the store for
/// 10 s reads all bans again, so it does not miss that a ban was shortened.
const TTL_MS_MIN: u64 = 30_000;
const TTL_MS_MAX: u64 = 315_360_000_000;

/// Shortest prefixes of banned networks that need no confirmation.
const WIDE_V4: u8 = 16;
const WIDE_V6: u8 = 32;

/// Body of a ban.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct BanRequest {
    subject: String,
    reason: String,
    ttl_ms: Option<u64>,
    /// Whether a network may be a large part of the internet.
    #[serde(default)]
    wide: bool,
}

/// Body of an allowed network.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct AllowRequest {
    reason: String,
    ttl_ms: Option<u64>,
}

/// Lists bans in force on this node.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    query: Result<Query<BanListQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(page(&api, BanKind::Ban, "bans", query)?))
}

/// Lists networks that are never banned.
pub(in crate::api) async fn list_allowed(
    State(api): State<Api>,
    query: Result<Query<BanListQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(page(&api, BanKind::Allow, "allowed", query)?))
}

fn page(
    api: &Api,
    kind: BanKind,
    name: &str,
    query: Result<Query<BanListQuery>, QueryRejection>,
) -> Result<Value, Problem> {
    let (after, limit) = page_request(query)?;
    Ok(page_of(name, api.cluster.bans.list(kind, after.as_ref(), limit + 1), limit))
}

/// Bans a network, a user or a device on all nodes, and closes its connections.
pub(in crate::api) async fn ban(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    JsonObject(request): JsonObject<BanRequest>,
) -> Result<Json<Value>, Problem> {
    let BanRequest { subject: text, reason, ttl_ms, wide } = request;
    let subject = text.parse::<BanSubject>().map_err(bad_id)?;
    if let BanSubject::Network(network) = &subject {
        check_network(&text, network, wide)?;
    }
    if let Some(why) = exemption(&api, &subject) {
        return Err(bad(format!("{subject} is never banned: {why}")));
    }
    put_ban(&api, &caller, BanKind::Ban, subject, reason, ttl_ms).await
}

/// Checks that a network is what its author means: one typed character decides about millions of addresses.
fn check_network(text: &str, network: &Network, wide: bool) -> Result<(), Problem> {
    let written = text.strip_prefix("network:").and_then(|it| it.parse::<Network>().ok());
    if written.is_some_and(|it| it != *network) {
        return Err(bad(format!("{text} is an address within {network}: write the network, or /32 or /128")));
    }
    let narrow = if network.address().is_ipv4() { WIDE_V4 } else { WIDE_V6 };
    if network.prefix() < narrow && !wide {
        return Err(bad(format!(
            "{network} is very large: narrow it to /{narrow}, or confirm it with \"wide\": true"
        )));
    }
    Ok(())
}

/// Lifts a ban.
pub(in crate::api) async fn lift(
    State(api): State<Api>,
    IdPath(subject): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    remove(&api, BanKind::Ban, subject.parse().map_err(bad_id)?).await
}

/// Returns an allowed network.
pub(in crate::api) async fn show_allowed(
    State(api): State<Api>,
    IdPath(network): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let subject = allowed(&network)?;
    let found = api.cluster.bans.get(BanKind::Allow, &subject);
    let found =
        found.ok_or_else(|| Problem(Code::NotFound, format!("{network} is not in the allow-list")))?;
    Ok(Json(view(&subject, &found)))
}

/// Makes a network one that is never banned.
pub(in crate::api) async fn allow(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(network): IdPath<String>,
    JsonObject(request): JsonObject<AllowRequest>,
) -> Result<Json<Value>, Problem> {
    let AllowRequest { reason, ttl_ms } = request;
    put_ban(&api, &caller, BanKind::Allow, allowed(&network)?, reason, ttl_ms).await
}

/// Removes a network from the allow-list.
pub(in crate::api) async fn disallow(
    State(api): State<Api>,
    IdPath(network): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    remove(&api, BanKind::Allow, allowed(&network)?).await
}

/// Returns all that this node knows of a subject: the bans that concern it, and whether it is exempt.
pub(in crate::api) async fn subject(
    State(api): State<Api>,
    IdPath(subject): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let subject = subject.parse::<BanSubject>().map_err(bad_id)?;
    let bans = bans_of(&api, &subject);
    let exempt = exemption(&api, &subject);
    Ok(Json(json!({
        "subject": subject.to_string(),
        "kind": subject.kind(),
        "banned": !bans.is_empty() && exempt.is_none(),
        "bans": bans,
        "exempt": exempt,
        "suspensions": suspensions_of(&api, &subject),
        "evidence": evidence_of(&api, &subject),
    })))
}

/// Returns why the subject is never banned; `None` if it may be, or a part of it.
fn exemption(api: &Api, subject: &BanSubject) -> Option<String> {
    let BanSubject::Network(network) = subject else { return None };
    if let Some(by) = api.cluster.bans.allowed_by(network) {
        return Some(format!("{by} is in the allow-list (DELETE /v1/allow/{{network}})"));
    }
    let is_exempt = api.cluster.bans.is_exempt_network(network);
    is_exempt
        .then(|| "it is this machine, a proxy of listen.proxies or listen.forwarders, or a node".to_owned())
}

async fn put_ban(
    api: &Api,
    caller: &Caller,
    kind: BanKind,
    subject: BanSubject,
    reason: String,
    ttl_ms: Option<u64>,
) -> Result<Json<Value>, Problem> {
    let (key, ttls) = (key(guard_kind(kind), &subject)?, TTL_MS_MIN..=TTL_MS_MAX);
    put(api, caller, &subject, RecordToPut { key, reason, ttl_ms, ttls }).await
}

async fn remove(api: &Api, kind: BanKind, subject: BanSubject) -> Result<Json<Value>, Problem> {
    let key = key(guard_kind(kind), &subject)?;
    let removed = removed(api, &key, &subject).await?;
    if kind == BanKind::Ban {
        // What has led to a ban that an operator lifts leads to no longer one.
        api.cluster.evidence.lift(&subject);
    }
    Ok(removed)
}

const fn guard_kind(kind: BanKind) -> GuardKind {
    match kind {
        BanKind::Ban => GuardKind::Ban,
        BanKind::Allow => GuardKind::Allow,
    }
}

/// Parses an allowed network, which has any prefix that a banned one may have.
fn allowed(text: &str) -> Result<BanSubject, Problem> {
    text.parse::<Network>().and_then(BanSubject::network).map_err(bad_id)
}
