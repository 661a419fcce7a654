//! Requests of a live session other than Send: acks, pings, rooms, and Bye.

use super::{Action, Session, SessionLimits, State};
use crate::{
    Code, Time,
    id::{ConversationId, RoomId},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};
use std::time::Duration;

/// Message of the refusal of a join whose client was removed from the room meanwhile.
const REMOVED_FROM_ROOM: &str = "removed from the room";

/// Join without an outcome.
#[derive(Debug)]
pub(super) struct PendingJoin {
    id: u64,
    room: RoomId,
    end: Option<JoinEnd>,
}

/// Reason why a client left a room before its join had an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinEnd {
    /// The client itself left.
    Left,
    /// An administrator removed it.
    Removed,
}

impl Session {
    /// Handles the outcome of an [`Action::Join`]. A join for which [`Self::is_removed_join`] holds is refused with
    /// `NOT_A_MEMBER`.
    pub fn joined(
        &mut self,
        id: u64,
        room: &RoomId,
        outcome: Result<(), (Code, &str)>,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        let is_removed = self.end_join(id, room) == Some(JoinEnd::Removed);
        if !matches!(self.state, State::Live | State::Leaving { .. }) {
            return;
        }
        match outcome {
            // It is no mistake of the client, so it does not count as an error.
            Ok(()) if is_removed => {
                self.push_frame(id, ServerBody::Error(Code::NotAMember.error(REMOVED_FROM_ROOM)), out);
            }
            Ok(()) => self.done(id, out),
            Err((code, message)) => {
                self.forget_room(room);
                self.refuse(id, code, message, limits, out);
            }
        }
        self.update_reading(limits, now);
    }

    /// Refuses an [`Action::Join`], which was not carried out, because a rate limit is reached.
    pub fn join_limited(&mut self, id: u64, room: &RoomId, wait: Duration, out: &mut Vec<Action>) {
        self.join_deferred(id, room, Code::RateLimited.error_after("", wait), out);
    }

    /// Refuses an [`Action::Join`], which was not carried out, for the time that the error names.
    pub fn join_deferred(&mut self, id: u64, room: &RoomId, error: pb::Error, out: &mut Vec<Action>) {
        self.end_join(id, room);
        if matches!(self.state, State::Live | State::Leaving { .. }) {
            self.forget_room(room);
            self.push_frame(id, ServerBody::Error(error), out);
        }
    }

    pub(super) fn handle_request(
        &mut self,
        id: u64,
        body: ClientBody,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        match body {
            ClientBody::Send(send) => self.handle_send(id, send, limits, now, out),
            ClientBody::Ack(ack) => match ConversationId::parse(&ack.conversation) {
                Ok(conversation) => {
                    out.push(Action::Acked { conversation, seq: ack.seq });
                    self.done(id, out);
                }
                Err(error) => self.refuse(id, Code::BadId, &error.to_string(), limits, out),
            },
            ClientBody::Ping(ping) => self.handle_ping(id, &ping, limits, now, out),
            ClientBody::Pong(_) => {}
            ClientBody::NextId(_) => {
                let next_id = self.expected().map(|id| id.to_string()).unwrap_or_default();
                self.push_frame(id, ServerBody::NextIdIs(pb::NextIdIs { next_id }), out);
            }
            ClientBody::Join(join) => self.handle_join(id, &join.room, limits, out),
            ClientBody::Leave(leave) => self.handle_leave(id, &leave, limits, out),
            ClientBody::Bye(_) => {
                self.done(id, out);
                self.leave(Code::Bye, "", out);
            }
            ClientBody::Read(read) => self.handle_read(id, &read, limits, out),
            ClientBody::Recall(recall) => self.handle_recall(id, &recall, limits, out),
            ClientBody::Edit(edit) => self.handle_edit(id, edit, limits, out),
            ClientBody::Clear(clear) => self.handle_clear(id, &clear, limits, out),
            ClientBody::Hide(hide) => self.handle_hide(id, hide, limits, out),
            ClientBody::Signal(signal) => self.handle_signal(id, signal, limits, now, out),
            ClientBody::React(react) => self.handle_react(id, &react, limits, now, out),
            ClientBody::Watch(watch) => self.handle_watch(id, &watch, limits, out),
            ClientBody::Sync(sync) => self.handle_sync(id, &sync, limits, out),
            ClientBody::Pull(pull) => self.handle_pull(id, pull, limits, out),
            ClientBody::Refresh(refresh) => out.push(Action::Refresh { id, token: refresh.token }),
            // The caller closes the connection on a second Hello.
            ClientBody::Hello(_) => {}
        }
    }

