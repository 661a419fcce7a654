//! Frames waiting for one connection: bounded in bytes, three priorities, nothing kept when empty.
//!
//! Full is answered by the caller's rule: control overflow closes `SLOW`, conversation frames become one `Behind`
//! a conversation, room frames are dropped and counted for a `Shed` (DESIGN 4; flaws of `reliability.md` rows 43, 45).

use std::{collections::VecDeque, io, io::IoSlice};

use bytes::Bytes;
use tidegate_protocol::id::ConversationId;

/// Most slices handed to one `writev`.
const SLICES_MAX: usize = 64;

/// Most conversations that may be behind at once; above it the connection is slow for good.
const BEHIND_MAX: usize = 1_024;

/// Frames waiting for one connection.
#[derive(Default)]
pub(super) struct Outbox {
    /// The frame that is partly written already, and how much of it; it must end before anything else begins.
    current: Option<(Bytes, usize)>,
    control: VecDeque<Bytes>,
    normal: VecDeque<Bytes>,
    bulk: VecDeque<Bytes>,
    control_bytes: usize,
    data_bytes: usize,
    behind: Vec<(ConversationId, u64)>,
    shed: Vec<(ConversationId, u64)>,
}

/// Bounds of an outbox, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// For replies and other control frames.
    pub control: usize,
    /// For messages and room frames together.
    pub data: usize,
}

/// What a client is told once there is room: where it is behind and up to which seq, what was shed and how much.
pub(super) type Hints = (Vec<(ConversationId, u64)>, Vec<(ConversationId, u64)>);

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It waits in the outbox.
    Queued,
    /// Left out; its conversation is marked `Behind`.
    Behind,
    /// Dropped and counted.
    Shed,
    /// The connection must close `SLOW`.
    Overflow,
}

