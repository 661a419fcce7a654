//! Admin API of single members of a group: add, change, remove one.

use std::collections::BTreeMap;

use axum::{
    Extension, Json,
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::session::SubmitAnswer,
    record::{MemberAction, MemberChange, Role},
};

use super::{
    RequestContext, change,
    lists::{member_of, not_a_member, role},
    seq_response,
};
use crate::{
    api::{
        Api, Problem, ProblemDetails,
        access::Caller,
        conversations::bad,
        extract::{IdPath, JsonObject},
        into_seq, now_ms,
    },
    ingest::admin::Admin,
};

/// Member that a request adds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct AddMember {
    role: Option<String>,
    by: Option<String>,
    request_id: Option<String>,
}

/// Change of one member: of the role or of the mute.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct MemberPatch {
    role: Option<String>,
    muted: Option<bool>,
    by: Option<String>,
    request_id: Option<String>,
}

/// Query of a removal, which has no body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct RemoveMember {
    by: Option<String>,
    request_id: Option<String>,
}

/// Adds a member. A user who is one already keeps the role, and the log gets no record.
pub(in crate::api) async fn add(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath((id, name)): IdPath<(String, String)>,
    headers: HeaderMap,
    JsonObject(body): JsonObject<AddMember>,
) -> Result<Response, Problem> {
    let context = RequestContext::new(body.by.as_deref(), body.request_id.as_deref(), &headers)?;
    let role = body.role.as_deref().map(role).transpose()?;
    let addition = MemberChange { role, ..change(&id, MemberAction::Join, &[name], &context)? };
    if is_member(&api, &caller, &addition).await? {
        let body = json!({"conversation": addition.conversation.as_str(), "changed": false});
        return Ok(Json(body).into_response());
    }
    let conversation = addition.conversation.clone();
    let (seq, duplicate) = into_seq(api.admin.change(addition, now_ms()).await)?;
    let status = if duplicate { StatusCode::OK } else { StatusCode::CREATED };
    let body = json!({
        "conversation": conversation.as_str(),
        "seq": seq,
        "duplicate": duplicate,
        "changed": !duplicate,
    });
    Ok((status, Json(body)).into_response())
}

/// Returns whether the user is a member, and the one who asks might add one. Anything else is decided by the ledger.
async fn is_member(api: &Api, caller: &Caller, addition: &MemberChange) -> Result<bool, Problem> {
    let group = &addition.conversation;
    let role_of = async |user: &UserId| role_in(api, caller, group, user).await;
    for user in &addition.users {
        if role_of(user).await?.is_none() {
            return Ok(false);
        }
    }
    let Some(by) = &addition.by else { return Ok(true) };
    let asked = addition.role.unwrap_or(Role::Member);
    Ok(role_of(by).await?.is_some_and(|by| by >= Role::Admin && by >= asked))
}

/// Returns the role of a user in a group; `None` also if there is no such group.
async fn role_in(
    api: &Api,
    caller: &Caller,
    group: &ConversationId,
    user: &UserId,
) -> Result<Option<Role>, Problem> {
    match member_of(api, caller, group.clone(), user.clone()).await {
        Ok(found) => Ok(found.map(|it| it.member.role)),
        // In doubt the change is submitted, and the ledger decides.
        Err(Problem(code, _)) if code == Code::NotFound || code.temporary() => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// Changes the role of a member, or mutes or unmutes it.
pub(in crate::api) async fn patch(
    State(api): State<Api>,
    IdPath((id, name)): IdPath<(String, String)>,
    headers: HeaderMap,
    JsonObject(body): JsonObject<MemberPatch>,
) -> Result<Json<Value>, ProblemDetails> {
    let context = RequestContext::new(body.by.as_deref(), body.request_id.as_deref(), &headers)?;
    let (action, role) = match (&body.role, body.muted) {
        (Some(word), None) => (MemberAction::Role, Some(role(word)?)),
        (None, Some(true)) => (MemberAction::Mute, None),
        (None, Some(false)) => (MemberAction::Unmute, None),
        _ => return Err(bad("name exactly one of role and muted").into()),
    };
    let change = MemberChange { role, ..change(&id, action, &[name], &context)? };
    answer(&api, &id, change).await
}

/// Removes a member. With the user itself as the one who asks, the user leaves.
pub(in crate::api) async fn remove(
    State(api): State<Api>,
    IdPath((id, name)): IdPath<(String, String)>,
    headers: HeaderMap,
    query: Result<Query<RemoveMember>, QueryRejection>,
) -> Result<Json<Value>, ProblemDetails> {
    let Query(query) = query.map_err(|rejection| bad(rejection.body_text()))?;
    let context = RequestContext::new(query.by.as_deref(), query.request_id.as_deref(), &headers)?;
    let leaves = query.by.as_ref() == Some(&name);
    let action = if leaves { MemberAction::Leave } else { MemberAction::Kick };
    let change = change(&id, action, &[name], &context)?;
    answer(&api, &id, change).await
}

/// Removes a user from a group as one who leaves. Returns false if the user is no member, or there is no such group.
pub(in crate::api) async fn leave(api: &Api, group: &ConversationId, user: &UserId) -> Result<bool, Problem> {
    let change = MemberChange {
        conversation: group.clone(),
        action: MemberAction::Leave,
        users: vec![user.clone()],
        role: None,
        by: None,
        settings: BTreeMap::new(),
        request_id: Admin::fresh_request_id(),
    };
    match api.admin.change(change, now_ms()).await {
        SubmitAnswer::Refused { code: Code::NotAMember | Code::NotFound, .. } => Ok(false),
        answer => into_seq(answer).map(|_| true),
    }
}

/// Makes the change of a member. Without a user who asks, only the user of the path can be missing.
async fn answer(api: &Api, id: &str, change: MemberChange) -> Result<Json<Value>, ProblemDetails> {
    let is_operator = change.by.is_none();
    match api.admin.change(change, now_ms()).await {
        SubmitAnswer::Refused { code: Code::NotAMember, .. } if is_operator => Err(not_a_member()),
        answer => Ok(seq_response(id, into_seq(answer)?)),
    }
}
