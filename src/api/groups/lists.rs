//! Admin API of what groups there are, who is in them, and in which of them a user is.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Extension, Json, extract::State, http::StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, UserId},
    record::{Role, USERS_MAX},
};

use super::{
    group,
    names::{Described, head_of},
    user,
};
use crate::{
    api::{
        Api, Problem, ProblemDetails,
        access::Caller,
        conversations::{
            Parameters, bad, checked,
            cursor::{CursorPosition, ListName},
            limit_up_to,
            turns::{Absence, in_turn_of_all, unavailable},
        },
        extract::IdPath,
    },
    conversation::read_position::NOT_STORED,
    store::{ConversationHead, GroupMember, GroupOfUser, ListPage, MembersRequest, Store},
};

/// Most groups or members of a page.
const PAGE_MAX: usize = 1_000;

/// Longest prefix: the longest id.
const PREFIX_MAX: usize = 64;

/// Part of the groups that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct GroupsQuery {
    prefix: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Part of the members of a group that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct MembersQuery {
    role: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Part of the groups of a user that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct UserGroupsQuery {
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Returns a page of all groups, sorted by id.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    query: Parameters<GroupsQuery>,
) -> Result<Json<Value>, Problem> {
    let query = checked(query)?;
    let prefix = query.prefix.unwrap_or_default();
    let is_of_id = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if prefix.len() > PREFIX_MAX || !prefix.bytes().all(is_of_id) {
        return Err(bad(format!("prefix: at most {PREFIX_MAX} of A-Z a-z 0-9 _ . -")));
    }
    let limit = limit_up_to(query.limit, PAGE_MAX)?;
    let list = ListName { name: "groups", filters: &[&prefix] };
    let after = list.after_key(query.cursor.as_deref())?;
    let work = move |store: Arc<dyn Store>, _| async move {
        let page = store.group_page(&format!("g:{prefix}"), after.as_ref(), limit).await;
        let ListPage { rows, next } = page.map_err(unavailable)?;
        let groups: Vec<Value> = rows.iter().map(listed).collect();
        let list = ListName { name: "groups", filters: &[&prefix] };
        Ok(list.with_next(json!({"groups": groups}), next.map(CursorPosition::Key)))
    };
    in_turn_of_all(&api, &caller, work).await.map(Json)
}

/// Returns a page of the members of a group, sorted by user.
pub(in crate::api) async fn members(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
    query: Parameters<MembersQuery>,
) -> Result<Json<Value>, Problem> {
    let (group, query) = (group(&id)?, checked(query)?);
    let role = query.role.as_deref().map(role).transpose()?;
    let limit = limit_up_to(query.limit, PAGE_MAX)?;
    let word = role.map_or("", Role::word);
    let list = ListName { name: "members", filters: &[&id, word] };
    let after = match query.cursor.as_deref().map(|cursor| list.position(cursor)).transpose()? {
        None => None,
        Some(CursorPosition::User(user)) => Some(user),
        Some(_) => return Err(Problem(Code::CursorInvalid, String::new())),
    };
    let request = MembersRequest { group, role, after, limit };
    let work = move |store: Arc<dyn Store>, absence: Absence| async move {
        let page = member_page(&*store, &request, absence).await?;
        let members: Vec<Value> = page.rows.iter().map(member).collect();
        let list = ListName { name: "members", filters: &[&id, word] };
        Ok(list.with_next(json!({"members": members}), page.next.map(CursorPosition::User)))
    };
    in_turn_of_all(&api, &caller, work).await.map(Json)
}

/// Returns one member of a group.
pub(in crate::api) async fn one(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath((id, name)): IdPath<(String, String)>,
) -> Result<Json<Value>, ProblemDetails> {
    let (group, user) = (group(&id)?, user(&name)?);
    let found = member_of(&api, &caller, group, user).await?;
    found.as_ref().map(|found| Json(member(found))).ok_or_else(not_a_member)
}

/// Returns a page of the groups of a user, sorted by id.
pub(in crate::api) async fn of_user(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(name): IdPath<String>,
    query: Parameters<UserGroupsQuery>,
) -> Result<Json<Value>, Problem> {
    let (user, query) = (user(&name)?, checked(query)?);
    let limit = limit_up_to(query.limit, PAGE_MAX)?;
    let list = ListName { name: "groups", filters: &["", user.as_str()] };
    let after = list.after_key(query.cursor.as_deref())?;
    // A made-up cursor must not lead out of the groups.
    if after.as_ref().is_some_and(|key| !matches!(key.kind(), ConversationKind::Group(_))) {
        return Err(Problem(Code::CursorInvalid, String::new()));
    }
    let work = move |store: Arc<dyn Store>, _| async move {
        let ListPage { rows, next } =
            store.groups_of(&user, after.as_ref(), limit).await.map_err(unavailable)?;
        let group = |it: &GroupOfUser| {
            json!({
                "id": id_of(&it.group.conversation),
                "name": Described::of(&it.group.head.settings).name,
                "role": it.member.role.word(),
                "muted": it.member.muted,
                "joinedSeq": it.member.joined_seq,
            })
        };
        let groups: Vec<Value> = rows.iter().map(group).collect();
        let body = json!({"user": user.as_str(), "groups": groups});
        let list = ListName { name: "groups", filters: &["", user.as_str()] };
        Ok(list.with_next(body, next.map(CursorPosition::Key)))
    };
    in_turn_of_all(&api, &caller, work).await.map(Json)
}

/// Most pages that are read for the first members of a group. Of one with more rows of users who left than these pages have,
/// fewer members are shown; the list of members has them all.
const SHOWN_PAGES_MAX: usize = 8;

/// Returns a group with its first members.
pub(in crate::api) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let group = group(&id)?;
    let work = move |store: Arc<dyn Store>, absence: Absence| async move {
        let head = head_of(&*store, &group).await.map_err(unavailable)?;
        let Some(found) = head else { return Err(absent(absence)) };
        let mut request = MembersRequest { group, role: None, after: None, limit: USERS_MAX };
        let mut members = Vec::new();
        let wanted = usize::try_from(found.members).unwrap_or(usize::MAX).min(USERS_MAX);
        // Most groups are complete after the first page; rows of users who left may fill some.
        for _ in 0..SHOWN_PAGES_MAX {
            let page = member_page(&*store, &request, absence).await?;
            members.extend(page.rows);
            request.after = page.next;
            if request.after.is_none() || members.len() >= wanted {
                break;
            }
        }
        members.truncate(USERS_MAX);
        Ok(shown(&found, &members))
    };
    in_turn_of_all(&api, &caller, work).await.map(Json)
}

