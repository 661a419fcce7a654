//! Admin API of groups: each change is one record of the log, and only the ledger decides whether it is allowed.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, GroupId, MsgId, UserId},
    record::{MemberAction, MemberChange, Role, USERS_MAX},
    settings::{GROUP_SETTINGS, GroupSettings, POST, STORM_POST},
};

pub(super) mod storm_rules;
pub(super) mod storms;

use super::{
    Api, Problem,
    extract::{IdPath, JsonObject},
    into_seq, now_ms,
};
use crate::ingest::admin::Admin;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct CreateGroup {
    id: String,
    #[serde(default)]
    members: Vec<String>,
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    settings: BTreeMap<String, String>,
    #[serde(default)]
    request_id: Option<String>,
}

/// Defines a request body with its own fields, the acting user and the request id. The common fields are not flattened,
/// because serde does not refuse unknown fields next to a flattened part.
macro_rules! group_request {
    ($(#[$about:meta])* $name:ident { $($(#[$how:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "camelCase")]
        pub(super) struct $name {
            $($(#[$how])* $field: $type,)*
            by: Option<String>,
            request_id: Option<String>,
        }

        impl $name {
            fn context(&self) -> RequestContext<'_> {
                RequestContext { by: self.by.as_deref(), request: self.request_id.as_deref() }
            }
        }
    };
}

group_request!(ChangeMembers {
    #[serde(default)]
    add: Vec<String>,
    #[serde(default)]
    remove: Vec<String>,
    #[serde(default)]
    leave: Vec<String>,
    #[serde(default)]
    mute: Vec<String>,
    #[serde(default)]
    unmute: Vec<String>,
});

group_request!(ChangeRoles {
    users: Vec<String>,
    role: String,
});

group_request!(ChangeSettings {
    settings: BTreeMap<String, String>,
});

group_request!(
    /// Query of a DELETE, which has no body.
    EndGroup {}
);

/// Acting user and request id of a change.
struct RequestContext<'a> {
    by: Option<&'a str>,
    request: Option<&'a str>,
}

pub(super) async fn create(
    State(api): State<Api>,
    JsonObject(body): JsonObject<CreateGroup>,
) -> Result<Response, Problem> {
    let (seq, duplicate) = into_seq(api.admin.change(creation(&body)?, now_ms()).await)?;
    let status = if duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(json!({"conversation": format!("g:{}", body.id), "seq": seq, "duplicate": duplicate})))
        .into_response())
}

/// Builds the change that creates a group. The owner is the acting user, so only that user gets the role; it is also
/// listed first among the users, because these are notified and indexed.
fn creation(body: &CreateGroup) -> Result<MemberChange, Problem> {
    let owner = body.owner.as_deref().map(user).transpose()?;
    let context = RequestContext { by: None, request: body.request_id.as_deref() };
    let mut change = change(&body.id, MemberAction::Create, &body.members, &context)?;
    if let Some(owner) = &owner {
        change.users.retain(|user| user != owner);
        change.users.insert(0, owner.clone());
    }
    if change.users.len() > USERS_MAX {
        return Err(Problem(Code::TooManyMembers, String::new()));
    }
    change.by = owner;
    change.settings = settings(&body.settings)?;
    Ok(change)
}

pub(super) async fn change_members(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    JsonObject(body): JsonObject<ChangeMembers>,
) -> Result<Json<Value>, Problem> {
    let context = body.context();
    let lists = [
        (MemberAction::Join, &body.add),
        (MemberAction::Kick, &body.remove),
        (MemberAction::Leave, &body.leave),
        (MemberAction::Mute, &body.mute),
        (MemberAction::Unmute, &body.unmute),
    ];
    let count = lists.iter().filter(|(_, users)| !users.is_empty()).count();
    if count == 0 {
        return Err(Problem(Code::BadContent, "name users in add, remove, leave, mute or unmute".into()));
    }
    if count > 1 && context.request.is_some() {
        return Err(Problem(
            Code::BadContent,
            "with requestId, send each list as a request of its own".into(),
        ));
    }
    let lists = lists.into_iter().filter(|(_, users)| !users.is_empty());
    // Validate all changes before the first is appended.
    let changes: Vec<MemberChange> =
        lists.map(|(action, users)| change(&id, action, users, &context)).collect::<Result<_, _>>()?;
    let mut last = (0, false);
    for change in changes {
        last = into_seq(api.admin.change(change, now_ms()).await)?;
    }
    Ok(seq_response(&id, last))
}

