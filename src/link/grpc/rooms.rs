//! Conversion between live rooms and the messages of `link.proto`.

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, RoomId},
    pb::{self, link_rooms_query::Of},
};

use super::{
    connections::reason,
    convert::{Malformed, all, any_device, device, put_any_device, user},
};
use crate::link::{RoomCount, RoomMember, RoomRemoval, RoomsPage, RoomsQuery};

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

pub(super) fn put_removal(removal: RoomRemoval) -> pb::LinkRoomRemoval {
    let RoomRemoval { room, user, device, reason } = removal;
    let device = put_any_device(device.as_ref());
    let room = ConversationId::room(&room).to_string();
    pb::LinkRoomRemoval { room, user: user.to_string(), device, reason }
}

pub(super) fn removal(sent: pb::LinkRoomRemoval) -> Result<RoomRemoval, Malformed> {
    Ok(RoomRemoval {
        room: room_id(&sent.room)?,
        user: user(&sent.user)?,
        device: any_device(&sent.device)?,
        reason: reason(sent.reason)?,
    })
}

fn put_member(member: RoomMember) -> pb::LinkRoomMember {
    pb::LinkRoomMember { user: member.user.to_string(), device: member.device.to_string() }
}

fn member(sent: pb::LinkRoomMember) -> Result<RoomMember, Malformed> {
    Ok(RoomMember { user: user(&sent.user)?, device: device(&sent.device)? })
}

fn room(sent: &str) -> Result<ConversationId, Malformed> {
    Ok(ConversationId::room(&room_id(sent)?))
}

fn room_id(sent: &str) -> Result<RoomId, Malformed> {
    match ConversationId::parse(sent).as_ref().map(ConversationId::kind) {
        Ok(ConversationKind::Room(id)) => RoomId::new(id).map_err(|_| Malformed("room")),
        _ => Err(Malformed("room")),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tidegate_protocol::id::{DeviceId, UserId};

    use super::*;

    /// The bytes are those of the first version with this call.
    #[test]
    fn removal_keeps_its_bytes_and_a_malformed_one_is_refused() {
        let all = RoomRemoval {
            room: RoomId::new("hall").unwrap(),
            user: UserId::new("ann").unwrap(),
            device: None,
            reason: "spam".to_owned(),
        };
        let body = Some(pb::link_call::Body::RoomRemoval(put_removal(all.clone())));
        let bytes = pb::LinkCall { id: 1, body }.encode_to_vec();
        assert_eq!(bytes, b"\x08\x01\x92\x01\x13\x0a\x06r:hall\x12\x03ann\x22\x04spam");
        let one = RoomRemoval { device: Some(DeviceId::new("phone").unwrap()), ..all.clone() };
        for it in [all.clone(), one] {
            assert_eq!(removal(put_removal(it.clone())), Ok(it));
        }
        let sent = put_removal(all);
        let refused = |sent: pb::LinkRoomRemoval| removal(sent).is_err();
        assert!(refused(pb::LinkRoomRemoval { room: "g:hall".into(), ..sent.clone() }));
        assert!(refused(pb::LinkRoomRemoval { user: String::new(), ..sent.clone() }));
        assert!(refused(pb::LinkRoomRemoval { device: "a b".into(), ..sent.clone() }));
        assert!(refused(pb::LinkRoomRemoval { reason: "x".repeat(121), ..sent }));
    }
}
