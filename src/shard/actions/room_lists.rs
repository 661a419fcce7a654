//! Live rooms of the shard and their members, as the admin API lists them.

use crate::{
    link::{RoomMember, RoomsPage, RoomsQuery},
    net::io::Io,
    shard::Shard,
};

/// Most entries of the index, or members of a room, that are read for one mail.
const ENTRIES_PER_MAIL: u32 = 4_096;

impl<I: Io> Shard<I> {
    /// Returns a part of the rooms or members that a query asks for, and where the next part begins, if there may be one.
    pub(in crate::shard) fn list_rooms(&self, query: &RoomsQuery, from: u32) -> (RoomsPage, Option<u32>) {
        let (found, next) = match query {
            RoomsQuery::All { after, .. } => {
                let (rooms, next) = self.hub.rooms(from, ENTRIES_PER_MAIL, after.as_ref());
                (RoomsPage::Rooms(rooms), next)
            }
            RoomsQuery::One(room) => (RoomsPage::Rooms(self.hub.room(room).into_iter().collect()), None),
            RoomsQuery::Members { room, after, .. } => {
                let (slots, next) = self.hub.some_members(room, from, ENTRIES_PER_MAIL);
                let members = slots.into_iter().filter_map(|slot| self.room_member(slot));
                let listed = members.filter(|member| after.as_ref().is_none_or(|after| member > after));
                (RoomsPage::Members(listed.collect()), next)
            }
        };
        let mut page = query.empty_page();
        page.merge(found, query.limit());
        (page, next)
    }

    fn room_member(&self, slot: u32) -> Option<RoomMember> {
        let conn = self.conns.peek(slot).filter(|conn| conn.is_open())?;
        let route = &conn.login.as_deref()?.route;
        Some(RoomMember { user: route.user.clone(), device: route.device.clone() })
    }
}
