//! Reactions to live rooms, and the numbers of a room for a connection that joins.

use tidegate_protocol::{
    Code,
    id::{ConversationId, RoomId},
    machine::reactions::ReactionKind,
};

use crate::{
    limits::LimitCall,
    mail::Delivery,
    net::io::Io,
    room_tallies::ReactionRefusal,
    shard::{Shard, conn::Conn},
};

/// Refusal of a kind that the operator has not listed.
const UNLISTED: (Code, &str) = (Code::Forbidden, "reaction: this kind is not among those of this node");

/// Refusal of a kind beyond the first ones of the room.
const KINDS_USED: (Code, &str) = (Code::Busy, "reaction: the room has as many kinds as it can have");

/// Refusal of a reaction to one room more.
const ROOMS_USED: (Code, &str) = (Code::Busy, "reaction: too many rooms of the node have reactions");

/// Refusal of a reaction that would begin those of one room more for the user.
const USER_ROOMS_USED: (Code, &str) = (
    Code::Busy,
    "reaction: you were the first to react in as many rooms as you may; react after others, or when those rooms have ended",
);

impl<I: Io> Shard<I> {
    /// Counts a reaction of a connection to a room that it is in.
    pub(in crate::shard) fn react(&mut self, conn: &mut Conn, id: u64, room: &RoomId, kind: ReactionKind) {
        let room = ConversationId::room(room);
        // One that is not in the room must not use up what the rules admit for its members.
        let counted = Some(&room).filter(|room| self.hub.is_in(room, conn.key.slot));
        if !self.admit_signal(conn, id, LimitCall::React, &room, counted) {
            return;
        }
        let closed = self.context.cluster.closed_rooms.get(&room);
        let outcome = match &closed {
            Some(closed) => {
                self.context.metrics.room_closed_refusals.increment(1);
                Err((Code::RoomClosed, &*closed.record.reason))
            }
            None => self.count_reaction(conn, &room, kind),
        };
        match outcome {
            Ok(()) => self.context.metrics.room_reactions.increment(1),
            Err((Code::NotAMember, _)) => {}
            Err(_) => self.context.metrics.room_reactions_refused.increment(1),
        }
        self.answer_signal(conn, id, outcome);
    }

    fn count_reaction(
        &self,
        conn: &Conn,
        room: &ConversationId,
        kind: ReactionKind,
    ) -> Result<(), (Code, &'static str)> {
        if !self.hub.is_in(room, conn.key.slot) {
            return Err((Code::NotAMember, "join the room first"));
        }
        if !self.context.room_rules.get().has_reaction(kind) {
            return Err(UNLISTED);
        }
        let Some(login) = &conn.login else { return Err((Code::NotAMember, "join the room first")) };
        let counted = self.context.rooms.tallies().react(room, kind, &login.route.user);
        counted.map_err(|refusal| match refusal {
            ReactionRefusal::TooManyKinds => KINDS_USED,
            ReactionRefusal::TooManyRooms => ROOMS_USED,
            ReactionRefusal::TooManyRoomsOfUser => USER_ROOMS_USED,
        })
    }

    /// Queues the members and reactions of a room for a connection that has joined it.
    pub(super) fn queue_room_stats(&mut self, conn: &mut Conn, room: &ConversationId) {
        let Some(stats) = self.context.rooms.tallies().latest(room) else { return };
        let delivery = Delivery::room_stats(room, stats);
        let wire = self.conns.hot[conn.key.slot as usize].wire;
        self.queue(conn, &delivery, delivery.frame.bytes(wire).clone());
    }

    /// Passes the numbers of members that have changed since the last call to the tallies of the node. Those that they
    /// have no place for are passed again with the next call.
    pub(in crate::shard) fn report_members(&mut self) {
        for (room, members) in self.hub.take_member_changes() {
            if !self.context.rooms.tallies().set_members(&room, self.context.index, members) {
                self.hub.note_uncounted(&room);
            }
        }
    }
}
