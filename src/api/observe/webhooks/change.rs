//! Changes of endpoints.

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::Code;

use super::{
    Found, existing, key, missing, stored, unavailable,
    view::{origin, outcome, shown},
};
use crate::{
    api::{
        Api, Problem,
        access::{Caller, RouteNeed},
        extract::{IdPath, JsonObject, expected_version, tagged},
        refusal,
    },
    keys::Scope,
    store::{GUARD_VALUE_BYTES_MAX, GuardBatch, GuardEntry, GuardKey, GuardOutcome, GuardPut, InvalidGuard},
    webhooks::{
        ENDPOINTS_MAX, EndpointForm, EndpointProgress, StartForm, StoredAction, StoredEndpoint, WebhookStart,
        send_test,
    },
};

/// Most bytes of a definition: the rest of the entry is for orders.
const DEFINITION_BYTES_MAX: usize = GUARD_VALUE_BYTES_MAX - 1_024;

/// Tries of a change whose endpoint another caller changes at the same time.
const TRIES: usize = 3;

/// Body of a replay.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ReplayRequest {
    from: StartForm,
}

/// Endpoint after a change.
pub(super) struct Changed<T> {
    pub(super) found: Found,
    /// Nodes that have not confirmed the change.
    pub(super) pending: Vec<String>,
    /// Result of the change.
    pub(super) value: T,
}

/// Creates or replaces an endpoint. Its secrets, its cursors and, unless the request names some, its headers stay.
pub(in crate::api) async fn put(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
    headers: HeaderMap,
    JsonObject(form): JsonObject<EndpointForm>,
) -> Result<Response, Problem> {
    let (key, expected) = (key(&id)?, expected_version(&headers)?);
    if form.content
        && let Err(refused) = caller.require(RouteNeed::Scope(Scope::Content))
    {
        return Ok(refused.response());
    }
    if !api.cluster.ports.store.has_feed() {
        let why = "webhooks need the feed, which events.feed = false has switched off";
        return Err(Problem(Code::Unsupported, why.to_owned()));
    }
    match expected {
        None | Some(0) => {}
        Some(version) => return replace(&api, &id, Some(version), form).await,
    }
    // Positions before the endpoint is stored: it starts with all that is accepted after the answer.
    let positions = api.cluster.ports.store.feed_positions().await.map_err(unavailable)?;
    let endpoint = StoredEndpoint::new(form.clone(), &positions, api.cluster.guard.now_ms());
    check(&api, &id, &endpoint)?;
    api.cluster.read_guard().await.map_err(unavailable)?;
    let others = api.webhooks.endpoints().iter().filter(|(other, _)| *other != id).count();
    if others >= ENDPOINTS_MAX {
        let message = format!("there are {ENDPOINTS_MAX} webhooks, which is the maximum");
        return Ok(
            refusal(StatusCode::CONFLICT, Code::Conflict, &message, "Remove one first.").into_response()
        );
    }
    match store(&api, &key, endpoint, Some(0), ()).await? {
        Ok(changed) => {
            let mut shown = shown(&api, &id, &changed.found).await?;
            shown["secrets"] = json!(changed.found.stored.secrets);
            shown["pending"] = json!(changed.pending);
            let response = (StatusCode::CREATED, Json(shown)).into_response();
            Ok(tagged(response, Some(changed.found.version)))
        }
        Err(_) if expected.is_none() => replace(&api, &id, None, form).await,
        Err(version) => Ok(conflict(&id, version)),
    }
}

/// Replaces the definition of an endpoint.
async fn replace(
    api: &Api,
    id: &str,
    expected: Option<u64>,
    form: EndpointForm,
) -> Result<Response, Problem> {
    let replaced = change(api, id, expected, |endpoint| {
        let kept = endpoint.form.headers.take().filter(|headers| !headers.is_empty());
        if form.headers.is_none() && kept.is_some() && origin(&form.url) != origin(&endpoint.form.url) {
            let why = "headers: name them, because the URL is that of another server; the stored ones stay with theirs";
            return Err(Problem(Code::BadContent, why.to_owned()));
        }
        let headers = form.headers.clone().or(kept);
        // The start counts when the endpoint is created.
        let form = EndpointForm { headers, from: endpoint.form.from, ..form.clone() };
        endpoint.replace_form(form, api.cluster.guard.now_ms());
        Ok(())
    });
    respond(api, id, replaced.await?).await
}

