//! Admin API of live rooms: which have members now on all nodes, and who these are.

use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, RoomId},
};

use super::connections::names;
use crate::{
    api::{
        Api, Problem,
        conversations::{
            Parameters, checked,
            cursor::{CursorPosition, ListName},
            limit_up_to,
        },
        extract::IdPath,
    },
    connections::{MemberOnNode, RoomList, RoomListBusy, RoomOnNodes},
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

/// Returns a page of the rooms that have members now, sorted by id.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    query: Parameters<RoomPageQuery>,
) -> Result<Json<Value>, Problem> {
    let query = checked(query)?;
    let limit = limit_up_to(query.limit, PAGE_MAX)?;
    let list = ListName { name: "rooms", filters: &[] };
    let after = list.after_key(query.cursor.as_deref())?;
    let RoomList { rows, has_more, silent } = api.connections.rooms(after, limit).await.map_err(busy)?;
    let mut body = json!({"rooms": rows.iter().map(shown).collect::<Vec<_>>(), "silent": names(&silent)});
    if let Some(last) = rows.last().filter(|_| has_more) {
        body["next"] = list.cursor(&CursorPosition::Key(last.room.clone())).into();
    }
    Ok(Json(body))
}

/// Returns one room. A room without members exists as every other one does.
pub(in crate::api) async fn one(
    State(api): State<Api>,
    IdPath(id): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let room = room(&id)?;
    let RoomList { rows, silent, .. } = api.connections.room(room.clone()).await.map_err(busy)?;
    let none = RoomOnNodes { room, connections: 0, nodes: 0 };
    let mut body = shown(rows.first().unwrap_or(&none));
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
    let mut body = json!({"members": rows.iter().map(shown).collect::<Vec<_>>(), "silent": names(&silent)});
    if let Some(last) = rows.last().filter(|_| has_more) {
        body["next"] = list.cursor(&CursorPosition::RoomMember(last.member.clone())).into();
    }
    Ok(Json(body))
}

/// Refuses a list, so that its caller comes back soon.
fn busy(_: RoomListBusy) -> Problem {
    Problem(Code::Busy, "this node makes too many lists of rooms at once, or its shards are busy".to_owned())
}

fn room(id: &str) -> Result<ConversationId, Problem> {
    let id = RoomId::addressable(id).map_err(|error| Problem(Code::BadId, format!("room: {error}")))?;
    Ok(ConversationId::room(&id))
}

fn shown(it: &RoomOnNodes) -> Value {
    let id = match it.room.kind() {
        ConversationKind::Room(id) => id,
        ConversationKind::Direct(..) | ConversationKind::Group(_) => it.room.as_str(),
    };
    json!({"room": id, "count": it.connections, "nodes": it.nodes})
}