fn shown(found: &ConversationHead, members: &[GroupMember]) -> Value {
    let names: Vec<&str> = members.iter().map(|it| it.user.as_str()).collect();
    let above = members.iter().filter(|it| it.member.role > Role::Member);
    let roles: BTreeMap<&str, &str> = above.map(|it| (it.user.as_str(), it.member.role.word())).collect();
    let muted: Vec<&str> = members.iter().filter(|it| it.member.muted).map(|it| it.user.as_str()).collect();
    let Described { name, meta, settings } = Described::of(&found.head.settings);
    json!({
        "id": id_of(&found.conversation),
        "conversation": found.conversation.as_str(),
        "count": found.members,
        "name": name,
        "meta": meta,
        "members": names,
        "roles": roles,
        "muted": muted,
        "settings": settings,
    })
}

/// Returns the current member, if there is one.
///
/// # Errors
/// `NOT_FOUND` if there is no such group; `NOT_YET` if the store may lack it, or the member.
pub(super) async fn member_of(
    api: &Api,
    caller: &Caller,
    group: ConversationId,
    user: UserId,
) -> Result<Option<GroupMember>, Problem> {
    let work = move |store: Arc<dyn Store>, absence: Absence| async move {
        let summary = store.summary(&group, Some(&user)).await.map_err(unavailable)?;
        let summary = summary.filter(|it| it.head.deleted_seq == 0).ok_or_else(|| absent(absence))?;
        let found = summary.member_view.map(|view| view.member).filter(|member| member.is_in());
        match found {
            None if absence == Absence::InDoubt => Err(NOT_STORED.into()),
            found => Ok(found.map(|member| GroupMember { user, member })),
        }
    };
    in_turn_of_all(api, caller, work).await
}

async fn member_page(
    store: &dyn Store,
    request: &MembersRequest,
    absence: Absence,
) -> Result<ListPage<GroupMember, UserId>, Problem> {
    store.member_page(request).await.map_err(unavailable)?.ok_or_else(|| absent(absence))
}

/// Returns the refusal for a user of the path who is not a member.
pub(super) fn not_a_member() -> ProblemDetails {
    Problem(Code::NotAMember, String::new()).with_status(StatusCode::NOT_FOUND)
}

/// Returns the refusal for a group that the store does not have.
fn absent(absence: Absence) -> Problem {
    match absence {
        Absence::Known => Problem(Code::NotFound, String::new()),
        Absence::InDoubt => NOT_STORED.into(),
    }
}

fn listed(it: &ConversationHead) -> Value {
    json!({
        "id": id_of(&it.conversation),
        "name": Described::of(&it.head.settings).name,
        "count": it.members,
        "maxSeq": it.head.last_seq,
    })
}

fn member(it: &GroupMember) -> Value {
    json!({
        "user": it.user.as_str(),
        "role": it.member.role.word(),
        "muted": it.member.muted,
        "joinedSeq": it.member.joined_seq,
    })
}

fn id_of(group: &ConversationId) -> &str {
    match group.kind() {
        ConversationKind::Group(id) => id,
        ConversationKind::Direct(..) | ConversationKind::Room(_) => group.as_str(),
    }
}

/// Parses the word of a role.
pub(super) fn role(word: &str) -> Result<Role, Problem> {
    Role::from_word(word).ok_or_else(|| bad("role: one of member, admin, owner"))
}
