//! Closed live rooms on a shard: their members leave, and what is asked of them is refused.
//!
//! A join looks at the closed rooms before it is indexed, on the thread that also removes the members: so each member is
//! refused there or removed here.

use std::{collections::BTreeSet, sync::Arc};

use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, RoomId},
    machine::session::SubmitRefusal,
};

use crate::{
    bans::Ban,
    entry_board::ChangedKeys,
    net::io::Io,
    shard::{Shard, conn::Conn},
};

/// Most members that are removed in one turn.
const MEMBERS_PER_TURN: usize = 256;

/// Rooms whose members leave.
#[derive(Default)]
pub(in crate::shard) struct ClosingRooms {
    /// Version of the closed rooms that is applied, or that the removals apply.
    version: u64,
    /// Closed rooms that had members on this shard when they were noted.
    rooms: BTreeSet<ConversationId>,
}

impl ClosingRooms {
    /// Returns whether members are left to remove.
    pub(in crate::shard) fn is_running(&self) -> bool {
        !self.rooms.is_empty()
    }
}

impl<I: Io> Shard<I> {
    /// Removes the members of closed rooms, at most as many as one turn may.
    pub(in crate::shard) fn apply_closed_rooms(&mut self) {
        let board = &self.context.cluster.closed_rooms;
        if !self.closing_rooms.is_running() && board.version() == self.closing_rooms.version {
            return;
        }
        let board = Arc::clone(board);
        if board.version() != self.closing_rooms.version {
            let (changed, version) = board.changed_since(self.closing_rooms.version);
            self.closing_rooms.version = version;
            let rooms = match changed {
                ChangedKeys::Named(rooms) => rooms,
                ChangedKeys::Many => board.list(None, usize::MAX).into_iter().map(|(room, _)| room).collect(),
            };
            let has_members = |room: &ConversationId| self.hub.room(room).is_some();
            self.closing_rooms.rooms.extend(rooms.into_iter().filter(has_members));
        }
        let mut left = MEMBERS_PER_TURN;
        while left > 0
            && let Some(room) = self.closing_rooms.rooms.first().cloned()
        {
            // It may be open again.
            let closed = board.get(&room);
            let removed = closed.map_or(0, |closed| self.remove_members(&room, &closed.record.reason, left));
            if removed < left {
                self.closing_rooms.rooms.remove(&room);
            }
            left -= removed;
        }
    }

    /// Removes at most `limit` members of a room; returns how many.
    fn remove_members(&mut self, conversation: &ConversationId, reason: &str, limit: usize) -> usize {
        let ConversationKind::Room(room) = conversation.kind() else { return 0 };
        let Ok(room) = RoomId::new(room) else { return 0 };
        let slots = self.hub.some_members_of(conversation, limit);
        for slot in &slots {
            if !self.remove_slot_from_room(*slot, &room, reason) {
                // The session has left the room, as after the refusal of another join.
                self.with_conn(*slot, |shard, conn| shard.leave_room(conn, &room));
            }
        }
        self.context.metrics.room_closed_removals.increment(slots.len() as u64);
        slots.len()
    }

    /// Refuses a join of a closed room; returns false if the room is open.
    pub(in crate::shard) fn refuse_closed_join(
        &mut self,
        conn: &mut Conn,
        id: u64,
        room: &RoomId,
        conversation: &ConversationId,
    ) -> bool {
        let closed = self.context.cluster.closed_rooms.get(conversation);
        let Some(closed) = closed else { return false };
        self.context.metrics.room_closed_refusals.increment(1);
        let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
        let refusal = Err((Code::RoomClosed, &*closed.record.reason));
        conn.session.joined(id, room, refusal, limits, self.now, out);
        true
    }

    /// Refuses a message to a closed room.
    pub(in crate::shard) fn refuse_closed_send(&mut self, conn: &mut Conn, ticket: u64, closed: &Ban) {
        self.context.metrics.room_closed_refusals.increment(1);
        let refusal = SubmitRefusal { message: &closed.record.reason, ..Code::RoomClosed.into() };
        let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
        conn.session.submit_refused(ticket, refusal, limits, self.now, out);
    }
}