/// Changes a stored endpoint. Without an expected version it is tried again if another caller was faster.
///
/// # Errors
/// There is no such endpoint, the change can't be made, or the store did not take it. The inner error is a conflict.
pub(super) async fn change<T>(
    api: &Api,
    id: &str,
    expected: Option<u64>,
    edit: impl Fn(&mut StoredEndpoint) -> Result<T, Problem>,
) -> Result<Result<Changed<T>, Response>, Problem> {
    let key = key(id)?;
    let mut version = 0;
    for _ in 0..TRIES {
        let Found { mut stored, version: found } = stored(api, &key).await?.ok_or_else(|| missing(id))?;
        version = found;
        if expected.is_some_and(|expected| expected != version) {
            break;
        }
        let value = edit(&mut stored)?;
        check(api, id, &stored)?;
        match store(api, &key, stored, Some(version), value).await? {
            Ok(changed) => return Ok(Ok(changed)),
            Err(other) => version = other,
        }
    }
    Ok(Err(conflict(id, version)))
}

/// Stores an endpoint, if the stored one has the expected version.
async fn store<T>(
    api: &Api,
    key: &GuardKey,
    endpoint: StoredEndpoint,
    expected: Option<u64>,
    value: T,
) -> Result<Result<Changed<T>, u64>, Problem> {
    let encoded = endpoint.encode();
    if encoded.len() > GUARD_VALUE_BYTES_MAX {
        return Err(Problem(Code::Busy, "too many orders wait for the owners of partitions".to_owned()));
    }
    let entry = GuardEntry::new(key.clone(), encoded.into(), None).map_err(internal)?;
    let batch = GuardBatch::from(GuardPut { entry, expected });
    let done = api.cluster.put_guard(&batch).await.map_err(unavailable)?;
    let version = match done.outcome {
        GuardOutcome::Stored(version) => version,
        GuardOutcome::Conflict(_, version) => return Ok(Err(version)),
        GuardOutcome::Full(_) => {
            return Err(Problem(
                Code::Busy,
                "webhooks were removed a moment ago; try again later".to_owned(),
            ));
        }
        GuardOutcome::Unchanged => 0,
    };
    let found = Found { stored: endpoint, version };
    Ok(Ok(Changed { found, pending: done.pending, value }))
}

/// Checks that a definition can be used, and that it leaves room for orders and a second secret.
fn check(api: &Api, id: &str, endpoint: &StoredEndpoint) -> Result<(), Problem> {
    let bytes = StoredEndpoint { orders: Vec::new(), ..endpoint.clone() }.encode().len();
    if bytes > DEFINITION_BYTES_MAX {
        let why = format!(
            "an endpoint has at most {DEFINITION_BYTES_MAX} bytes as it is stored; name fewer conversations, users or headers"
        );
        return Err(Problem(Code::BadContent, why));
    }
    let plan = api.webhooks.plan_of(id, endpoint, api.cluster.guard.now_ms());
    plan.map(drop).map_err(|why| Problem(Code::BadContent, why))
}

fn internal(error: InvalidGuard) -> Problem {
    Problem(Code::Internal, error.to_string())
}

fn conflict(id: &str, version: u64) -> Response {
    let message = match version {
        0 => format!("there is no webhook `{id}`"),
        version => format!("the webhook `{id}` has version {version}"),
    };
    let cure = "Read it again, then repeat with its ETag.";
    refusal(StatusCode::CONFLICT, Code::Conflict, &message, cure).into_response()
}

/// Returns the response with a changed endpoint.
pub(super) async fn respond<T>(
    api: &Api,
    id: &str,
    changed: Result<Changed<T>, Response>,
) -> Result<Response, Problem> {
    let changed = match changed {
        Ok(changed) => changed,
        Err(response) => return Ok(response),
    };
    let mut shown = shown(api, id, &changed.found).await?;
    shown["pending"] = json!(changed.pending);
    Ok(tagged(Json(shown).into_response(), Some(changed.found.version)))
}

