//! Admin API of the conversations of one user.

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::ConversationId};

use super::{
    Parameters, ReadCaller, checked, conversation, conversations,
    cursor::{CursorPosition, ListName},
    entries::state,
    in_time, limit, user,
};
use crate::{
    api::{
        Api, Problem,
        access::{Caller, RouteNeed},
        extract::{IdPath, JsonObject},
        now_ms,
    },
    conversation::overview::{self, Listed, OverviewRequest},
    keys::Scope,
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
    let filters = [user.as_str(), if only_unread { "unread" } else { "" }];
    let list = ListName { name: if is_recent { "recent" } else { "conversations" }, filters: &filters };
    let position = query.cursor.as_deref().map(|cursor| list.position(cursor)).transpose()?;
    let with_last = may_read_content(&caller);
    let request = OverviewRequest { limit: limit(query.limit)?, only_unread, with_last };
    let wrong = || Problem(Code::CursorInvalid, String::new());
    let key = ReadCaller::new(&caller);
    let reads = key.reads(&api);
    let (listed, next, is_cut) = if is_recent {
        let after = match position {
            None => None,
            Some(CursorPosition::Time(position)) => Some(position),
            Some(_) => return Err(wrong()),
        };
        let page = in_time(async {
            let reader = reads.reader(&user, now_ms()).await?;
            let _turn = reads.turn_after_barrier().await?;
            overview::by_time(reads.store(), &reader, after.as_ref(), request).await
        });
        let page = page.await?;
        (page.listed, page.next.map(CursorPosition::Time), page.is_cut)
    } else {
        let after = match position {
            None => None,
            Some(CursorPosition::Key(key)) => Some(key),
            Some(_) => return Err(wrong()),
        };
        let page = in_time(async {
            let reader = reads.reader(&user, now_ms()).await?;
            let _turn = reads.turn_after_barrier().await?;
            overview::by_key(reads.store(), &reader, after.as_ref(), request).await
        });
        let page = page.await?;
        (page.listed, page.next.map(CursorPosition::Key), false)
    };
    let states: Vec<Value> = listed.iter().map(|it| state(it, user.as_str(), with_last)).collect();
    let mut body = json!({"user": user.as_str(), "conversations": states});
    if let (Some(next), Some(body)) = (next, body.as_object_mut()) {
        body.insert("next".into(), json!(list.cursor(&next)));
    }
    if let (true, Some(body)) = (is_cut, body.as_object_mut()) {
        body.insert("incomplete".into(), json!(true));
    }
    Ok(Json(body))
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
    let listed = read(&api, &caller, user.as_str(), &[conversation], with_last).await?;
    let listed = listed.into_iter().flatten().next().ok_or_else(never_in)?;
    Ok(Json(state(&listed, user.as_str(), with_last)))
}

/// Returns the refusal for a conversation that the user never was in.
pub(super) fn never_in() -> Problem {
    Problem(Code::NotFound, "the user was never in such a conversation".into())
}

/// Returns the user's conversations of these names, in order; `None` where the user never was a member.
pub(super) async fn read(
    api: &Api,
    caller: &Caller,
    of: &str,
    conversations: &[ConversationId],
    with_last: bool,
) -> Result<Vec<Option<Listed>>, Problem> {
    let (key, user) = (ReadCaller::new(caller), user(of)?);
    let reads = key.reads(api);
    let found = in_time(async {
        let reader = reads.reader(&user, now_ms()).await?;
        let _turn = reads.turn_after_barrier().await?;
        overview::of_conversations(reads.store(), &reader, conversations, with_last).await
    });
    found.await
}

/// Returns positions and unread counts of many conversations of a user, in the order of the request.
pub(in crate::api) async fn heads(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
    JsonObject(body): JsonObject<NamedConversations>,
) -> Result<Json<Value>, Problem> {
    let (user, named) = (user(&id)?, conversations(&body.conversations)?);
    let found = read(&api, &caller, user.as_str(), &named, false).await?;
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