pub(super) async fn change_roles(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    JsonObject(body): JsonObject<ChangeRoles>,
) -> Result<Json<Value>, Problem> {
    let role = Role::from_word(&body.role)
        .ok_or_else(|| Problem(Code::BadContent, "role: one of member, admin, owner".into()))?;
    if body.users.is_empty() {
        return Err(Problem(Code::BadContent, "name users".into()));
    }
    let change =
        MemberChange { role: Some(role), ..change(&id, MemberAction::Role, &body.users, &body.context())? };
    Ok(seq_response(&id, into_seq(api.admin.change(change, now_ms()).await)?))
}

pub(super) async fn change_settings(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    JsonObject(body): JsonObject<ChangeSettings>,
) -> Result<Json<Value>, Problem> {
    if body.settings.is_empty() {
        return Err(Problem(Code::BadContent, "name settings".into()));
    }
    let mut settings = settings(&body.settings)?;
    if settings.contains_key(POST) {
        // The end of a storm must not undo this decision.
        settings.insert(STORM_POST.to_owned(), String::new());
    }
    let change = MemberChange { settings, ..change(&id, MemberAction::Settings, &[], &body.context())? };
    Ok(seq_response(&id, into_seq(api.admin.change(change, now_ms()).await)?))
}

pub(super) async fn end(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    query: Result<Query<EndGroup>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(query) = query.map_err(|rejection| {
        Problem(Code::BadContent, format!("only by and requestId are allowed: {}", rejection.body_text()))
    })?;
    let change = change(&id, MemberAction::Delete, &[], &query.context())?;
    Ok(seq_response(&id, into_seq(api.admin.change(change, now_ms()).await)?))
}

pub(super) async fn show(State(api): State<Api>, IdPath(id): IdPath<String>) -> Result<Json<Value>, Problem> {
    let group = group(&id)?;
    let unavailable = |error| Problem(Code::StoreUnavailable, format!("store unavailable: {error}"));
    let summary = api.cluster.ports.store.summary(&group, None).await.map_err(unavailable)?;
    let Some(summary) = summary.filter(|summary| summary.head.deleted_seq == 0) else {
        return Err(Problem(Code::NotFound, String::new()));
    };
    let members = api.cluster.ports.store.members(&group, None, USERS_MAX).await.map_err(unavailable)?;
    let names: Vec<&str> = members.iter().map(|(user, _)| user.as_str()).collect();
    let above = members.iter().filter(|(_, row)| row.role > Role::Member);
    let roles: BTreeMap<&str, &str> = above.map(|(user, row)| (user.as_str(), row.role.word())).collect();
    let muted: Vec<&str> =
        members.iter().filter(|(_, row)| row.muted).map(|(user, _)| user.as_str()).collect();
    Ok(Json(json!({
        "conversation": group.as_str(),
        "count": summary.members,
        "members": names,
        "roles": roles,
        "muted": muted,
        "settings": *summary.head.settings,
    })))
}

fn seq_response(id: &str, appended: (u64, bool)) -> Json<Value> {
    let (seq, duplicate) = appended;
    Json(json!({"conversation": format!("g:{id}"), "seq": seq, "duplicate": duplicate}))
}

