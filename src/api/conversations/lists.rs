//! Admin API of conversations without the view of a user.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::ConversationId};

use super::{
    Parameters, bad, checked, conversation, conversations,
    cursor::{CursorPosition, ListName},
    limit,
    of_user::NamedConversations,
    turns::{Absence, in_turn_of_all},
};
use crate::{
    api::{
        Api, Problem,
        access::Caller,
        extract::{IdPath, JsonObject},
    },
    conversation::{overview, read_position::NOT_STORED},
    store::{ConversationHead, Store},
};

/// Longest prefix: two ids and the colon.
const PREFIX_MAX: usize = 129;

/// Part of all conversations that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ConversationsQuery {
    kind: Option<KindName>,
    prefix: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Kind of conversation.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindName {
    Direct,
    Group,
}

/// Returns a page of all conversations, sorted by key.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    query: Parameters<ConversationsQuery>,
) -> Result<Json<Value>, Problem> {
    let query = checked(query)?;
    let prefix = prefix(&query)?;
    let limit = limit(query.limit)?;
    let filters = [prefix.as_str()];
    let list = ListName { name: "all", filters: &filters };
    let after = list.after_key(query.cursor.as_deref())?;
    let work = move |store: Arc<dyn Store>, _| async move {
        let mut found = overview::heads(&*store, &prefix, after.as_ref(), limit + 1).await?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| has_more);
        let next = last.map(|it| CursorPosition::Key(it.conversation.clone()));
        let body = json!({"conversations": found.iter().map(head).collect::<Vec<_>>()});
        Ok(ListName { name: "all", filters: &[&prefix] }.with_next(body, next))
    };
    in_turn_of_all(&api, &caller, work).await.map(Json)
}

/// Returns the prefix of the keys.
fn prefix(query: &ConversationsQuery) -> Result<String, Problem> {
    let prefix = query.prefix.as_deref().unwrap_or_default();
    let is_of_key = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-:".contains(&byte);
    if prefix.len() > PREFIX_MAX || !prefix.bytes().all(is_of_key) {
        return Err(bad(format!("prefix: at most {PREFIX_MAX} of A-Z a-z 0-9 _ . - :")));
    }
    match query.kind {
        Some(KindName::Direct) => Ok(format!("d:{prefix}")),
        Some(KindName::Group) => Ok(format!("g:{prefix}")),
        None if prefix.is_empty() => Ok(String::new()),
        None => Err(bad("prefix: only with kind, of which it is the beginning of the ids")),
    }
}

/// Returns one conversation.
pub(in crate::api) async fn one(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let id = conversation(&id)?;
    let found = heads_of(&api, &caller, vec![id]).await?.pop().flatten();
    found.as_ref().map(head).map(Json).ok_or_else(|| Problem(Code::NotFound, String::new()))
}

/// Returns the positions of many conversations, in the order of the request.
pub(in crate::api) async fn heads(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    JsonObject(body): JsonObject<NamedConversations>,
) -> Result<Json<Value>, Problem> {
    let named = conversations(&body.conversations)?;
    let found = heads_of(&api, &caller, named).await?;
    let positions = |it: &ConversationHead| {
        json!({
            "conversation": it.conversation.as_str(),
            "maxSeq": it.head.last_seq,
            "minSeq": it.head.pruned_to.saturating_add(1),
        })
    };
    let heads: Vec<Option<Value>> = found.iter().map(|it| it.as_ref().map(positions)).collect();
    Ok(Json(json!({"heads": heads})))
}

/// Returns the heads of conversations, `None` for those that are known not to exist.
pub(super) async fn heads_of(
    api: &Api,
    caller: &Caller,
    conversations: Vec<ConversationId>,
) -> Result<Vec<Option<ConversationHead>>, Problem> {
    let work = move |store: Arc<dyn Store>, absence: Absence| async move {
        let found = overview::heads_of(&*store, &conversations).await?;
        // What is not there must be known not to exist.
        match found.iter().all(Option::is_some) || absence == Absence::Known {
            true => Ok(found),
            false => Err(NOT_STORED.into()),
        }
    };
    in_turn_of_all(api, caller, work).await
}

fn head(it: &ConversationHead) -> Value {
    json!({
        "conversation": it.conversation.as_str(),
        "maxSeq": it.head.last_seq,
        "minSeq": it.head.pruned_to.saturating_add(1),
        "messages": it.head.messages,
        "members": it.members,
        "ended": it.head.deleted_seq > 0,
    })
}
