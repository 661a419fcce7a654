//! Live rooms of the shard and their members, as the admin API lists them.

use crate::{
    link::{RoomMember, RoomsPage, RoomsQuery},
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
}

/// Returns user and device of a connection; `None` before its login.
fn room_member(conn: &Conn) -> Option<RoomMember> {
    conn.login.as_deref().map(|login| RoomMember::of(&login.route))
}
