//! Outbox: the frames queued for one connection, bounded in bytes, in three priorities, freed when empty.
//!
//! When it is full, a control frame closes the connection with `SLOW`, conversation frames become one `Behind` per
//! conversation, and room frames are dropped, those of the lowest class first, and counted for a `Shed` (SPEC 4 and 7).

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    io::IoSlice,
};

use bytes::Bytes;
use tidegate_protocol::{
    id::ConversationId,
    machine::{room_outbox::RoomOutbox, room_sample::ROOM_CLASSES},
};

use crate::fault::planted::{Planted, is_planted};

/// Most slices passed to one `writev`.
const WRITE_SLICES_MAX: usize = 64;

/// Most conversations that may be behind at once; one more closes the connection with `SLOW`.
const BEHIND_CONVERSATIONS_MAX: usize = 1_024;

/// Frames queued for one connection, and the hints about omitted ones.
#[derive(Default)]
pub(super) struct Outbox {
    /// Frame in progress, with the bytes already written; no other frame may begin before its end.
    current: Option<(Bytes, usize)>,
    control: VecDeque<Bytes>,
    normal: VecDeque<Bytes>,
    /// Room frames, while there are any.
    rooms: Option<Box<RoomOutbox<RoomFrame>>>,
    /// Final frames of a closing connection.
    last: VecDeque<Bytes>,
    control_bytes: usize,
    data_bytes: usize,
    behind: BTreeMap<ConversationId, u64>,
    shed: Vec<(ConversationId, u64)>,
    /// Numbers of messages left out of rooms, of reports that did not fit.
    left_out: Vec<(ConversationId, u64)>,
}

/// Frame of a live room.
#[derive(Clone, Debug)]
pub(super) struct RoomFrame {
    pub(super) frame: Bytes,
    pub(super) room: ConversationId,
    /// Class of its sender.
    pub(super) class: u8,
    /// Whether it is a message, which is counted if it is shed.
    pub(super) is_message: bool,
    /// Number of messages left out of the room that it reports, which is reported later if it is shed.
    pub(super) left_out: u64,
    /// Number of messages that the member missed, which is reported later if this is shed.
    pub(super) missed: u64,
}

/// Limits of an outbox, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Limit for replies and other control frames.
    pub control: usize,
    /// Limit for messages and room frames together.
    pub data: usize,
}

/// Hints for a client about omitted frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hints {
    /// Conversations with the last omitted seq.
    pub(super) behind: Vec<(ConversationId, u64)>,
    /// Rooms with the number shed.
    pub(super) shed: Vec<(ConversationId, u64)>,
    /// Rooms with the number of messages left out.
    pub(super) left_out: Vec<(ConversationId, u64)>,
}

/// Outcome of a push into an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushOutcome {
    /// Queued in the outbox.
    Queued,
    /// Omitted; the conversation is marked `Behind`.
    Behind,
    /// Over the limit; the connection must close with `SLOW`.
    Overflow,
}

