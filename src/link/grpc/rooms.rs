//! Conversion between live rooms and the messages of `link.proto`.

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, DeviceId, UserId},
    pb::{self, link_rooms_query::Of},
};

use super::convert::{Malformed, all};
use crate::link::{RoomCount, RoomMember, RoomsPage, RoomsQuery};

pub(super) fn put_query(query: RoomsQuery) -> pb::LinkRoomsQuery {
    let limit = u32::try_from(query.limit()).unwrap_or(u32::MAX);
    let of = match query {
        RoomsQuery::All { after, .. } => {
            Of::All(pb::LinkRoomsAfter { room: after.map(|after| after.to_string()).unwrap_or_default() })
        }
        RoomsQuery::One(room) => Of::One(room.to_string()),
        RoomsQuery::Members { room, after, .. } => {
            let after = after.map(put_member);
            Of::Members(pb::LinkMembersAfter { room: room.to_string(), after })
        }
    };
    pb::LinkRoomsQuery { of: Some(of), limit }
}

pub(super) fn query(sent: pb::LinkRoomsQuery) -> Result<RoomsQuery, Malformed> {
    let limit = (sent.limit as usize).min(RoomsQuery::LIMIT_MAX);
    Ok(match sent.of.ok_or(Malformed("query of rooms"))? {
        Of::All(pb::LinkRoomsAfter { room: after }) => {
            let after = Some(after).filter(|after| !after.is_empty());
            RoomsQuery::All { after: after.map(|after| room(&after)).transpose()?, limit }
        }
        Of::One(sent) => RoomsQuery::One(room(&sent)?),
        Of::Members(pb::LinkMembersAfter { room: sent, after }) => {
            RoomsQuery::Members { room: room(&sent)?, after: after.map(member).transpose()?, limit }
        }
    })
}

pub(super) fn put_page(page: RoomsPage) -> pb::LinkRooms {
    let (rooms, members) = match page {
        RoomsPage::Rooms(rooms) => (rooms, Vec::new()),
        RoomsPage::Members(members) => (Vec::new(), members),
    };
    let count = |it: RoomCount| pb::LinkRoomCount { room: it.room.to_string(), connections: it.connections };
    pb::LinkRooms {
        rooms: rooms.into_iter().map(count).collect(),
        members: members.into_iter().map(put_member).collect(),
    }
}

/// Returns the reply to a query. One with rows of another kind, or with more than were asked for, is malformed.
pub(super) fn page(sent: pb::LinkRooms, query: &RoomsQuery) -> Result<RoomsPage, Malformed> {
    if sent.rooms.len().max(sent.members.len()) > query.limit() {
        return Err(Malformed("number of rooms"));
    }
    let count = |it: pb::LinkRoomCount| {
        let room = room(&it.room)?;
        Ok(RoomCount { room, connections: it.connections })
    };
    match query {
        RoomsQuery::All { .. } | RoomsQuery::One(_) if sent.members.is_empty() => {
            Ok(RoomsPage::Rooms(all(sent.rooms, count)?))
        }
        RoomsQuery::Members { .. } if sent.rooms.is_empty() => {
            Ok(RoomsPage::Members(all(sent.members, member)?))
        }
        _ => Err(Malformed("kind of rooms")),
    }
}

fn put_member(member: RoomMember) -> pb::LinkRoomMember {
    pb::LinkRoomMember { user: member.user.to_string(), device: member.device.to_string() }
}

fn member(sent: pb::LinkRoomMember) -> Result<RoomMember, Malformed> {
    let user = UserId::new(&sent.user).map_err(|_| Malformed("user id"))?;
    let device = DeviceId::new(&sent.device).map_err(|_| Malformed("device id"))?;
    Ok(RoomMember { user, device })
}

fn room(sent: &str) -> Result<ConversationId, Malformed> {
    let room = ConversationId::parse(sent).ok();
    let room = room.filter(|room| matches!(room.kind(), ConversationKind::Room(_)));
    room.ok_or(Malformed("room"))
}
