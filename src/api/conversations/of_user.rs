//! Admin API of the conversations of one user.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
};

use super::{
    Parameters, checked, conversation, conversations,
    cursor::{CursorPosition, ListName},
    entries::state,
    limit,
    turns::{Absence, in_turn_of_all, reader},
    user,
};
use crate::{
    api::{
        Api, Problem,
        access::{Caller, RouteNeed},
        extract::{IdPath, JsonObject},
    },
    conversation::{
        overview::{self, Listed, OverviewRequest},
        read_position::NOT_STORED,
        reader::Reader,
    },
    keys::Scope,
    store::Store,
};

/// Part of a user's conversations that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct OverviewQuery {
    order: Option<OverviewOrder>,
    unread: Option<bool>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Order of a user's conversations.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OverviewOrder {
    Key,
    Recent,
}

/// Body of a request that names conversations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct NamedConversations {
    pub(super) conversations: Vec<String>,
}

/// Returns a page of a user's conversations.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
    query: Parameters<OverviewQuery>,
) -> Result<Json<Value>, Problem> {
    let (user, query) = (user(&id)?, checked(query)?);
    let (only_unread, is_recent) =
        (query.unread.unwrap_or_default(), query.order == Some(OverviewOrder::Recent));
    let (name, unread) =
        (if is_recent { "recent" } else { "conversations" }, if only_unread { "unread" } else { "" });
    let list = ListName { name, filters: &[user.as_str(), unread] };
    let after = match (query.cursor.as_deref().map(|cursor| list.position(cursor)).transpose()?, is_recent) {
        (None, _) => None,
        (Some(found @ CursorPosition::Time(_)), true) | (Some(found @ CursorPosition::Key(_)), false) => {
            Some(found)
        }
        _ => return Err(Problem(Code::CursorInvalid, String::new())),
    };
    let with_last = may_read_content(&caller);
    let request = OverviewRequest { limit: limit(query.limit)?, only_unread, with_last };
    let work = move |store: Arc<dyn Store>, _| async move {
        let reader = reader(&*store, &user).await?;
        let OverviewPage { listed, next, is_cut } =
            overview(&*store, &reader, after, is_recent, request).await?;
        let states: Vec<Value> = listed.iter().map(|it| state(it, user.as_str(), with_last)).collect();
        let list = ListName { name, filters: &[user.as_str(), unread] };
        let mut body = list.with_next(json!({"user": user.as_str(), "conversations": states}), next);
        if is_cut {
            body["incomplete"] = true.into();
        }
        Ok(body)
    };
    in_turn_of_all(&api, &caller, work).await.map(Json)
}

/// Page of a user's conversations, in either order.
struct OverviewPage {
    listed: Vec<Listed>,
    next: Option<CursorPosition>,
    is_cut: bool,
}

async fn overview(
    store: &dyn Store,
    reader: &Reader,
    after: Option<CursorPosition>,
    is_recent: bool,
    request: OverviewRequest,
) -> Result<OverviewPage, Problem> {
    if is_recent {
        let after = match after {
            Some(CursorPosition::Time(position)) => Some(position),
            _ => None,
        };
        let page = overview::by_time(store, reader, after.as_ref(), request).await?;
        let next = page.next.map(CursorPosition::Time);
        return Ok(OverviewPage { listed: page.listed, next, is_cut: page.is_cut });
    }
    let after = match after {
        Some(CursorPosition::Key(key)) => Some(key),
        _ => None,
    };
    let page = overview::by_key(store, reader, after.as_ref(), request).await?;
    Ok(OverviewPage { listed: page.listed, next: page.next.map(CursorPosition::Key), is_cut: false })
}

/// Returns whether the caller may read what people wrote.
pub(super) fn may_read_content(caller: &Caller) -> bool {
    caller.require(RouteNeed::Scope(Scope::Content)).is_ok()
}

/// Returns one conversation of a user.
pub(in crate::api) async fn one(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath((id, of)): IdPath<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let (user, conversation) = (user(&id)?, conversation(&of)?);
    let with_last = may_read_content(&caller);
    let listed = read_one(&api, &caller, &user, conversation, with_last).await?;
    Ok(Json(state(&listed, user.as_str(), with_last)))
}

/// Returns the refusal for a conversation that the user never was in.
pub(super) fn never_in() -> Problem {
    Problem(Code::NotFound, "the user was never in such a conversation".into())
}

/// Returns one conversation of the user.
///
/// # Errors
/// `NOT_FOUND` if the user never was in it.
pub(super) async fn read_one(
    api: &Api,
    caller: &Caller,
    user: &UserId,
    conversation: ConversationId,
    with_last: bool,
) -> Result<Listed, Problem> {
    let found = read(api, caller, user, vec![conversation], with_last).await?;
    found.into_iter().flatten().next().ok_or_else(never_in)
}

/// Returns the user's conversations of these names, in order; `None` where the user never was a member.
///
/// # Errors
/// `NOT_YET` if there is one that the store may lack.
async fn read(
    api: &Api,
    caller: &Caller,
    user: &UserId,
    conversations: Vec<ConversationId>,
    with_last: bool,
) -> Result<Vec<Option<Listed>>, Problem> {
    let user = user.clone();
    let work = move |store: Arc<dyn Store>, absence: Absence| async move {
        let reader = reader(&*store, &user).await?;
        let found = overview::of_conversations(&*store, &reader, &conversations, with_last).await?;
        match found.iter().all(Option::is_some) || absence == Absence::Known {
            true => Ok(found),
            false => Err(NOT_STORED.into()),
        }
    };
    in_turn_of_all(api, caller, work).await
}

/// Returns positions and unread counts of many conversations of a user, in the order of the request.
pub(in crate::api) async fn heads(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
    JsonObject(body): JsonObject<NamedConversations>,
) -> Result<Json<Value>, Problem> {
    let (user, named) = (user(&id)?, conversations(&body.conversations)?);
    let found = read(&api, &caller, &user, named, false).await?;
    let head = |listed: &Listed| {
        json!({
            "conversation": listed.membership.conversation.as_str(),
            "maxSeq": listed.view.max(),
            "minSeq": listed.view.min(),
            "readSeq": listed.view.mark().seq,
            "unread": listed.unread,
        })
    };
    let heads: Vec<Option<Value>> = found.iter().map(|it| it.as_ref().map(head)).collect();
    Ok(Json(json!({"user": user.as_str(), "heads": heads})))
}
