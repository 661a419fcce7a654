//! Live rooms of the shard and their members, as the admin API lists them, and removes members.

use tidegate_protocol::id::{ConversationId, RoomId};

use crate::{
    link::{RoomMember, RoomRemoval, RoomsPage, RoomsQuery},
    net::io::Io,
    shard::{Shard, conn::Conn},
};

/// Most slots that are read for one mail, to sort the members of a room.
const SLOTS_PER_MAIL: u32 = 4_096;

impl<I: Io> Shard<I> {
    /// Returns the first rooms or members that a query asks for; `None` if it must be asked again, because the members of
    /// the room are not all in order yet.
    pub(in crate::shard) fn list_rooms(&mut self, query: &RoomsQuery) -> Option<RoomsPage> {
        let limit = query.limit();
        Some(match query {
            RoomsQuery::All { after, .. } => RoomsPage::Rooms(self.hub.rooms(after.as_ref(), limit)),
            RoomsQuery::One(room) => RoomsPage::Rooms(self.hub.room(room).into_iter().collect()),
            RoomsQuery::Members { room, after, .. } => {
                let conns = &self.conns;
                let name = |slot| conns.peek(slot).filter(|conn| conn.is_open()).and_then(room_member);
                let members = self.hub.sorted_members(room, after.as_ref(), limit, SLOTS_PER_MAIL, name)?;
                RoomsPage::Members(members)
            }
        })
    }

    /// Removes connections of a user from a room, and reports it to their clients; returns how many were in it, or had a join
    /// without an answer, which is refused. What waits of the room for a client is dropped.
    pub(in crate::shard) fn remove_from_room(&mut self, removal: &RoomRemoval) -> u64 {
        let slots = self.slots_of_device(&removal.user, removal.device.as_ref());
        slots
            .into_iter()
            .map(|slot| u64::from(self.remove_slot_from_room(slot, &removal.room, &removal.reason)))
            .sum()
    }

    /// Removes a connection from a room, and reports it to its client; returns false if it was neither in it nor joining it.
    pub(super) fn remove_slot_from_room(&mut self, slot: u32, room: &RoomId, reason: &str) -> bool {
        let mut is_removed = false;
        self.with_conn(slot, |shard, conn| {
            let out = &mut shard.buffers.actions;
            if !conn.session.remove_from_room(room, reason, out) {
                return;
            }
            is_removed = true;
            if let Some(outbox) = &mut conn.outbox {
                outbox.drop_room(&ConversationId::room(room));
            }
            shard.act(conn);
            shard.resume(conn);
            shard.flush(conn);
        });
        is_removed
    }
}

/// Returns user and device of a connection; `None` before its login.
fn room_member(conn: &Conn) -> Option<RoomMember> {
    conn.login.as_deref().map(|login| RoomMember::of(&login.route))
}