    fn handle_join(&mut self, id: u64, room: &str, limits: &SessionLimits, out: &mut Vec<Action>) {
        match RoomId::addressable(room) {
            Err(error) => self.refuse(id, Code::BadId, &error.to_string(), limits, out),
            Ok(room) if self.rooms.contains(&room) => self.done(id, out),
            Ok(_) if self.rooms.len() >= limits.rooms_max => {
                self.refuse(id, Code::TooManyRooms, "", limits, out);
            }
            Ok(_) if self.places_taken() >= limits.rooms_max => self.refuse(id, Code::Busy, "", limits, out),
            Ok(room) => {
                self.rooms.push(room.clone());
                self.joining.push(PendingJoin { id, room: room.clone(), end: None });
                out.push(Action::Join { id, room });
            }
        }
    }

    fn handle_leave(&mut self, id: u64, leave: &pb::Leave, limits: &SessionLimits, out: &mut Vec<Action>) {
        if !leave.conversation.is_empty() {
            return self.handle_leave_group(id, leave, limits, out);
        }
        match RoomId::new(&leave.room) {
            Err(error) => self.refuse(id, Code::BadId, &error.to_string(), limits, out),
            Ok(room) => {
                if self.forget_room(&room) {
                    self.mark_joins(&room, JoinEnd::Left);
                    out.push(Action::Leave { room });
                }
                self.done(id, out);
            }
        }
    }

    /// Removes the client from a room on behalf of an administrator, and reports it; returns false if it neither is in it
    /// nor joins it. A join without an outcome is refused later, see [`Self::is_removed_join`].
    pub fn remove_from_room(&mut self, room: &RoomId, reason: &str, out: &mut Vec<Action>) -> bool {
        if matches!(self.state, State::Closed) || !self.forget_room(room) {
            return false;
        }
        self.mark_joins(room, JoinEnd::Removed);
        out.push(Action::Leave { room: room.clone() });
        let notice = pb::Notice {
            kind: pb::NoticeKind::RoomRemoved as i32,
            conversation: ConversationId::room(room).to_string(),
            message: reason.to_owned(),
            ..pb::Notice::default()
        };
        self.push_frame(0, ServerBody::Notice(notice), out);
        true
    }

    /// Returns whether an administrator has removed the client from the room since the [`Action::Join`] with this id, which
    /// then must not be carried out any more: the driver reports it as [`Self::joined`].
    pub fn is_removed_join(&self, id: u64, room: &RoomId) -> bool {
        let of_join = |it: &&PendingJoin| it.id == id && it.room == *room;
        self.joining.iter().find(of_join).is_some_and(|it| it.end == Some(JoinEnd::Removed))
    }

    /// Returns the number of joined rooms and of joins without an outcome: leaving a room that is being joined does not
    /// free its place yet.
    fn places_taken(&self) -> usize {
        let is_joined = |room: &&RoomId| !self.joining.iter().any(|it| it.room == **room);
        self.joining.len() + self.rooms.iter().filter(is_joined).count()
    }

    /// Ends a join that has its outcome; returns why the client left the room before, if it did.
    fn end_join(&mut self, id: u64, room: &RoomId) -> Option<JoinEnd> {
        let at = self.joining.iter().position(|it| it.id == id && it.room == *room)?;
        let ended = self.joining.remove(at);
        if self.joining.is_empty() {
            self.joining = Vec::new();
        }
        ended.end
    }

    /// Notes why the client leaves a room for its joins without an outcome; those that it left before keep their reason.
    fn mark_joins(&mut self, room: &RoomId, end: JoinEnd) {
        for join in self.joining.iter_mut().filter(|it| it.room == *room) {
            join.end.get_or_insert(end);
        }
    }

    /// Removes the room from the list; returns false if it was not in it.
    fn forget_room(&mut self, room: &RoomId) -> bool {
        let before = self.rooms.len();
        self.rooms.retain(|other| other != room);
        if self.rooms.is_empty() {
            self.rooms = Vec::new();
        }
        self.rooms.len() < before
    }

    pub(super) fn wall_ms(&self, now: Time) -> u64 {
        self.wall_zero.saturating_add(now.as_millis())
    }

    pub(super) fn pong(&self, id: u64, now: Time, out: &mut Vec<Action>) {
        let time = self.wall_ms(now);
        self.push_frame(id, ServerBody::Pong(pb::Pong { positions: Vec::new(), time }), out);
    }
}
