//! Endpoints as the admin API shows them: without secrets and values of headers.

use axum::{
    Extension, Json,
    extract::State,
    http::Uri,
    response::{IntoResponse as _, Response},
};
use serde_json::{Map, Value, json};
use tidegate_protocol::machine::webhook::{WebhookOutcome, WebhookState};

use super::{Found, existing, unavailable};
use crate::{
    api::{
        Api, Problem,
        access::{Caller, RouteNeed},
        extract::{IdPath, tagged},
    },
    clock::wall_ms,
    hooks::WebhookReply,
    keys::Scope,
    webhooks::{EndpointProgress, EndpointView, FeedGap, NoticeStatus, StoredEndpoint},
};

/// Most parked conversations that are shown.
const PARKED_SHOWN: usize = 100;

/// Stands for the value of a header.
const HIDDEN: &str = "***";

/// Returns all endpoints that this node knows.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Json<Value> {
    let all = api.webhooks.endpoints();
    let shown: Vec<Value> = all
        .iter()
        .map(|(id, view)| {
            let mut shown = definition(id, &view.stored, view.version);
            add_status(&api, Some(view), view.stored.paused, false, &mut shown);
            hide_path(&caller, &mut shown);
            Value::Object(shown)
        })
        .collect();
    Json(json!({"node": api.cluster.me.node.as_str(), "webhooks": shown}))
}

/// Returns one endpoint, with what it has taken in all partitions.
pub(in crate::api) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
) -> Result<Response, Problem> {
    let found = existing(&api, &id).await?;
    let version = found.version;
    let mut shown = shown(&api, &id, &found).await?;
    if let Some(shown) = shown.as_object_mut() {
        hide_path(&caller, shown);
    }
    Ok(tagged(Json(shown).into_response(), Some(version)))
}

/// Leaves only the server of the URL for callers that can't change endpoints: the path may have a secret.
fn hide_path(caller: &Caller, shown: &mut Map<String, Value>) {
    if caller.require(RouteNeed::Scope(Scope::Operate)).is_err() {
        let origin = shown.get("url").and_then(Value::as_str).and_then(origin);
        shown.insert("url".to_owned(), json!(origin.unwrap_or_default()));
    }
}

/// Returns the scheme, host and port of a URL.
pub(super) fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}

/// Returns what is shown of a stored endpoint.
pub(super) async fn shown(api: &Api, id: &str, found: &Found) -> Result<Value, Problem> {
    let store = &*api.cluster.ports.store;
    let progress = EndpointProgress::read(store, id, &found.stored).await.map_err(unavailable)?;
    let oldest = progress.oldest_ms(store).await.map_err(unavailable)?;
    let mut shown = definition(id, &found.stored, found.version);
    let view = api.webhooks.endpoint(id).filter(|it| it.stored.instance == found.stored.instance);
    add_status(api, view.as_ref(), found.stored.paused, progress.is_disabled, &mut shown);
    let parked = progress.parked.iter().take(PARKED_SHOWN);
    let parked: Vec<Value> = parked
        .map(|it| json!({"conversation": it.conversation.as_str(), "seq": it.next, "tries": it.tries}))
        .collect();
    let lag = oldest.map_or(0, |time| wall_ms().saturating_sub(time));
    shown.extend([
        ("behind".to_owned(), json!(progress.behind)),
        ("lagMs".to_owned(), json!(lag)),
        ("parked".to_owned(), json!(parked)),
        ("parkedCount".to_owned(), json!(progress.parked.len())),
        ("asideCount".to_owned(), json!(progress.aside.len())),
    ]);
    Ok(Value::Object(shown))
}

fn definition(id: &str, stored: &StoredEndpoint, version: u64) -> Map<String, Value> {
    let mut shown = match serde_json::to_value(&stored.form) {
        Ok(Value::Object(form)) => form,
        _ => Map::new(),
    };
    if let Some(Value::Object(headers)) = shown.get_mut("headers") {
        headers.values_mut().for_each(|value| *value = HIDDEN.into());
    }
    let secrets: Vec<Value> = stored
        .secrets
        .iter()
        .map(|it| json!({"id": it.id, "createdMs": it.created_ms, "endsMs": it.ends_ms}))
        .collect();
    shown.extend([
        ("id".to_owned(), json!(id)),
        ("version".to_owned(), json!(version)),
        ("createdMs".to_owned(), json!(stored.created_ms)),
        ("secrets".to_owned(), json!(secrets)),
    ]);
    shown
}

/// Adds the state: of the definition, of the cursors, and of the deliveries of this node.
fn add_status(
    api: &Api,
    view: Option<&EndpointView>,
    is_paused: bool,
    is_disabled: bool,
    shown: &mut Map<String, Value>,
) {
    let (state, error) = match view.map(|it| &it.status) {
        _ if is_paused => ("paused", None),
        _ if is_disabled => ("disabled", None),
        // The deliverer has not learned yet that it may go on.
        Some(Ok(status)) if status.state == WebhookState::Paused => ("starting", None),
        Some(Ok(status)) => (status.state_name(), status.last_error.clone()),
        Some(Err(why)) => ("unusable", Some(why.clone())),
        None => ("starting", None),
    };
    shown.insert("state".to_owned(), json!(state));
    shown.insert("error".to_owned(), json!(error));
    shown.insert("node".to_owned(), json!(api.cluster.me.node.as_str()));
    if let Some(EndpointView { status: Ok(status), .. }) = view
        && let Some(gap) = &status.missing.last
    {
        let FeedGap { partition, first, last, found_ms } = gap;
        let gap = json!({"partition": partition, "first": first, "last": last, "foundMs": found_ms});
        shown.insert("missing".to_owned(), json!({"count": status.missing.count, "last": gap}));
    }
    if let Some(view) = view.filter(|it| it.stored.form.waiting.is_some()) {
        shown.insert("notices".to_owned(), notices(&view.notices));
    }
}

/// Returns what is shown of the notices of an endpoint on this node.
fn notices(status: &NoticeStatus) -> Value {
    let aside = status
        .aside
        .iter()
        .map(|it| json!({"user": it.user.as_str(), "conversation": it.conversation.as_str(), "seq": it.seq}));
    json!({
        "waiting": status.waiting,
        "apart": status.apart,
        "unreadable": status.unreadable,
        "asideCount": status.aside_count,
        "aside": aside.collect::<Vec<_>>(),
        "error": status.last_error,
    })
}

/// Returns what came back from an endpoint.
pub(super) fn outcome(reply: &WebhookReply) -> Value {
    let is_taken = reply.outcome == WebhookOutcome::Taken;
    json!({"taken": is_taken, "status": reply.status, "error": reply.error})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_show_the_partitions_whose_cursor_is_unreadable() {
        let shown = notices(&NoticeStatus { waiting: 3, apart: 2, unreadable: 1, ..NoticeStatus::default() });
        let expected =
            json!({"waiting": 3, "apart": 2, "unreadable": 1, "asideCount": 0, "aside": [], "error": null});
        assert_eq!(shown, expected);
    }
}
