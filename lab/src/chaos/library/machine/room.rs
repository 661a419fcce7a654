//! The live room of a device: it joins when its client starts, and sends while it is in.
//!
//! The library joins again after each reconnect without an event, so a connection counts as in the room from its first
//! message on. It repeats unanswered messages as well, and a room fans out each copy. After a kill it may also repeat those
//! that were answered just before, because it removes a message after it has reported the answer.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use rand::RngExt as _;
use serde_json::{Value, json};

use super::{super::message_names::is_label, AGAIN_TIME, Asked, LibraryClient};
use crate::checker::{HistoryEvent, Via};

/// Messages that go to the room while the device is in it, in percent.
const TO_ROOM: u32 = 10;

/// The room, and what was sent to it.
pub(super) struct Room {
    name: String,
    /// Whether the join of the present client was answered.
    is_joined: bool,
    /// Connection that is recorded as in the room.
    inside: Option<u64>,
    /// Unanswered messages: hash of the text, and number of repeats.
    unanswered: BTreeMap<String, (u64, u32)>,
    /// Messages that were answered within [`AGAIN_TIME`].
    answered: VecDeque<(Duration, String, (u64, u32))>,
    /// Messages that were answered just before a kill, until the next connection.
    again: Vec<(String, (u64, u32))>,
}

impl Room {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_joined: false,
            inside: None,
            unanswered: BTreeMap::new(),
            answered: VecDeque::new(),
            again: Vec::new(),
        }
    }

    /// Notes that the adapter was killed.
    pub(super) fn killed(&mut self, now: Duration) {
        self.forget_older(now);
        self.again.extend(self.answered.drain(..).map(|(_, cid, message)| (cid, message)));
    }

    fn forget_older(&mut self, now: Duration) {
        while self.answered.front().is_some_and(|(at, ..)| *at + AGAIN_TIME < now) {
            self.answered.pop_front();
        }
    }

    fn conv(&self) -> String {
        format!("r:{}", self.name)
    }
}

/// Returns whether a conversation is a live room.
pub(super) fn is_room(conv: &str) -> bool {
    conv.starts_with("r:")
}

impl LibraryClient {
    /// Asks the new client to join.
    pub(super) fn join(&mut self) {
        let Some(room) = &mut self.room else { return };
        (room.is_joined, room.inside) = (false, None);
        let name = room.name.clone();
        self.ask("join", json!({"room": name}), Asked::Join);
    }

    pub(super) fn joined(&mut self) {
        if let Some(room) = &mut self.room {
            room.is_joined = true;
        }
        self.enter();
    }

    /// Records that the connection is in the room, unless it is recorded.
    fn enter(&mut self) {
        let (Some(room), Some(session)) = (&mut self.room, self.connection) else { return };
        if room.inside.replace(session) != Some(session) {
            let (conv, node) = (room.conv(), self.node.clone());
            self.events.push(HistoryEvent::Joined { session, conv, node });
        }
    }

    /// Returns the room, if the next message is to go there. An offline client might send it after a restart, before it
    /// has joined again.
    pub(super) fn room_to_send(&mut self) -> Option<String> {
        let room = self.room.as_ref().filter(|room| room.is_joined && self.connection.is_some())?;
        let conv = room.conv();
        self.rng.random_ratio(TO_ROOM, 100).then_some(conv)
    }

    /// Records a send to the room over the present connection.
    pub(super) fn send_to_room(&mut self, conv: &str, cid: &str, body: u64, attempt: u32) {
        if let Some(room) = &mut self.room {
            room.unanswered.insert(cid.to_owned(), (body, attempt));
        }
        self.record_attempt(conv, cid, body, attempt);
    }

    fn record_attempt(&mut self, conv: &str, cid: &str, body: u64, attempt: u32) {
        let Some(session) = self.connection else { return };
        self.events.push(HistoryEvent::SendInv {
            user: self.profile.user.clone(),
            device: self.profile.device.clone(),
            session,
            conv: conv.to_owned(),
            cid: cid.to_owned(),
            body,
            attempt,
            chained: false,
        });
    }

    /// Records that messages may be sent again, over a new connection.
    pub(super) fn repeat_to_room(&mut self) {
        let Some(room) = &mut self.room else { return };
        let (conv, unanswered) = (room.conv(), room.unanswered.clone());
        for (cid, (body, attempt)) in std::mem::take(&mut room.again) {
            self.record_attempt(&conv, &cid, body, attempt + 1);
        }
        for (cid, (body, attempt)) in unanswered {
            self.send_to_room(&conv, &cid, body, attempt + 1);
        }
    }

    /// Notes the answer to a message. Returns whether it is one to the room that may have been sent several times.
    pub(super) fn is_repeated_to_room(&mut self, cid: &str, now: Duration) -> bool {
        let Some(room) = &mut self.room else { return false };
        let Some(message) = room.unanswered.remove(cid) else { return false };
        room.forget_older(now);
        room.answered.push_back((now, cid.to_owned(), message));
        message.1 > 0
    }

    /// Notes the answer to a client that is gone: its successor may have the message from the store, and repeats it over
    /// its first connection.
    pub(super) fn note_late_answer(&mut self, event: &Value, now: Duration) {
        let is_of_former = event["as"].is_string() && self.connection.is_none();
        if let Some(room) = self.room.as_mut().filter(|_| is_of_former) {
            room.killed(now);
        }
    }

    /// Returns whether an ack can't be attributed: a room stores nothing by which the id of the library has a name.
    pub(super) fn is_nameless(event: &Value, cid: &str) -> bool {
        event["conversation"].as_str().is_some_and(is_room) && !is_label(cid)
    }

    /// Records a message of the room.
    pub(super) fn show_in_room(&mut self, conv: String, seq: u64, cid: String, body: u64) {
        self.enter();
        let Some(session) = self.connection else { return };
        let (user, device) = (self.profile.user.clone(), self.profile.device.clone());
        let (cid, via) = (Some(cid), Via::Push);
        self.events.push(HistoryEvent::Recv { user, device, session, conv, seq, cid, body, via });
    }

    /// Records what the room has dropped.
    pub(super) fn shed(&mut self, event: &Value) {
        let Some(session) = self.connection else { return };
        let room = event["room"].as_str().unwrap_or_default();
        let (conv, count) = (format!("r:{}", room.trim_start_matches("r:")), &event["count"]);
        self.events.push(HistoryEvent::Shed { session, conv, count: count.as_u64().unwrap_or_default() });
    }
}