impl Outbox {
    /// Whether nothing waits to be written or told.
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none()
            && self.control.is_empty()
            && self.normal.is_empty()
            && self.bulk.is_empty()
            && self.behind.is_empty()
            && self.shed.is_empty()
    }

    /// Bytes waiting.
    pub(super) fn bytes(&self) -> usize {
        self.control_bytes
            + self.data_bytes
            + self.current.as_ref().map_or(0, |(frame, done)| frame.len() - done)
    }

    /// A reply or another control frame.
    pub(super) fn push_control(&mut self, frame: Bytes, caps: Caps) -> Pushed {
        if self.control_bytes + frame.len() > caps.control {
            return Pushed::Overflow;
        }
        self.control_bytes += frame.len();
        self.control.push_back(frame);
        Pushed::Queued
    }

    /// The last words of a connection that closes: behind everything that waits, never before it.
    pub(super) fn push_last(&mut self, frame: Bytes) {
        self.data_bytes += frame.len();
        self.bulk.push_back(frame);
    }

    /// A part of the answer to a query: there is one at a time, and it is bounded, so it is not refused.
    pub(super) fn push_answer(&mut self, frame: Bytes) {
        self.data_bytes += frame.len();
        self.normal.push_back(frame);
    }

    /// The rest of a frame of which `done` bytes are written; only while nothing else is under way.
    pub(super) fn push_rest(&mut self, frame: Bytes, done: usize) {
        debug_assert!(self.current.is_none());
        self.current = Some((frame, done));
    }

    /// A message of a conversation.
    pub(super) fn push_normal(
        &mut self,
        frame: Bytes,
        conversation: &ConversationId,
        seq: u64,
        caps: Caps,
    ) -> Pushed {
        if let Some(entry) = self.behind.iter_mut().find(|(id, _)| id == conversation) {
            entry.1 = entry.1.max(seq);
            return Pushed::Behind;
        }
        if self.is_over(frame.len(), caps) {
            return self.mark_behind(conversation, seq);
        }
        self.data_bytes += frame.len();
        self.normal.push_back(frame);
        Pushed::Queued
    }

    /// One frame always fits, however large, or it could never be delivered at all.
    fn is_over(&self, bytes: usize, caps: Caps) -> bool {
        self.data_bytes > 0 && self.data_bytes + bytes > caps.data
    }

    /// Room frames that were lost on the way here: told like those that found no room. 0 = nobody knows how many, which is
    /// told apart from those that were counted.
    pub(super) fn add_shed(&mut self, room: &ConversationId, count: u64) {
        match self.shed.iter_mut().find(|(id, before)| id == room && (*before == 0) == (count == 0)) {
            Some(entry) => entry.1 += count,
            None => self.shed.push((room.clone(), count)),
        }
    }

    /// Tells the client later that it lacks messages of `conversation` up to `seq`.
    pub(super) fn mark_behind(&mut self, conversation: &ConversationId, seq: u64) -> Pushed {
        let full = self.behind.len() >= BEHIND_MAX;
        match self.behind.iter_mut().find(|(id, _)| id == conversation) {
            Some(entry) => entry.1 = entry.1.max(seq),
            None if full => return Pushed::Overflow,
            None => self.behind.push((conversation.clone(), seq)),
        }
        Pushed::Behind
    }

    /// A frame of a live room: the lossy class.
    pub(super) fn push_bulk(&mut self, frame: Bytes, room: &ConversationId, caps: Caps) -> Pushed {
        if self.is_over(frame.len(), caps) {
            self.add_shed(room, 1);
            return Pushed::Shed;
        }
        self.data_bytes += frame.len();
        self.bulk.push_back(frame);
        Pushed::Queued
    }

    /// Everything but the frame under way is given up, because the connection closes.
    pub(super) fn abandon(&mut self) {
        *self = Self { current: self.current.take(), ..Self::default() };
    }

    /// What is to be told once there is room: (behind, shed). Empty unless the queues are.
    pub(super) fn take_hints(&mut self) -> Option<Hints> {
        let idle = self.current.is_none() && self.normal.is_empty() && self.bulk.is_empty();
        if idle { self.take_hints_now() } else { None }
    }

    /// The same, without waiting for room: the connection closes.
    pub(super) fn take_hints_now(&mut self) -> Option<Hints> {
        (!self.behind.is_empty() || !self.shed.is_empty())
            .then(|| (std::mem::take(&mut self.behind), std::mem::take(&mut self.shed)))
    }

    /// Writes as much as `write` takes, in priority order; `WouldBlock` ends it without an error.
    ///
    /// # Errors
    /// Passes on what `write` says, and `WriteZero`.
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

    fn slices(&self) -> smallvec::SmallVec<[IoSlice<'_>; SLICES_MAX]> {
        let current = self.current.iter().map(|(frame, done)| IoSlice::new(&frame[*done..]));
        let queued =
            self.control.iter().chain(&self.normal).chain(&self.bulk).map(|frame| IoSlice::new(frame));
        current.chain(queued).take(SLICES_MAX).collect()
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

    /// Takes `step` bytes a call, `total` in all, then blocks.
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
    fn control_overtakes_messages_but_never_cuts_a_frame_under_way() {
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
    fn a_full_outbox_turns_a_conversation_into_one_behind_hint() {
        let (mut outbox, g) = (Outbox::default(), conversation("g:g"));
        assert_eq!(outbox.push_normal(vec![0; 25].into(), &g, 1, CAPS), Pushed::Queued);
        assert_eq!(outbox.push_normal(vec![0; 25].into(), &g, 2, CAPS), Pushed::Behind);
        assert_eq!(outbox.push_normal(vec![0; 1].into(), &g, 3, CAPS), Pushed::Behind, "no seq after a hole");
        assert_eq!(outbox.push_normal(vec![0; 1].into(), &conversation("g:h"), 9, CAPS), Pushed::Queued);
        assert!(outbox.take_hints().is_none(), "told only when there is room");
        drain(&mut outbox, 100, 100);
        assert_eq!(outbox.take_hints(), Some((vec![(g, 3)], vec![])));
        assert!(outbox.is_empty());
    }

    #[test]
    fn room_frames_are_dropped_and_counted() {
        let (mut outbox, r) = (Outbox::default(), conversation("r:r"));
        outbox.push_bulk(vec![0; 30].into(), &r, CAPS);
        assert_eq!(outbox.push_bulk(vec![0; 1].into(), &r, CAPS), Pushed::Shed);
        assert_eq!(outbox.push_bulk(vec![0; 1].into(), &r, CAPS), Pushed::Shed);
        // What nobody has counted is told apart.
        [0, 3, 0].iter().for_each(|count| outbox.add_shed(&r, *count));
        drain(&mut outbox, 100, 100);
        assert_eq!(outbox.take_hints(), Some((vec![], vec![(r.clone(), 5), (r, 0)])));
    }

    #[test]
    fn last_words_come_behind_all_that_waits() {
        let (mut outbox, g) = (Outbox::default(), conversation("g:g"));
        outbox.push_normal(Bytes::from_static(b"message"), &g, 1, CAPS);
        outbox.push_last(Bytes::from_static(b"close"));
        assert_eq!(drain(&mut outbox, 100, 100), b"messageclose");
        assert_eq!(outbox.bytes(), 0);
    }

    #[test]
    fn replies_that_are_never_read_overflow() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.push_control(vec![0; 20].into(), CAPS), Pushed::Queued);
        assert_eq!(outbox.push_control(vec![0; 1].into(), CAPS), Pushed::Overflow);
    }
}