/// Removes an endpoint, and what is stored of its progress.
pub(in crate::api) async fn remove(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let expected = expected_version(&headers)?;
    let found = existing(&api, &id).await?;
    let removed = api.cluster.remove_guard(&key(&id)?, expected).await.map_err(unavailable)?;
    match removed.outcome {
        GuardOutcome::Unchanged => return Err(missing(&id)),
        GuardOutcome::Conflict(_, version) => return Ok(conflict(&id, version)),
        GuardOutcome::Stored(_) | GuardOutcome::Full(_) => {}
    }
    let consumers = [found.stored.consumer(&id), found.stored.notice_consumer(&id)];
    for consumer in consumers.into_iter().flatten() {
        // What can't be removed now is swept later.
        if let Err(error) = api.cluster.ports.store.forget_consumer(&consumer).await {
            tracing::warn!(%error, webhook = id, "cursors of a removed webhook stay for now");
        }
    }
    Ok(Json(json!({"id": id, "removed": true, "pending": removed.pending})).into_response())
}

/// Stops the deliveries of an endpoint until they are resumed.
pub(in crate::api) async fn pause(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
) -> Result<Response, Problem> {
    let paused = change(&api, &id, None, |endpoint| {
        endpoint.paused = true;
        Ok(())
    });
    respond(&api, &id, paused.await?).await
}

/// Goes on after a pause, and after the receiver had refused all events.
pub(in crate::api) async fn resume(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
) -> Result<Response, Problem> {
    let done = orders_done(&api, &id).await?;
    let resumed = change(&api, &id, None, |endpoint| {
        endpoint.paused = false;
        // A pause ends in any case; that it answered 410 is forgotten once the owners carry out what waits.
        endpoint.order(StoredAction::Resume, done);
        Ok(())
    });
    respond(&api, &id, resumed.await?).await
}

/// Delivers again from an earlier point of the feed, in all partitions.
pub(in crate::api) async fn replay(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    JsonObject(request): JsonObject<ReplayRequest>,
) -> Result<Response, Problem> {
    if request.from == StartForm::Now {
        let why = "from: \"oldest\" or {\"time\": ms since 1970}; to skip events, remove the webhook and create it again";
        return Err(Problem(Code::BadContent, why.to_owned()));
    }
    let store = &*api.cluster.ports.store;
    let found = existing(&api, &id).await?;
    let progress = EndpointProgress::read(store, &id, &found.stored).await.map_err(unavailable)?;
    if let StartForm::At(time) = request.from {
        let left_out = progress.left_out(store, &WebhookStart::At(time)).await.map_err(unavailable)?;
        if left_out > 0 {
            let message =
                format!("{left_out} events before that time have not been delivered, and would be left out");
            let cure = "Name an earlier time, or \"oldest\"; to leave events out, remove the webhook and create it again.";
            return Ok(refusal(StatusCode::CONFLICT, Code::Conflict, &message, cure).into_response());
        }
    }
    let done = progress.orders_done;
    let replayed =
        change(&api, &id, None, |endpoint| order(endpoint, StoredAction::Replay(request.from), done));
    let mut response = respond(&api, &id, replayed.await?).await?;
    if response.status() == StatusCode::OK {
        *response.status_mut() = StatusCode::ACCEPTED;
    }
    Ok(response)
}

/// Returns the order up to which all owners have carried out those of an endpoint.
pub(super) async fn orders_done(api: &Api, id: &str) -> Result<u64, Problem> {
    let found = existing(api, id).await?;
    let progress = EndpointProgress::read(&*api.cluster.ports.store, id, &found.stored).await;
    Ok(progress.map_err(unavailable)?.orders_done)
}

/// Adds an order to an endpoint.
pub(super) fn order(endpoint: &mut StoredEndpoint, action: StoredAction, done: u64) -> Result<(), Problem> {
    let why = "former orders have not been carried out in all partitions; repeat it when their owners have";
    endpoint.order(action, done).then_some(()).ok_or_else(|| Problem(Code::Busy, why.to_owned()))
}

/// Sends an event that says nothing, at once and once, and returns what came back.
pub(in crate::api) async fn test(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let found = existing(&api, &id).await?;
    let plan = api.webhooks.plan_of(&id, &found.stored, api.cluster.guard.now_ms());
    let plan = plan.map_err(|why| Problem(Code::BadContent, why))?;
    let reply = send_test(&plan).await;
    Ok(Json(outcome(&reply)))
}
