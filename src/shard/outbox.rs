//! Outbox: the frames queued for one connection, bounded in bytes, in three priorities, freed when empty.
//!
//! When it is full, a control frame closes the connection with `SLOW`, conversation frames become one `Behind` per
//! conversation, and room frames are dropped and counted for a `Shed` (SPEC 4 and 7).

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    io::IoSlice,
};

use bytes::Bytes;
use tidegate_protocol::id::ConversationId;

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
    bulk: VecDeque<Bytes>,
    control_bytes: usize,
    data_bytes: usize,
    behind: BTreeMap<ConversationId, u64>,
    shed: Vec<(ConversationId, u64)>,
}

/// Limits of an outbox, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Limit for replies and other control frames.
    pub control: usize,
    /// Limit for messages and room frames together.
    pub data: usize,
}

/// Hints for a client about omitted frames: conversations with the last omitted seq, rooms with the number shed.
pub(super) type Hints = (Vec<(ConversationId, u64)>, Vec<(ConversationId, u64)>);

/// Outcome of a push into an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushOutcome {
    /// Queued in the outbox.
    Queued,
    /// Omitted; the conversation is marked `Behind`.
    Behind,
    /// Dropped, and counted for a `Shed`.
    Shed,
    /// Over the limit; the connection must close with `SLOW`.
    Overflow,
}

impl Outbox {
    /// Returns whether no frame and no hint waits.
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none()
            && self.control.is_empty()
            && self.normal.is_empty()
            && self.bulk.is_empty()
            && self.behind.is_empty()
            && self.shed.is_empty()
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
        self.bulk.push_back(frame);
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

    /// Queues a frame of a live room, or sheds it.
    pub(super) fn push_bulk(&mut self, frame: Bytes, room: &ConversationId, caps: Caps) -> PushOutcome {
        if self.is_over(frame.len(), caps) {
            self.add_shed(room, 1);
            return PushOutcome::Shed;
        }
        self.data_bytes += frame.len();
        self.bulk.push_back(frame);
        PushOutcome::Queued
    }

    /// Drops everything except the frame in progress, because the connection closes.
    pub(super) fn abandon(&mut self) {
        *self = Self { current: self.current.take(), ..Self::default() };
    }

    /// Takes the hints once the message queues are empty.
    pub(super) fn take_hints(&mut self) -> Option<Hints> {
        let idle = self.current.is_none() && self.normal.is_empty() && self.bulk.is_empty();
        if idle { self.take_hints_now() } else { None }
    }

    /// Takes the hints even if frames wait, because the connection closes.
    pub(super) fn take_hints_now(&mut self) -> Option<Hints> {
        (!self.behind.is_empty() || !self.shed.is_empty())
            .then(|| (std::mem::take(&mut self.behind).into_iter().collect(), std::mem::take(&mut self.shed)))
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
        let queued =
            self.control.iter().chain(&self.normal).chain(&self.bulk).map(|frame| IoSlice::new(frame));
        current.chain(queued).take(WRITE_SLICES_MAX).collect()
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
        let frame = self.normal.pop_front().or_else(|| self.bulk.pop_front())?;
        self.data_bytes -= frame.len();
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: Caps = Caps { control: 20, data: 30 };

    fn conversation(text: &str) -> ConversationId {
        ConversationId::parse(text).unwrap()
    }

    /// Writes `step` bytes per call and `total` in all, then blocks.
    fn drain(outbox: &mut Outbox, step: usize, total: usize) -> Vec<u8> {
        let mut out = Vec::new();
        outbox
            .write_with(|slices| {
                let room = step.min(total - out.len());
                if room == 0 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let flat: Vec<u8> =
                    slices.iter().flat_map(|slice| slice.iter().copied()).take(room).collect();
                out.extend_from_slice(&flat);
                Ok(flat.len())
            })
            .unwrap();
        out
    }

    #[test]
    fn control_overtakes_messages_but_not_a_frame_in_progress() {
        let (mut outbox, g) = (Outbox::default(), conversation("g:g"));
        outbox.push_normal(Bytes::from_static(b"first"), &g, 1, CAPS);
        outbox.push_normal(Bytes::from_static(b"second"), &g, 2, CAPS);
        outbox.push_bulk(Bytes::from_static(b"room"), &conversation("r:r"), CAPS);
        assert_eq!(drain(&mut outbox, 2, 2), b"fi");
        outbox.push_control(Bytes::from_static(b"!"), CAPS);
        assert_eq!(drain(&mut outbox, 3, 100), b"rst!secondroom");
        assert!(outbox.is_empty());
        assert_eq!(outbox.bytes(), 0);
    }

    #[test]
    fn full_outbox_turns_a_conversation_into_one_behind_hint() {
        let (mut outbox, g) = (Outbox::default(), conversation("g:g"));
        assert_eq!(outbox.push_normal(vec![0; 25].into(), &g, 1, CAPS), PushOutcome::Queued);
        assert_eq!(outbox.push_normal(vec![0; 25].into(), &g, 2, CAPS), PushOutcome::Behind);
        assert_eq!(
            outbox.push_normal(vec![0; 1].into(), &g, 3, CAPS),
            PushOutcome::Behind,
            "no seq after a hole"
        );
        assert_eq!(outbox.push_normal(vec![0; 1].into(), &conversation("g:h"), 9, CAPS), PushOutcome::Queued);
        assert!(outbox.take_hints().is_none(), "hints wait until the queues are empty");
        drain(&mut outbox, 100, 100);
        assert_eq!(outbox.take_hints(), Some((vec![(g, 3)], vec![])));
        assert!(outbox.is_empty());
    }

    #[test]
    fn room_frames_are_dropped_and_counted() {
        let (mut outbox, r) = (Outbox::default(), conversation("r:r"));
        outbox.push_bulk(vec![0; 30].into(), &r, CAPS);
        assert_eq!(outbox.push_bulk(vec![0; 1].into(), &r, CAPS), PushOutcome::Shed);
        assert_eq!(outbox.push_bulk(vec![0; 1].into(), &r, CAPS), PushOutcome::Shed);
        // An unknown count is reported separately.
        [0, 3, 0].iter().for_each(|count| outbox.add_shed(&r, *count));
        drain(&mut outbox, 100, 100);
        assert_eq!(outbox.take_hints(), Some((vec![], vec![(r.clone(), 5), (r, 0)])));
    }

    #[test]
    fn final_frames_follow_everything_queued() {
        let (mut outbox, g) = (Outbox::default(), conversation("g:g"));
        outbox.push_normal(Bytes::from_static(b"message"), &g, 1, CAPS);
        outbox.push_final(Bytes::from_static(b"close"));
        assert_eq!(drain(&mut outbox, 100, 100), b"messageclose");
        assert_eq!(outbox.bytes(), 0);
    }

    #[test]
    fn unread_replies_overflow_at_the_control_limit() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.push_control(vec![0; 20].into(), CAPS), PushOutcome::Queued);
        assert_eq!(outbox.push_control(vec![0; 1].into(), CAPS), PushOutcome::Overflow);
    }
}
