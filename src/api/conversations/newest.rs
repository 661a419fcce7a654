//! Admin API of a user's newest messages over all conversations.

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{Code, record::Body};

use super::{
    CONTENT_BYTES_MAX, Parameters, ReadCaller, checked,
    cursor::{CursorPosition, ListName},
    entries::entry,
    in_time, limit, user,
};
use crate::{
    api::{Api, Problem, access::Caller, extract::IdPath, now_ms},
    conversation::newest::{NewestRequest, newest},
    store::StoredRow,
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
    let filters = [user.as_str(), if only_unread { "unread" } else { "" }];
    let list = ListName { name: "newest", filters: &filters };
    let after = match query.cursor.as_deref().map(|cursor| list.position(cursor)).transpose()? {
        None => None,
        Some(CursorPosition::Newest(position)) => Some(position),
        Some(_) => return Err(Problem(Code::CursorInvalid, String::new())),
    };
    let request = NewestRequest { limit: limit(query.limit)?, max_bytes: CONTENT_BYTES_MAX, only_unread };
    let key = ReadCaller::new(&caller);
    let reads = key.reads(&api);
    let page = in_time(async {
        let reader = reads.reader(&user, now_ms()).await?;
        let _turn = reads.turn_after_barrier().await?;
        newest(reads.store(), &reader, after.as_ref(), request).await
    });
    let page = page.await?;
    let messages: Vec<Value> = page.rows.iter().map(message).collect();
    let mut body = json!({"user": user.as_str(), "messages": messages});
    if let (Some(next), Some(body)) = (page.next, body.as_object_mut()) {
        body.insert("next".into(), json!(list.cursor(&CursorPosition::Newest(next))));
    }
    if let (true, Some(body)) = (page.is_cut, body.as_object_mut()) {
        body.insert("incomplete".into(), json!(true));
    }
    Ok(Json(body))
}

/// Returns a message with its conversation.
fn message(row: &StoredRow) -> Value {
    let mut entry = entry(row);
    if let Body::Message(message) = &row.row.body {
        entry.insert("conversation".into(), json!(message.conversation.as_str()));
    }
    Value::Object(entry)
}
