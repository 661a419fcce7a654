//! Admin API of live rooms: which have members now on all nodes, who these are, and the removal of members.

use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, RoomId},
};

use super::connections::{names, parse_device, parse_reason, parse_user};
use crate::{
    api::{
        Api, Problem,
        blocks::entries::record_view,
        conversations::{
            Parameters, checked,
            cursor::{CursorPosition, ListName},
            limit_up_to,
        },
        extract::IdPath,
    },
    bans::Ban,
    connections::{MemberOnNode, RoomList, RoomListBusy, RoomOnNodes},
    link::RoomRemoval,
};

/// Most rooms or members of a page.
const PAGE_MAX: usize = 1_000;

/// Page of a list that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct RoomPageQuery {
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Returns the room after which a page of a list of rooms begins, and the most rooms of it.
pub(super) fn page_of_rooms(
    list: &ListName<'_>,
    query: Parameters<RoomPageQuery>,
) -> Result<(Option<ConversationId>, usize), Problem> {
    let RoomPageQuery { limit, cursor } = checked(query)?;
    let limit = limit_up_to(limit, PAGE_MAX)?;
    Ok((list.after_key(cursor.as_deref())?, limit))
}

/// List of the rooms that have members.
const ROOMS: ListName<'static> = ListName { name: "rooms", filters: &[] };

/// Returns a page of the rooms that have members now, sorted by id.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    query: Parameters<RoomPageQuery>,
) -> Result<Json<Value>, Problem> {
    let (after, limit) = page_of_rooms(&ROOMS, query)?;
    let RoomList { rows, has_more, silent } = api.connections.rooms(after, limit).await.map_err(busy)?;
    let shown: Vec<Value> = rows.iter().map(|it| shown(&api, it)).collect();
    let next = rows.last().filter(|_| has_more).map(|it| CursorPosition::Key(it.room.clone()));
    Ok(Json(ROOMS.with_next(json!({"rooms": shown, "silent": names(&silent)}), next)))
}

/// Returns one room. A room without members exists as every other one does.
pub(in crate::api) async fn one(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let room = room(&id)?;
    let RoomList { rows, silent, .. } = api.connections.room(room.clone()).await.map_err(busy)?;
    let none = RoomOnNodes { room, connections: 0, nodes: 0 };
    let mut body = shown(&api, rows.first().unwrap_or(&none));
    body["silent"] = names(&silent).into();
    Ok(Json(body))
}

/// Returns a page of the members of a room, sorted by user and device.
pub(in crate::api) async fn members(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
    query: Parameters<RoomPageQuery>,
) -> Result<Json<Value>, Problem> {
    let (room, query) = (room(&id)?, checked(query)?);
    let limit = limit_up_to(query.limit, PAGE_MAX)?;
    let list = ListName { name: "members", filters: &["r", &id] };
    let after = match query.cursor.as_deref().map(|cursor| list.position(cursor)).transpose()? {
        None => None,
        Some(CursorPosition::RoomMember(member)) => Some(member),
        Some(_) => return Err(Problem(Code::CursorInvalid, String::new())),
    };
    let RoomList { rows, has_more, silent } =
        api.connections.room_members(room, after, limit).await.map_err(busy)?;
    let shown = |it: &MemberOnNode| {
        json!({
            "user": it.member.user.as_str(),
            "device": it.member.device.as_str(),
            "node": it.run.node.as_str(),
        })
    };
    let next = rows.last().filter(|_| has_more).map(|it| CursorPosition::RoomMember(it.member.clone()));
    let shown: Vec<Value> = rows.iter().map(shown).collect();
    Ok(Json(list.with_next(json!({"members": shown, "silent": names(&silent)}), next)))
}

/// Removal of a user from a room, as a request describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct RemovalQuery {
    device: Option<String>,
    reason: Option<String>,
}

/// Removes a user from a live room on all nodes. The connections stay open, and may join again.
pub(in crate::api) async fn remove(
    State(api): State<Api>,
    IdPath((id, user)): IdPath<(String, String)>,
    query: Parameters<RemovalQuery>,
) -> Result<Json<Value>, Problem> {
    let (room, user, query) = (room_id(&id)?, parse_user(&user)?, checked(query)?);
    let device = query.device.as_deref().map(parse_device).transpose()?;
    let reason = parse_reason(query.reason)?;
    let removed = api.connections.remove_from_room(&RoomRemoval { room, user, device, reason }).await;
    Ok(Json(json!({"removed": removed.count, "silent": names(&removed.silent)})))
}

/// Refuses a list, so that its caller comes back soon.
fn busy(_: RoomListBusy) -> Problem {
    Problem(Code::Busy, "this node makes too many lists of rooms at once, or its shards are busy".to_owned())
}

pub(super) fn room(id: &str) -> Result<ConversationId, Problem> {
    Ok(ConversationId::room(&room_id(id)?))
}

fn room_id(id: &str) -> Result<RoomId, Problem> {
    RoomId::addressable(id).map_err(|error| Problem(Code::BadId, format!("room: {error}")))
}

/// Returns the id of a room.
pub(super) fn id_of(room: &ConversationId) -> &str {
    match room.kind() {
        ConversationKind::Room(id) => id,
        ConversationKind::Direct(..) | ConversationKind::Group(_) => room.as_str(),
    }
}

fn shown(api: &Api, it: &RoomOnNodes) -> Value {
    let body = json!({"room": id_of(&it.room), "count": it.connections, "nodes": it.nodes});
    with_closure(body, api.cluster.closed_rooms.get(&it.room).as_ref())
}

/// Adds whether a room is closed, and why, by whom, since when and until when.
pub(super) fn with_closure(mut body: Value, closure: Option<&Ban>) -> Value {
    body["closed"] = closure.is_some().into();
    if let Some(closure) = closure {
        body["closure"] = record_view(closure);
    }
    body
}
