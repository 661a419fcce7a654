//! Lists of the live rooms of a shard, a few entries of the index at a time.

use tidegate_protocol::id::ConversationId;

use super::{Group, Hub, VACANT};
use crate::link::RoomCount;

impl Hub {
    /// Returns the live rooms above `after` among `count` entries of the index from `from` on, and the entry to go on at, if
    /// there may be more.
    pub(in crate::shard) fn rooms(
        &self,
        from: u32,
        count: u32,
        after: Option<&ConversationId>,
    ) -> (Vec<RoomCount>, Option<u32>) {
        let end = u32::try_from(self.groups.capacity()).unwrap_or(u32::MAX);
        let to = from.saturating_add(count).min(end);
        let entries = (from..to).filter_map(|index| self.groups.get(index as usize));
        let listed = entries.filter(|group| group.is_room && after.is_none_or(|after| group.id > *after));
        (listed.filter_map(room_count).collect(), (to < end).then_some(to))
    }

    /// Returns a live room; `None` if it has no member on this shard.
    pub(in crate::shard) fn room(&self, room: &ConversationId) -> Option<RoomCount> {
        let index = self.ids.get(room)?;
        self.groups.get(*index as usize).and_then(room_count)
    }

    /// Returns the connections among `count` members of a conversation from `from` on, and where to go on, if there may be
    /// more.
    pub(in crate::shard) fn some_members(
        &self,
        conversation: &ConversationId,
        from: u32,
        count: u32,
    ) -> (Vec<u32>, Option<u32>) {
        let group = self.ids.get(conversation).and_then(|index| self.groups.get(*index as usize));
        let Some(group) = group else { return (Vec::new(), None) };
        let end = u32::try_from(group.members.len()).unwrap_or(u32::MAX);
        let to = from.saturating_add(count).min(end);
        let members = group.members.get(from as usize..to as usize).unwrap_or_default();
        (members.iter().copied().filter(|slot| *slot != VACANT).collect(), (to < end).then_some(to))
    }
}

fn room_count(group: &Group) -> Option<RoomCount> {
    let connections = group.members_now() as u64;
    (connections > 0).then(|| RoomCount { room: group.id.clone(), connections })
}
