//! Admin API of a user's newest messages over all conversations.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{Code, record::Body};

use super::{
    ENTRIES_BYTES_MAX, Parameters, checked,
    cursor::{CursorPosition, ListName},
    entries::entry,
    limit,
    turns::{in_turn_of_all, reader},
    user,
};
use crate::{
    api::{Api, Problem, access::Caller, extract::IdPath},
    conversation::newest::{NewestRequest, newest},
    store::{Store, StoredRow},
};

/// Part of a user's newest messages that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct NewestQueryString {
    unread: Option<bool>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Returns a page of a user's newest messages.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
    query: Parameters<NewestQueryString>,
) -> Result<Json<Value>, Problem> {
    let (user, query) = (user(&id)?, checked(query)?);
    let only_unread = query.unread.unwrap_or_default();
    let unread = if only_unread { "unread" } else { "" };
    let list = ListName { name: "newest", filters: &[user.as_str(), unread] };
    let after = match query.cursor.as_deref().map(|cursor| list.position(cursor)).transpose()? {
        None => None,
        Some(CursorPosition::Newest(position)) => Some(position),
        Some(_) => return Err(Problem(Code::CursorInvalid, String::new())),
    };
    let request = NewestRequest { limit: limit(query.limit)?, max_bytes: ENTRIES_BYTES_MAX, only_unread };
    let work = move |store: Arc<dyn Store>, _| async move {
        let reader = reader(&*store, &user).await?;
        let page = newest(&*store, &reader, after.as_ref(), request).await?;
        let messages: Vec<Value> = page.rows.iter().map(message).collect();
        let list = ListName { name: "newest", filters: &[user.as_str(), unread] };
        let body = json!({"user": user.as_str(), "messages": messages});
        let mut body = list.with_next(body, page.next.map(CursorPosition::Newest));
        if page.is_cut {
            body["incomplete"] = true.into();
        }
        Ok(body)
    };
    in_turn_of_all(&api, &caller, work).await.map(Json)
}

/// Returns a message with its conversation.
fn message(row: &StoredRow) -> Value {
    let mut entry = entry(row);
    if let Body::Message(message) = &row.row.body {
        entry.insert("conversation".into(), json!(message.conversation.as_str()));
    }
    Value::Object(entry)
}
