//! Frames of live rooms that wait for one connection, in four classes with a common order.
//!
//! **Promise.** Frames are written in the order in which they came, whatever their classes, so that the order of a speaker
//! holds across a change of its class. When the queue is full, the oldest frames of the lowest class below that of the
//! new frame go, just as many as needed; if that is not enough, only the new frame goes. So a frame is lost only to frames of
//! higher classes, or to a connection that does not read.
//!
//! **Memory.** At most the bytes that the caller allows with each frame; nothing while empty but four empty queues. One frame
//! always fits into an empty queue, however large, or it could never be delivered.

use super::room_sample::ROOM_CLASSES;
use std::collections::VecDeque;

/// Frame with its order number and its size.
#[derive(Clone, Debug)]
struct QueuedFrame<T> {
    order: u64,
    bytes: usize,
    frame: T,
}

/// Frames of live rooms of one connection.
#[derive(Clone, Debug)]
pub struct RoomOutbox<T> {
    /// Frames by class, oldest first.
    classes: [VecDeque<QueuedFrame<T>>; ROOM_CLASSES],
    /// Bytes of each class, and of all.
    class_bytes: [usize; ROOM_CLASSES],
    bytes: usize,
    next_order: u64,
    dropped: [u64; ROOM_CLASSES],
}

impl<T> Default for RoomOutbox<T> {
    fn default() -> Self {
        Self {
            classes: std::array::from_fn(|_| VecDeque::new()),
            class_bytes: [0; ROOM_CLASSES],
            bytes: 0,
            next_order: 0,
            dropped: [0; ROOM_CLASSES],
        }
    }
}

impl<T> RoomOutbox<T> {
    /// Queues a frame of a class; a larger one counts as 3. The queue may hold so many bytes now. Returns the frames that
    /// were dropped, oldest first, or the new one.
    pub fn push(&mut self, class: u8, bytes: usize, frame: T, bytes_max: usize) -> Vec<T> {
        let class = usize::from(class).min(ROOM_CLASSES - 1);
        let excess = (self.bytes.saturating_add(bytes)).saturating_sub(bytes_max);
        let below = self.class_bytes[..class].iter().sum::<usize>();
        // Frames are dropped only if the new one fits then.
        if excess > 0 && self.bytes > 0 && below < excess.min(self.bytes) {
            self.dropped[class] += 1;
            return vec![frame];
        }
        let mut dropped = Vec::new();
        while self.bytes > 0 && self.bytes.saturating_add(bytes) > bytes_max {
            let Some(lowest) = (0..class).find(|class| !self.classes[*class].is_empty()) else { break };
            let Some(oldest) = self.classes[lowest].pop_front() else { break };
            self.bytes -= oldest.bytes;
            self.class_bytes[lowest] -= oldest.bytes;
            self.dropped[lowest] += 1;
            dropped.push(oldest.frame);
        }
        self.bytes += bytes;
        self.class_bytes[class] += bytes;
        self.classes[class].push_back(QueuedFrame { order: self.next_order, bytes, frame });
        self.next_order += 1;
        dropped
    }

    /// Removes the frame to write next.
    pub fn pop(&mut self) -> Option<T> {
        let first = |class: &VecDeque<QueuedFrame<T>>| class.front().map(|queued| queued.order);
        let heads =
            self.classes.iter().enumerate().filter_map(|(class, frames)| Some((first(frames)?, class)));
        let (_, class) = heads.min()?;
        let queued = self.classes[class].pop_front()?;
        self.bytes -= queued.bytes;
        self.class_bytes[class] -= queued.bytes;
        self.free_if_empty();
        Some(queued.frame)
    }

    /// Removes the frames that `keeps` refuses. They do not count as dropped.
    pub fn retain(&mut self, mut keeps: impl FnMut(&T) -> bool) {
        for (frames, class_bytes) in self.classes.iter_mut().zip(&mut self.class_bytes) {
            frames.retain(|queued| {
                let is_kept = keeps(&queued.frame);
                if !is_kept {
                    *class_bytes -= queued.bytes;
                    self.bytes -= queued.bytes;
                }
                is_kept
            });
        }
        self.free_if_empty();
    }

    /// Frees the queues of an idle connection, which keeps no memory.
    fn free_if_empty(&mut self) {
        if self.bytes == 0 && self.is_empty() {
            self.classes = std::array::from_fn(|_| VecDeque::new());
        }
    }

    /// Returns the frames in the order in which they are written.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let mut next = [0; ROOM_CLASSES];
        std::iter::from_fn(move || {
            let heads = self.classes.iter().zip(next).enumerate();
            let heads = heads.filter_map(|(class, (frames, at))| Some((frames.get(at)?, class)));
            let (queued, class) = heads.min_by_key(|(queued, _)| queued.order)?;
            next[class] += 1;
            Some(&queued.frame)
        })
    }

    /// Returns whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.classes.iter().all(VecDeque::is_empty)
    }

    /// Returns the number of frames that wait.
    pub fn len(&self) -> usize {
        self.classes.iter().map(VecDeque::len).sum()
    }

    /// Returns the bytes of the frames that wait.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the frames of each class that were dropped since the last call.
    pub fn take_dropped(&mut self) -> [u64; ROOM_CLASSES] {
        std::mem::take(&mut self.dropped)
    }
}
