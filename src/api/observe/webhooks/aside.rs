//! Events that were set aside: their list, and what becomes of them.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::ConversationId,
    machine::webhook::{WebhookAside, WebhookEvent, WebhookOutcome},
};

use super::{
    Found,
    change::{change, order, orders_done},
    existing, unavailable,
    view::outcome,
};
use crate::{
    api::{
        Api, Problem,
        conversations::{
            Parameters, checked,
            cursor::{CursorPosition, ListName},
            limit_up_to,
        },
        extract::IdPath,
    },
    store::ConversationSeq,
    webhooks::{EndpointProgress, StoredAction, send_once},
};

/// Most events of a page.
const PAGE_MAX: usize = 1_000;

/// Part of the events that a request asks for.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct AsideQuery {
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Returns a page of the events of an endpoint that were set aside, by conversation and seq.
pub(in crate::api) async fn list_aside(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    query: Parameters<AsideQuery>,
) -> Result<Json<Value>, Problem> {
    let query = checked(query)?;
    let limit = limit_up_to(query.limit, PAGE_MAX)?;
    let list = ListName { name: "aside", filters: &[&id] };
    let after = match query.cursor.as_deref().map(|cursor| list.position(cursor)).transpose()? {
        None => None,
        Some(CursorPosition::Row(ConversationSeq { conversation, seq })) => Some((conversation, seq)),
        Some(_) => return Err(Problem(Code::CursorInvalid, String::new())),
    };
    let (_, mut all) = aside_of(&api, &id).await?;
    all.sort_by_key(|it| position(&it.event));
    let from = after.map_or(0, |after| all.partition_point(|it| position(&it.event) <= after));
    let page = all.get(from..).unwrap_or_default();
    let shown: Vec<Value> = page.iter().take(limit).map(view).collect();
    let mut body = json!({"webhook": id, "events": shown, "count": all.len()});
    if let (true, Some(last)) = (page.len() > limit, page.get(limit.saturating_sub(1))) {
        let (conversation, seq) = position(&last.event);
        body["next"] = json!(list.cursor(&CursorPosition::Row(ConversationSeq { conversation, seq })));
    }
    Ok(Json(body))
}

/// Sends an event that was set aside again, at once and out of order. If it is taken, it is no longer set aside.
pub(in crate::api) async fn resend(
    State(api): State<Api>,
    IdPath((id, conversation, seq)): IdPath<(String, String, String)>,
) -> Result<Response, Problem> {
    let (found, event) = named(&api, &id, &conversation, &seq).await?;
    // Before it is sent: what was taken must not stay listed.
    if !found.stored.has_room(orders_done(&api, &id).await?) {
        return Err(Problem(Code::Busy, "too many orders wait for the owners of partitions".to_owned()));
    }
    let plan = api.webhooks.plan_of(&id, &found.stored, api.cluster.guard.now_ms());
    let plan = plan.map_err(|why| Problem(Code::BadContent, why))?;
    let reply = send_once(&plan, &*api.cluster.ports.store, std::slice::from_ref(&event), true).await;
    let mut body = outcome(&reply);
    if reply.outcome == WebhookOutcome::Passed {
        body["error"] = json!("the history no longer has the event");
    }
    if reply.outcome == WebhookOutcome::Taken {
        match dropped(&api, &id, &event).await? {
            Ok(()) => {}
            Err(response) => return Ok(response),
        }
    }
    body["event"] = json!(name_of(&event));
    Ok(Json(body).into_response())
}

/// Removes an event from those that were set aside, without sending it.
pub(in crate::api) async fn drop_aside(
    State(api): State<Api>,
    IdPath((id, conversation, seq)): IdPath<(String, String, String)>,
) -> Result<Response, Problem> {
    let (_, event) = named(&api, &id, &conversation, &seq).await?;
    match dropped(&api, &id, &event).await? {
        Ok(()) => {
            Ok((StatusCode::OK, Json(json!({"event": name_of(&event), "dropped": true}))).into_response())
        }
        Err(response) => Ok(response),
    }
}

/// Orders that an event is no longer set aside.
async fn dropped(api: &Api, id: &str, event: &WebhookEvent) -> Result<Result<(), Response>, Problem> {
    let done = orders_done(api, id).await?;
    let action = StoredAction::Drop(event.conversation.as_str().to_owned(), event.seq);
    let changed = change(api, id, None, |endpoint| order(endpoint, action.clone(), done)).await?;
    Ok(changed.map(drop))
}

/// Returns an endpoint and the event set aside that a path names.
async fn named(api: &Api, id: &str, conversation: &str, seq: &str) -> Result<(Found, WebhookEvent), Problem> {
    let conversation = ConversationId::parse(conversation)
        .map_err(|error| Problem(Code::BadId, format!("conversation: {error}")))?;
    let seq: u64 = seq.parse().map_err(|_| Problem(Code::BadId, "seq: a number".to_owned()))?;
    let (found, aside) = aside_of(api, id).await?;
    let event =
        aside.into_iter().map(|it| it.event).find(|it| it.conversation == conversation && it.seq == seq);
    let why = || format!("{}/{seq} is not set aside", conversation.as_str());
    Ok((found, event.ok_or_else(|| Problem(Code::NotFound, why()))?))
}

/// Returns an endpoint, and the events set aside that no order has removed.
async fn aside_of(api: &Api, id: &str) -> Result<(Found, Vec<WebhookAside>), Problem> {
    let found = existing(api, id).await?;
    let progress = EndpointProgress::read(&*api.cluster.ports.store, id, &found.stored).await;
    let orders: Vec<(u64, ConversationId, u64)> = found
        .stored
        .orders
        .iter()
        .filter_map(|it| it.action.dropped().map(|(conversation, seq)| (it.number, conversation, seq)))
        .collect();
    let is_dropped = |aside: &WebhookAside, last: u64| {
        let WebhookEvent { conversation, seq, .. } = &aside.event;
        orders.iter().any(|(number, key, at)| *number > last && key == conversation && at == seq)
    };
    let mut aside = progress.map_err(unavailable)?.aside;
    // What an order removes that is carried out later.
    aside.retain(|(aside, last)| !is_dropped(aside, *last));
    let aside = aside.into_iter().map(|(aside, _)| aside).collect();
    Ok((found, aside))
}

fn position(event: &WebhookEvent) -> (ConversationId, u64) {
    (event.conversation.clone(), event.seq)
}

/// Returns the id of an event.
fn name_of(event: &WebhookEvent) -> String {
    format!("{}/{}", event.conversation.as_str(), event.seq)
}

fn view(it: &WebhookAside) -> Value {
    json!({"conversation": it.event.conversation.as_str(), "seq": it.event.seq, "tries": it.tries})
}