fn change(
    id: &str,
    action: MemberAction,
    users: &[String],
    context: &RequestContext<'_>,
) -> Result<MemberChange, Problem> {
    if users.len() > USERS_MAX {
        return Err(Problem(Code::TooManyMembers, String::new()));
    }
    let bad = |_| Problem(Code::BadId, "requestId: [A-Za-z0-9_.-]{1,64}".into());
    let mut users: Vec<UserId> = users.iter().map(|id| user(id)).collect::<Result<_, _>>()?;
    users.sort_unstable();
    users.dedup();
    let request = context.request.map(MsgId::new).transpose().map_err(bad)?;
    Ok(MemberChange {
        conversation: group(id)?,
        action,
        users,
        role: None,
        by: context.by.map(user).transpose()?,
        settings: BTreeMap::new(),
        request_id: request.unwrap_or_else(Admin::fresh_request_id),
    })
}

/// Checks settings for the record. Unknown ones are refused, because a misspelt setting would never take effect.
fn settings(requested: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Problem> {
    if let Some(name) = requested.keys().find(|name| !GROUP_SETTINGS.contains(&name.as_str())) {
        let known = GROUP_SETTINGS.join(", ");
        return Err(Problem(Code::BadSetting, format!("{name:?} is no setting; use one of {known}")));
    }
    GroupSettings::check(requested).map_err(|error| Problem(Code::BadSetting, error.to_string()))?;
    Ok(requested.clone())
}

fn group(id: &str) -> Result<ConversationId, Problem> {
    let id = GroupId::new(id).map_err(|error| Problem(Code::BadId, format!("group {id:?}: {error}")))?;
    Ok(ConversationId::group(&id))
}

fn user(id: &str) -> Result<UserId, Problem> {
    UserId::new(id).map_err(|error| Problem(Code::BadId, format!("user {id:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidegate_protocol::{
        id::NodeId,
        machine::ledger::{Ledger, Loaded, Need},
        record::{Body as RecordBody, Origin, Position, Record, Rules},
    };

    use super::*;

    fn body(text: &str) -> CreateGroup {
        serde_json::from_str(text).unwrap()
    }

    /// Regression: members named together with an owner once became owners as well.
    #[test]
    fn new_group_has_one_owner() {
        let text = r#"{"id":"g","members":["ann","bob"],"owner":"bob","requestId":"r"}"#;
        let Ok(change) = creation(&body(text)) else { panic!("a good request") };
        assert_eq!(change.request_id.as_str(), "r");
        let group = change.conversation.clone();
        let origin = Origin { node: NodeId::new("n").unwrap(), boot: 0, conn: 0, request: 0 };
        let record = Record { origin, received_at: 0, body: RecordBody::Member(change), trace: None };
        let mut ledger = Ledger::resume(Position::START, Rules::default(), 0);
        let mut needs = BTreeSet::new();
        ledger.needs(&record, &mut needs);
        let absent = |need| match need {
            Need::Head(id) => Loaded::Head(id, None),
            Need::Member(id, user) => Loaded::Member(id, user, None),
            Need::Device(id, user, device) => Loaded::Device(id, user, device, None),
            Need::Key(hash) => Loaded::Key(hash, None),
            Need::Row(id, seq) => Loaded::Row(id, seq, None),
        };
        ledger.load(Position::START, needs.into_iter().map(absent)).unwrap();
        ledger.apply(0, &record).unwrap();
        let role =
            |name| ledger.member(&group, &UserId::new(name).unwrap()).unwrap().map(|member| member.role);
        assert_eq!((role("bob"), role("ann")), (Some(Role::Owner), Some(Role::Member)));
    }

    #[test]
    fn owner_counts_towards_the_member_limit_of_a_new_group() {
        let members: Vec<String> = (0..USERS_MAX).map(|n| format!("u{n}")).collect();
        let mut group = body(r#"{"id":"g"}"#);
        group.members = members;
        assert!(creation(&group).is_ok());
        group.owner = Some("u1".into());
        assert!(creation(&group).is_ok());
        group.owner = Some("boss".into());
        assert!(matches!(creation(&group), Err(Problem(Code::TooManyMembers, _))));
    }
}
