//! Lists of the live rooms of a shard and of their members, in order of their names.
//!
//! Rooms are few and always sorted. The members of a room are sorted once a list of them is asked for, a few slots at a
//! time, and kept in order while it is in use; so a page costs what it returns. Slots do not move, unlike the places in
//! the array of a room: a member that stays is in every pass over them.

use std::{collections::BTreeSet, ops::Bound, time::Duration};

use smallvec::SmallVec;
use tidegate_protocol::{Time, id::ConversationId};

use super::{Group, Hub, Link};
use crate::{
    link::{RoomCount, RoomMember},
    routes::Route,
};

/// Most rooms of a shard whose members are kept in order, in about 100 bytes each; the one that was listed longest ago
/// makes way for another. More than lists that a node makes at once.
const SORTED_ROOMS_MAX: usize = 8;

/// Time after its last page for which the members of a room are kept in order.
const SORTED_KEPT: Duration = Duration::from_secs(30);

/// Rooms whose members are in order.
#[derive(Default)]
pub(in crate::shard) struct RoomListings {
    rooms: Vec<SortedRoom>,
}

/// Members of a room in order, with their slots.
struct SortedRoom {
    room: ConversationId,
    members: BTreeSet<(RoomMember, u32)>,
    /// Slot up to which the members are known, exclusive; those that join later are added.
    sorted_to: u32,
    listed_at: Time,
}

impl RoomListings {
    /// Adds a member that has joined, if the members of the room are kept in order.
    pub(in crate::shard) fn joined(&mut self, room: &ConversationId, route: &Route, slot: u32) {
        if let Some(sorted) = self.rooms.iter_mut().find(|it| it.room == *room) {
            sorted.members.insert((RoomMember::of(route), slot));
        }
    }

    /// Removes a member that has left, or whose connection ends.
    pub(in crate::shard) fn left(&mut self, room: &ConversationId, route: &Route, slot: u32) {
        if let Some(sorted) = self.rooms.iter_mut().find(|it| it.room == *room) {
            sorted.members.remove(&(RoomMember::of(route), slot));
        }
    }

    /// Forgets the order of rooms that were not listed for a while.
    pub(in crate::shard) fn forget_idle(&mut self, now: Time) {
        self.rooms.retain(|it| now.since(it.listed_at) < SORTED_KEPT);
    }

    fn open(&mut self, room: &ConversationId, now: Time) -> &mut SortedRoom {
        let at = match self.rooms.iter().position(|it| it.room == *room) {
            Some(at) => at,
            None => {
                if self.rooms.len() >= SORTED_ROOMS_MAX {
                    let oldest = self.rooms.iter().enumerate().min_by_key(|(_, it)| it.listed_at);
                    let oldest = oldest.map_or(0, |(at, _)| at);
                    self.rooms.swap_remove(oldest);
                }
                let (room, members) = (room.clone(), BTreeSet::new());
                self.rooms.push(SortedRoom { room, members, sorted_to: 0, listed_at: now });
                self.rooms.len() - 1
            }
        };
        let sorted = &mut self.rooms[at];
        sorted.listed_at = now;
        sorted
    }
}

impl Hub {
    /// Returns the first live rooms above `after`, in order.
    pub(in crate::shard) fn rooms(&self, after: Option<&ConversationId>, limit: usize) -> Vec<RoomCount> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rooms = self.rooms.range::<ConversationId, _>((from, Bound::Unbounded));
        rooms.filter_map(|room| self.room(room)).take(limit).collect()
    }

    /// Returns a live room; `None` if it has no member on this shard.
    pub(in crate::shard) fn room(&self, room: &ConversationId) -> Option<RoomCount> {
        let index = self.ids.get(room)?;
        self.groups.get(*index as usize).and_then(room_count)
    }

    /// Returns the first members of a live room above `after`, in order, at most one for each device; `None` while not all
    /// are in order: then `slots` more have been sorted, and the caller asks again. `name` names the member in a slot, if
    /// its connection is open.
    pub(in crate::shard) fn sorted_members(
        &mut self,
        room: &ConversationId,
        after: Option<&RoomMember>,
        limit: usize,
        slots: u32,
        name: impl Fn(u32) -> Option<RoomMember>,
    ) -> Option<Vec<RoomMember>> {
        let Some(group) = self.ids.get(room).copied() else { return Some(Vec::new()) };
        let end = u32::try_from(self.links.len()).unwrap_or(u32::MAX);
        let is_in = |links: &[SmallVec<[Link; 3]>], slot: u32| {
            links.get(slot as usize).is_some_and(|it| it.iter().any(|link| link.group == group))
        };
        let sorted = self.listings.open(room, self.now);
        let to = sorted.sorted_to.saturating_add(slots).min(end).max(sorted.sorted_to);
        let found = (sorted.sorted_to..to).filter(|slot| is_in(&self.links, *slot));
        sorted.members.extend(found.filter_map(|slot| Some((name(slot)?, slot))));
        sorted.sorted_to = to;
        if to < end {
            return None;
        }
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded((after.clone(), u32::MAX)));
        let listed = sorted.members.range((from, Bound::Unbounded));
        let open =
            listed.filter(|(member, slot)| is_in(&self.links, *slot) && name(*slot).as_ref() == Some(member));
        let mut members: Vec<RoomMember> = Vec::new();
        for (member, _) in open {
            if members.last() == Some(member) {
                continue;
            }
            if members.len() == limit {
                break;
            }
            members.push(member.clone());
        }
        Some(members)
    }
}

fn room_count(group: &Group) -> Option<RoomCount> {
    let connections = group.members_now() as u64;
    (connections > 0).then(|| RoomCount { room: group.id.clone(), connections })
}