impl Outbox {
    /// Returns whether no frame and no hint waits.
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none()
            && self.control.is_empty()
            && self.normal.is_empty()
            && self.rooms.is_none()
            && self.last.is_empty()
            && self.behind.is_empty()
            && self.shed.is_empty()
            && self.left_out.is_empty()
    }

    /// Returns the bytes waiting to be written.
    pub(super) fn bytes(&self) -> usize {
        self.control_bytes
            + self.data_bytes
            + self.current.as_ref().map_or(0, |(frame, done)| frame.len() - done)
    }

    /// Queues a reply or another control frame.
    pub(super) fn push_control(&mut self, frame: Bytes, caps: Caps) -> PushOutcome {
        if self.control_bytes + frame.len() > caps.control {
            return PushOutcome::Overflow;
        }
        self.control_bytes += frame.len();
        self.control.push_back(frame);
        PushOutcome::Queued
    }

    /// Queues a final frame of a closing connection, after everything that waits.
    pub(super) fn push_final(&mut self, frame: Bytes) {
        self.data_bytes += frame.len();
        self.last.push_back(frame);
    }

    /// Queues a part of the answer to a query; never refused, since there is one bounded part at a time.
    pub(super) fn push_answer(&mut self, frame: Bytes) {
        self.data_bytes += frame.len();
        self.normal.push_back(frame);
    }

    /// Queues the rest of a frame of which `done` bytes are written; allowed only while no other frame is in progress.
    pub(super) fn push_rest(&mut self, frame: Bytes, done: usize) {
        debug_assert!(self.current.is_none());
        self.current = Some((frame, done));
    }

    /// Queues a message of a conversation, or marks the conversation as behind.
    pub(super) fn push_normal(
        &mut self,
        frame: Bytes,
        conversation: &ConversationId,
        seq: u64,
        caps: Caps,
    ) -> PushOutcome {
        if let Some(last) = self.behind.get_mut(conversation) {
            *last = seq.max(*last);
            return PushOutcome::Behind;
        }
        if self.is_over(frame.len(), caps) {
            return self.mark_behind(conversation, seq);
        }
        self.data_bytes += frame.len();
        self.normal.push_back(frame);
        PushOutcome::Queued
    }

    /// Returns whether a frame exceeds the limit. One frame always fits, however large, or it could never be delivered.
    fn is_over(&self, bytes: usize, caps: Caps) -> bool {
        self.data_bytes > 0 && self.data_bytes + bytes > caps.data
    }

    /// Adds room frames that were lost before this outbox to the `Shed` of the room. A `count` of 0 means an unknown
    /// number, which is reported separately.
    pub(super) fn add_shed(&mut self, room: &ConversationId, count: u64) {
        match self.shed.iter_mut().find(|(id, before)| id == room && (*before == 0) == (count == 0)) {
            Some(entry) => entry.1 += count,
            None => self.shed.push((room.clone(), count)),
        }
    }

    /// Adds messages that were left out of a room to those that are reported once the message queues are empty.
    fn add_left_out(&mut self, room: &ConversationId, count: u64) {
        match self.left_out.iter_mut().find(|(id, _)| id == room) {
            Some(entry) => entry.1 = entry.1.saturating_add(count),
            None => self.left_out.push((room.clone(), count)),
        }
    }

    /// Marks a conversation as behind: the client gets a hint that messages up to `seq` were omitted.
    pub(super) fn mark_behind(&mut self, conversation: &ConversationId, seq: u64) -> PushOutcome {
        if is_planted(Planted::BehindLost) {
            return PushOutcome::Behind;
        }
        let full = self.behind.len() >= BEHIND_CONVERSATIONS_MAX;
        match self.behind.get_mut(conversation) {
            Some(last) => *last = seq.max(*last),
            None if full => return PushOutcome::Overflow,
            None => drop(self.behind.insert(conversation.clone(), seq)),
        }
        PushOutcome::Behind
    }

    /// Queues a frame of a live room. Returns the number of frames of each class that are shed for lack of capacity: older
    /// ones of lower classes, or this one. The number of a report that is shed is kept.
    pub(super) fn push_room(&mut self, frame: RoomFrame, caps: Caps) -> [u64; ROOM_CLASSES] {
        let before = self.rooms.as_ref().map_or(0, |rooms| rooms.bytes());
        let (others, bytes) = (self.data_bytes - before, frame.frame.len());
        let shed = if others > 0 && others + bytes > caps.data {
            vec![frame]
        } else {
            let rooms = self.rooms.get_or_insert_with(Box::default);
            let shed = rooms.push(frame.class, bytes, frame, caps.data.saturating_sub(others));
            self.data_bytes = others + rooms.bytes();
            shed
        };
        let mut counts = [0; ROOM_CLASSES];
        for RoomFrame { room, class, is_message, left_out, missed, .. } in &shed {
            if *left_out > 0 {
                self.add_left_out(room, *left_out);
            }
            if *missed > 0 {
                self.add_shed(room, *missed);
            }
            if !is_message {
                continue;
            }
            counts[usize::from(*class).min(ROOM_CLASSES - 1)] += 1;
            self.add_shed(room, 1);
        }
        counts
    }

    /// Drops what waits of a room, with its hints, because the client was removed from it. A frame in progress goes on.
    pub(super) fn drop_room(&mut self, room: &ConversationId) {
        if let Some(rooms) = &mut self.rooms {
            self.data_bytes -= rooms.bytes();
            rooms.retain(|queued| queued.room != *room);
            self.data_bytes += rooms.bytes();
            if rooms.is_empty() {
                self.rooms = None;
            }
        }
        self.shed.retain(|(id, _)| id != room);
        self.left_out.retain(|(id, _)| id != room);
    }

    /// Drops everything except the frame in progress, because the connection closes.
    pub(super) fn abandon(&mut self) {
        *self = Self { current: self.current.take(), ..Self::default() };
    }

    /// Takes the hints once the message queues are empty.
    pub(super) fn take_hints(&mut self) -> Option<Hints> {
        let idle =
            self.current.is_none() && self.normal.is_empty() && self.rooms.is_none() && self.last.is_empty();
        if idle { self.take_hints_now() } else { None }
    }

    /// Takes the hints even if frames wait, because the connection closes.
    pub(super) fn take_hints_now(&mut self) -> Option<Hints> {
        let hints = Hints {
            behind: std::mem::take(&mut self.behind).into_iter().collect(),
            shed: std::mem::take(&mut self.shed),
            left_out: std::mem::take(&mut self.left_out),
        };
        (hints != Hints::default()).then_some(hints)
    }

    /// Writes as much as `write` takes, in priority order; `WouldBlock` ends the writing without an error.
    ///
    /// # Errors
    /// Returns other errors of `write`, and `WriteZero` if it takes nothing.
    pub(super) fn write_with(
        &mut self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut total = 0;
        loop {
            let written = {
                let slices = self.slices();
                if slices.is_empty() {
                    return Ok(total);
                }
                match write(&slices) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => written,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(total),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                }
            };
            total += written;
            self.advance(written);
        }
    }

    fn slices(&self) -> smallvec::SmallVec<[IoSlice<'_>; WRITE_SLICES_MAX]> {
        let current = self.current.iter().map(|(frame, done)| IoSlice::new(&frame[*done..]));
        let rooms = self.rooms.iter().flat_map(|rooms| rooms.iter()).map(|queued| &queued.frame);
        let queued = self.control.iter().chain(&self.normal).chain(rooms).chain(&self.last);
        current.chain(queued.map(|frame| IoSlice::new(frame))).take(WRITE_SLICES_MAX).collect()
    }

    fn advance(&mut self, mut written: usize) {
        while written > 0 {
            let (frame, done) = match self.current.take() {
                Some(current) => current,
                None => match self.pop() {
                    Some(frame) => (frame, 0),
                    None => return,
                },
            };
            let left = frame.len() - done;
            if written < left {
                self.current = Some((frame, done + written));
                return;
            }
            written -= left;
        }
    }

    fn pop(&mut self) -> Option<Bytes> {
        if let Some(frame) = self.control.pop_front() {
            self.control_bytes -= frame.len();
            return Some(frame);
        }
        let frame = self.normal.pop_front().or_else(|| self.pop_room()).or_else(|| self.last.pop_front())?;
        self.data_bytes -= frame.len();
        Some(frame)
    }

    fn pop_room(&mut self) -> Option<Bytes> {
        let rooms = self.rooms.as_mut()?;
        let queued = rooms.pop();
        if rooms.is_empty() {
            self.rooms = None;
        }
        queued.map(|queued| queued.frame)
    }
}

#[cfg(test)]
mod tests;
