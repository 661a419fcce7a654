//! Requests of a live session other than Send: acks, pings, rooms, and Bye.

use super::{Action, Session, SessionLimits, State};
use crate::{
    Code, Time,
    id::{ConversationId, RoomId},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};
use std::time::Duration;

impl Session {
    /// Handles the outcome of an [`Action::Join`].
    pub fn joined(
        &mut self,
        id: u64,
        room: &RoomId,
        outcome: Result<(), (Code, &str)>,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        self.end_join(room);
        if !matches!(self.state, State::Live | State::Leaving { .. }) {
            return;
        }
        match outcome {
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
        self.end_join(room);
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
                self.joining.push(room.clone());
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
                    out.push(Action::Leave { room });
                }
                self.done(id, out);
            }
        }
    }

    /// Returns the number of joined rooms and of joins without an outcome: leaving a room that is being joined does not
    /// free its place yet.
    fn places_taken(&self) -> usize {
        let is_joined = |room: &&RoomId| !self.joining.contains(room);
        self.joining.len() + self.rooms.iter().filter(is_joined).count()
    }

    fn end_join(&mut self, room: &RoomId) {
        if let Some(at) = self.joining.iter().position(|joining| joining == room) {
            self.joining.remove(at);
        }
        if self.joining.is_empty() {
            self.joining = Vec::new();
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
