//! Admin API of closed live rooms: which they are, and their closing and opening.

use axum::{Extension, Json, extract::State, http::StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::ConversationId};

use super::{
    connections::parse_reason,
    rooms::{RoomPageQuery, id_of, page_of_rooms, room, with_closure},
};
use crate::{
    api::{
        Api, Problem, ProblemDetails,
        access::Caller,
        blocks::entries::{RecordToPut, TTLS_MS, bad, put_record, record_view, remove_record, with_change},
        conversations::{
            Parameters,
            cursor::{CursorPosition, ListName},
        },
        extract::{IdPath, JsonObject},
        problem::refusal,
    },
    cluster::{CLOSED_ROOMS_MAX, ClosedRooms},
    store::{GuardKey, GuardKind, GuardOutcome, TOMBSTONE_MS},
};

/// List of the closed rooms.
const CLOSED_ROOMS: ListName<'static> = ListName { name: "closed-rooms", filters: &[] };

/// Body of a change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct RoomChange {
    closed: bool,
    reason: Option<String>,
    ttl_ms: Option<u64>,
}

/// Returns a page of the closed rooms, as this node knows them, sorted by id.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    query: Parameters<RoomPageQuery>,
) -> Result<Json<Value>, Problem> {
    let (after, limit) = page_of_rooms(&CLOSED_ROOMS, query)?;
    let mut rows = api.cluster.closed_rooms.list(after.as_ref(), limit + 1);
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let shown = rows.iter().map(|(room, closed)| {
        let mut row = record_view(closed);
        row["room"] = id_of(room).into();
        row
    });
    let next = rows.last().filter(|_| has_more).map(|(room, _)| CursorPosition::Key(room.clone()));
    Ok(Json(CLOSED_ROOMS.with_next(json!({"rooms": shown.collect::<Vec<_>>()}), next)))
}

/// Closes a room on all nodes, or opens it again.
pub(in crate::api) async fn change(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
    JsonObject(change): JsonObject<RoomChange>,
) -> Result<Json<Value>, ProblemDetails> {
    let (room, RoomChange { closed, reason, ttl_ms }) = (room(&id)?, change);
    let key = GuardKey::new(GuardKind::ClosedRoom, id_of(&room)).map_err(|error| bad(error.to_string()))?;
    let shown = json!({"room": id_of(&room)});
    if !closed {
        if reason.is_some() || ttl_ms.is_some() {
            return Err(bad("reason, ttlMs: only with \"closed\": true".to_owned()).into());
        }
        let change = remove_record(&api, &key).await?;
        return Ok(Json(with_change(with_closure(shown, None), &change)));
    }
    refuse_beyond_max(&api.cluster.closed_rooms, &room)?;
    let record = RecordToPut { key, reason: parse_reason(reason)?, ttl_ms, ttls: TTLS_MS };
    let (closure, change) = put_record(&api, &caller, record).await?;
    if let GuardOutcome::Full(kind) = change.outcome {
        let (max, minutes) = (kind.entries_max(), TOMBSTONE_MS / 60_000);
        let message = format!(
            "{max} rooms are closed, or were opened in the last {minutes} minutes, which is the maximum"
        );
        let cure = format!("Open some of GET /v1/closed-rooms, or repeat it after {minutes} minutes.");
        return Err(refusal(StatusCode::CONFLICT, Code::Conflict, &message, &cure));
    }
    Ok(Json(with_change(with_closure(shown, Some(&closure)), &change)))
}

/// Refuses to close one room more than the maximum, as this node knows the closed rooms. Rooms that several nodes close within
/// the same moment may exceed it by some.
fn refuse_beyond_max(rooms: &ClosedRooms, room: &ConversationId) -> Result<(), ProblemDetails> {
    if rooms.count() < CLOSED_ROOMS_MAX || rooms.contains(room) {
        return Ok(());
    }
    let message = format!("{CLOSED_ROOMS_MAX} rooms are closed, which is the maximum");
    let cure = "Open some of GET /v1/closed-rooms first.";
    Err(refusal(StatusCode::CONFLICT, Code::Conflict, &message, cure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bans::{Ban, BanRecord};

    #[test]
    fn rooms_in_force_are_bounded_and_one_that_is_opened_leaves_its_place() {
        let rooms = ClosedRooms::default();
        let room = |name: &str| ConversationId::parse(&format!("r:{name}")).unwrap();
        let closed = || Some(Ban { record: BanRecord::default(), until_ms: None });
        (0..CLOSED_ROOMS_MAX).for_each(|n| rooms.set(&room(&n.to_string()), closed()));
        assert!(refuse_beyond_max(&rooms, &room("hall")).is_err());
        assert!(refuse_beyond_max(&rooms, &room("7")).is_ok(), "it gets another reason or end");
        rooms.set(&room("7"), None);
        assert!(refuse_beyond_max(&rooms, &room("hall")).is_ok());
    }
}
