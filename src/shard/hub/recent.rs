//! Recent messages of live rooms, for members that join: those whose pass over the members has begun, so that a member gets
//! each message either from here or from its pass.

use std::collections::{BTreeMap, VecDeque};

use tidegate_protocol::id::ConversationId;

use super::{Group, Hub};
use crate::mail::Delivery;

/// Most bytes of the recent messages of one room, and of all rooms of one shard.
const ROOM_BYTES_MAX: usize = 16 * 1024;
const SHARD_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Recent messages of a room with their order numbers on the shard, oldest first.
#[derive(Default)]
pub(super) struct RecentMessages {
    messages: VecDeque<(u64, Delivery)>,
    bytes: usize,
}

/// Recent messages of all rooms of a shard.
#[derive(Default)]
pub(super) struct RecentTotal {
    bytes: usize,
    next_order: u64,
    /// Rooms by the order number of their oldest message.
    oldest: BTreeMap<u64, u32>,
}

impl RecentMessages {
    fn oldest(&self) -> Option<u64> {
        self.messages.front().map(|(order, _)| *order)
    }

    fn pop(&mut self) -> usize {
        let bytes = self.messages.pop_front().map_or(0, |(_, oldest)| oldest.weight());
        self.bytes -= bytes;
        bytes
    }
}

impl RecentTotal {
    /// Removes the recent messages of a room.
    fn forget(&mut self, group: &mut Group) {
        let Some(recent) = group.recent.take() else { return };
        self.bytes -= recent.bytes;
        if let Some(oldest) = recent.oldest() {
            self.oldest.remove(&oldest);
        }
    }
}

impl Hub {
    /// Returns the recent messages of a room, oldest first, as many as its rule allows.
    pub(in crate::shard) fn recent(&self, room: &ConversationId) -> Vec<Delivery> {
        let group = self.ids.get(room).map(|group| &self.groups[*group as usize]);
        let recent = group.and_then(|group| group.recent.as_deref());
        recent.into_iter().flat_map(|recent| &recent.messages).map(|(_, message)| message.clone()).collect()
    }

    /// Keeps messages whose pass begins. What does not fit is forgotten: the oldest messages of the room, and all of the rooms
    /// with the oldest messages if the shard has no space left.
    pub(super) fn keep_recent(&mut self, index: u32, batch: &[Delivery]) {
        let (group, total) = (&mut self.groups[index as usize], &mut self.recent);
        let last = self.room_rules.of_room(&group.id).last as usize;
        if last == 0 {
            return total.forget(group);
        }
        let recent = group.recent.get_or_insert_with(Box::default);
        let before = recent.oldest();
        for message in batch.iter().filter(|message| message.is_message()) {
            recent.bytes += message.weight();
            total.bytes += message.weight();
            recent.messages.push_back((total.next_order, message.clone()));
            total.next_order += 1;
        }
        while recent.messages.len() > last || recent.bytes > ROOM_BYTES_MAX {
            total.bytes -= recent.pop();
        }
        let oldest = recent.oldest();
        if before != oldest {
            before.map(|order| total.oldest.remove(&order));
            oldest.map(|order| total.oldest.insert(order, index));
        }
        while total.bytes > SHARD_BYTES_MAX
            && let Some((_, index)) = total.oldest.pop_first()
        {
            total.forget(&mut self.groups[index as usize]);
        }
    }

    /// Forgets the recent messages of a room that is closed.
    pub(super) fn forget_recent(&mut self, group: &mut Group) {
        self.recent.forget(group);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_protocol::{codec::PushFrame, pb};

    use super::*;
    use crate::{
        directory::Directory,
        mail::Audience,
        room_rules::{RoomRule, RoomRules},
    };

    fn message(room: &ConversationId, seq: u64) -> Delivery {
        let push = pb::Push { msg_id: "x".repeat(3_000), ..Default::default() };
        let frame = pb::ServerFrame { id: 0, body: Some(pb::server_frame::Body::Push(push)) };
        Delivery {
            conversation: room.clone(),
            seq,
            audience: Audience::Members,
            frame: Arc::new(PushFrame::new(&frame)),
            origin: None,
            tracked: false,
            class: 0,
        }
    }

    #[test]
    fn full_shard_forgets_the_room_with_the_oldest_messages() {
        let mut hub = Hub::new(0, Arc::new(Directory::default()));
        let rule = RoomRule { last: 1, ..RoomRule::default() };
        hub.set_room_rules(Arc::new(RoomRules::parse(rule, &[]).unwrap()));
        let rooms: Vec<_> =
            (0..1_400).map(|n| ConversationId::parse(&format!("r:room-{n}")).unwrap()).collect();
        rooms.iter().for_each(|room| assert!(hub.join(room, 1)));
        for (seq, room) in (1..).zip(&rooms) {
            hub.push(message(room, seq));
            // The first room is busy all the time.
            hub.push(message(&rooms[0], seq));
            while hub.next_work(1_000).is_some() {}
        }
        assert!(hub.recent.bytes <= SHARD_BYTES_MAX);
        let has_recent = |n: usize| !hub.recent(&rooms[n]).is_empty();
        assert!(has_recent(0) && has_recent(1_399) && has_recent(1_300), "the newest");
        assert!(!has_recent(1) && !has_recent(2), "the oldest");
        let kept = (0..rooms.len()).filter(|n| has_recent(*n)).count();
        assert_eq!(hub.recent.oldest.len(), kept);
        rooms.iter().for_each(|room| assert!(hub.leave(room, 1)));
        assert_eq!((hub.recent.bytes, hub.recent.oldest.len()), (0, 0));
    }
}
