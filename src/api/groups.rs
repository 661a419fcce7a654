//! Admin API of groups: each change is one record of the log, and only the ledger decides whether it is allowed.
//! Lists are read from the store.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, GroupId, IdError, MsgId, UserId},
    record::{MemberAction, MemberChange, Role, USERS_MAX},
    settings::{GROUP_SETTINGS, GroupSettings, POST, Push, STORM_POST},
};

pub(super) mod lists;
pub(super) mod member;
pub(super) mod names;
pub(super) mod storm_rules;
pub(super) mod storms;

use self::names::Description;
use super::{
    Api, Problem,
    access::idempotency_key,
    extract::{IdPath, JsonObject},
    into_seq,
    messages::one_id,
    now_ms,
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
    name: Option<String>,
    #[serde(default)]
    meta: BTreeMap<String, String>,
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
            fn context(&self, headers: &HeaderMap) -> Result<RequestContext<'_>, Problem> {
                RequestContext::new(self.by.as_deref(), self.request_id.as_deref(), headers)
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
    request: Option<String>,
}

impl<'a> RequestContext<'a> {
    /// Takes the request id from the field or from the header `Idempotency-Key`.
    fn new(by: Option<&'a str>, request: Option<&str>, headers: &HeaderMap) -> Result<Self, Problem> {
        Ok(Self { by, request: one_id(request.map(str::to_owned), idempotency_key(headers)?)? })
    }
}

pub(super) async fn create(
    State(api): State<Api>,
    headers: HeaderMap,
    JsonObject(mut body): JsonObject<CreateGroup>,
) -> Result<Response, Problem> {
    body.request_id = one_id(body.request_id, idempotency_key(&headers)?)?;
    let (seq, duplicate) = into_seq(api.admin.change(creation(&body)?, now_ms()).await)?;
    let status = if duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(json!({"conversation": format!("g:{}", body.id), "seq": seq, "duplicate": duplicate})))
        .into_response())
}

/// Builds the change that creates a group. The owner is the acting user, so only that user gets the role; it is also
/// listed first among the users, because these are notified and indexed.
fn creation(body: &CreateGroup) -> Result<MemberChange, Problem> {
    let owner = body.owner.as_deref().map(user).transpose()?;
    let context = RequestContext { by: None, request: body.request_id.clone() };
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
    let meta = body.meta.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    Description { name: body.name.as_deref(), meta }.add_to(&mut change.settings)?;
    Ok(change)
}

pub(super) async fn change_members(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    headers: HeaderMap,
    JsonObject(body): JsonObject<ChangeMembers>,
) -> Result<Json<Value>, Problem> {
    let context = body.context(&headers)?;
    let lists = [
        (MemberAction::Join, &body.add),
        (MemberAction::Kick, &body.remove),
        (MemberAction::Leave, &body.leave),
        (MemberAction::Mute, &body.mute),
        (MemberAction::Unmute, &body.unmute),
    ];
    let mut named = lists.into_iter().filter(|(_, users)| !users.is_empty());
    // Each list is a change of its own: a refusal of a second one would leave the first done.
    let (Some((action, users)), None) = (named.next(), named.next()) else {
        let why = "name users in exactly one of add, remove, leave, mute and unmute";
        return Err(Problem(Code::BadContent, why.into()));
    };
    let change = change(&id, action, users, &context)?;
    Ok(seq_response(&id, into_seq(api.admin.change(change, now_ms()).await)?))
}

pub(super) async fn change_roles(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    headers: HeaderMap,
    JsonObject(body): JsonObject<ChangeRoles>,
) -> Result<Json<Value>, Problem> {
    let role = Role::from_word(&body.role)
        .ok_or_else(|| Problem(Code::BadContent, "role: one of member, admin, owner".into()))?;
    if body.users.is_empty() {
        return Err(Problem(Code::BadContent, "name users".into()));
    }
    let change = MemberChange {
        role: Some(role),
        ..change(&id, MemberAction::Role, &body.users, &body.context(&headers)?)?
    };
    Ok(seq_response(&id, into_seq(api.admin.change(change, now_ms()).await)?))
}

pub(super) async fn change_settings(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    headers: HeaderMap,
    JsonObject(body): JsonObject<ChangeSettings>,
) -> Result<Json<Value>, Problem> {
    if body.settings.is_empty() {
        return Err(Problem(Code::BadContent, "name settings".into()));
    }
    let settings = with_storm_ended(settings(&body.settings)?);
    let change =
        MemberChange { settings, ..change(&id, MemberAction::Settings, &[], &body.context(&headers)?)? };
    Ok(seq_response(&id, into_seq(api.admin.change(change, now_ms()).await)?))
}

pub(super) async fn end(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    headers: HeaderMap,
    query: Result<Query<EndGroup>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(query) = query.map_err(|rejection| {
        Problem(Code::BadContent, format!("only by and requestId are allowed: {}", rejection.body_text()))
    })?;
    let change = change(&id, MemberAction::Delete, &[], &query.context(&headers)?)?;
    Ok(seq_response(&id, into_seq(api.admin.change(change, now_ms()).await)?))
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
    // A member of a former version may have an id that no other request can name.
    let parse = if action == MemberAction::Kick { UserId::new } else { UserId::addressable };
    let mut users: Vec<UserId> =
        users.iter().map(|id| parse(id).map_err(|error| bad_user(id, &error))).collect::<Result<_, _>>()?;
    users.sort_unstable();
    users.dedup();
    let request = context.request.as_deref().map(MsgId::new).transpose().map_err(bad)?;
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
    let checked = GroupSettings::check(requested).and_then(|()| Push::check(requested));
    checked.map_err(|error| Problem(Code::BadSetting, error.to_string()))?;
    Ok(requested.clone())
}

/// Removes the value from before a storm with a change of who may post, which the end of the storm must not undo.
fn with_storm_ended(mut settings: BTreeMap<String, String>) -> BTreeMap<String, String> {
    if settings.contains_key(POST) {
        settings.insert(STORM_POST.to_owned(), String::new());
    }
    settings
}

fn group(id: &str) -> Result<ConversationId, Problem> {
    let id =
        GroupId::addressable(id).map_err(|error| Problem(Code::BadId, format!("group {id:?}: {error}")))?;
    Ok(ConversationId::group(&id))
}

fn user(id: &str) -> Result<UserId, Problem> {
    UserId::addressable(id).map_err(|error| bad_user(id, &error))
}

fn bad_user(id: &str, error: &IdError) -> Problem {
    Problem(Code::BadId, format!("user {id:?}: {error}"))
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
