//! Best-effort queues, one per peer, for messages that may be lost. They carry live rooms, signals and marks, and
//! pushes of large groups while a node topic accepts none.
//!
//! These queues are separate from those of answers and pushes, so no conversation is ever delayed by them. Each queue
//! is bounded in bytes, with different limits: signals are the first to be dropped, then tallies of rooms, notices, and marks the last. A room's losses are
//! counted and reported to its members on the peer (`docs/internals/adr/0012-rooms-across-nodes.md`). Nothing is sent twice.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tidegate_protocol::id::ConversationId;
use tokio::runtime::Handle;

use super::{BestEffortMessage, Link, LinkError};
use crate::{
    metrics::Metrics,
    priorities::class_share,
    queue_set::{EndedQueues, Next, Queue, QueueSet},
    routes::NodeBoot,
    supervised,
};

/// Limit on the messages queued for one peer.
const QUEUED_MESSAGES_MAX: usize = 16_384;

/// Queue size above which signals are dropped.
const SIGNAL_QUEUE_BYTES_MAX: usize = 256 * 1024;

/// Queue size above which tallies of rooms are dropped: they are repeated, and leave the rest to messages of rooms.
const TALLY_QUEUE_BYTES_MAX: usize = 512 * 1024;

/// Queue size above which notices are dropped.
const NOTICE_QUEUE_BYTES_MAX: usize = 1024 * 1024;

/// Queue size above which room messages are dropped.
const ROOM_QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Queue size above which everything else is dropped.
const MARK_QUEUE_BYTES_MAX: usize = 5 * 1024 * 1024;

/// Approximate size of one call; a larger message is sent alone.
const CALL_BYTES_TARGET: usize = 256 * 1024;

/// Size that a message, an id or a count adds to its content.
const ENTRY_BYTES: usize = 64;

/// Limit on the rooms whose losses are reported to one peer; losses of further rooms are only counted.
const REPORTED_ROOMS_MAX: usize = 4_096;

/// Delay between attempts to report losses to a peer.
const LOSS_REPORT_INTERVAL: Duration = Duration::from_millis(300);

/// Attempts to report losses while no other message is queued.
const LOSS_REPORT_ATTEMPTS: u32 = 20;

/// Best-effort queues of a node, one per peer.
pub struct BestEffortQueues {
    link: Arc<dyn Link>,
    runtime: Handle,
    metrics: Metrics,
    queues: QueueSet<BestEffortMessage, UnreportedLosses>,
}

/// Losses by room that have not been reported to the peer, and numbers of messages left out (`true`).
type UnreportedLosses = Mutex<BTreeMap<(ConversationId, IsLeftOut), u64>>;

/// Whether a number is that of messages left out of the room.
type IsLeftOut = bool;

/// Receiving end of a queue, in its own task.
struct BestEffortQueue {
    queue: Queue<BestEffortMessage, UnreportedLosses>,
    queues: Arc<BestEffortQueues>,
}

/// Contents of a call by kind, counted in case it is lost.
#[derive(Default)]
struct MessageCounts {
    room_messages: BTreeMap<(ConversationId, u8), u64>,
    losses: BTreeMap<ConversationId, u64>,
    left_out: BTreeMap<ConversationId, u64>,
    signals: u64,
    notices: u64,
    marks: u64,
    fan_outs: u64,
    tallies: u64,
}

impl BestEffortQueues {
    /// Creates the set without any queue; each starts with its first message, on `runtime`.
    pub fn new(link: Arc<dyn Link>, runtime: Handle, metrics: Metrics) -> Arc<Self> {
        // A live run whose queue ended for lack of traffic keeps its unreported losses.
        let queues = QueueSet::new(QUEUED_MESSAGES_MAX, EndedQueues::KeepState);
        Arc::new(Self { link, runtime, metrics, queues })
    }

    /// Enqueues a message for a peer, or drops it. Never waits, and may be called from any thread.
    pub fn send(self: &Arc<Self>, to: &NodeBoot, message: BestEffortMessage) {
        let (bytes, bytes_max) = (message.queue_bytes(), message.queue_bytes_max());
        let start = |queue| {
            let task = BestEffortQueue { queue, queues: Arc::clone(self) };
            supervised::spawn_on(&self.runtime, "a best-effort queue to a peer", task.run());
        };
        if let Err(rejected) = self.queues.send(to, message, bytes, bytes_max, start) {
            let losses = self.queues.state(to, start);
            self.record_losses(&losses, MessageCounts::of(&[rejected.into_inner()]));
        }
    }

    /// Removes the ended queues of runs that are no longer live. A live run whose queue ended for lack of traffic keeps
    /// its unreported losses.
    pub fn forget_ended(&self, is_live: impl Fn(&NodeBoot) -> bool) {
        self.queues.forget_ended(is_live);
    }

    /// Counts lost messages, and stores the losses of rooms for the next report.
    fn record_losses(&self, unreported: &UnreportedLosses, lost: MessageCounts) {
        for ((_, class), count) in &lost.room_messages {
            self.metrics.count_shed(*class, *count);
        }
        self.metrics.signals_dropped.increment(lost.signals);
        self.metrics.storm_notices_dropped.increment(lost.notices);
        self.metrics.peer_marks_lost.increment(lost.marks);
        self.metrics.fan_outs_lost.increment(lost.fan_outs);
        self.metrics.room_tallies_lost.increment(lost.tallies);
        let mut unreported = unreported.lock();
        let messages = lost.room_messages.into_iter().map(|((room, _), count)| (room, count));
        let losses = messages.chain(lost.losses).map(|(room, count)| ((room, false), count));
        let left_out = lost.left_out.into_iter().map(|(room, count)| ((room, true), count));
        for (key, count) in losses.chain(left_out) {
            if unreported.len() < REPORTED_ROOMS_MAX || unreported.contains_key(&key) {
                *unreported.entry(key).or_default() += count;
            }
        }
    }
}

impl BestEffortQueue {
    async fn run(mut self) {
        let mut reports = 0;
        loop {
            let has_losses = !self.queue.state.lock().is_empty() && reports < LOSS_REPORT_ATTEMPTS;
            match self.queue.next(has_losses.then_some(LOSS_REPORT_INTERVAL)).await {
                Some(Next::Item(first)) => {
                    reports = 0;
                    self.send_batch(Some(first)).await;
                }
                Some(Next::Retry) => {
                    reports += 1;
                    self.send_batch(None).await;
                }
                None => return,
            }
        }
    }

    /// Sends one call: the unreported losses, then queued messages.
    async fn send_batch(&mut self, first: Option<BestEffortMessage>) {
        let losses = std::mem::take(&mut *self.queue.state.lock());
        let report = |((room, is_left_out), count)| match is_left_out {
            false => BestEffortMessage::RoomLoss { room, count },
            true => BestEffortMessage::RoomMessage { room, push: Bytes::new(), class: 0, left_out: count },
        };
        let mut messages: Vec<BestEffortMessage> = losses.into_iter().map(report).collect();
        let mut bytes = 0;
        let mut next = first;
        while let Some(message) = next {
            bytes += message.queue_bytes();
            messages.push(message);
            next = (bytes < CALL_BYTES_TARGET).then(|| self.queue.try_next()).flatten();
        }
        let counts = MessageCounts::of(&messages);
        match self.queues.link.send_best_effort(&self.queue.to, messages).await {
            Ok(()) => {}
            // The run has ended, so there are no members left to report the losses to.
            Err(LinkError::NotHere) => self.queues.record_losses(&UnreportedLosses::default(), counts),
            // Messages in doubt count as lost: a report may exceed what a client misses, but never understates it.
            Err(error) => {
                tracing::debug!(%error, peer = %self.queue.to, "best-effort messages to a peer lost");
                self.queues.record_losses(&self.queue.state, counts);
            }
        }
        self.queue.release(bytes);
    }
}

impl MessageCounts {
    fn of(messages: &[BestEffortMessage]) -> Self {
        let mut counts = Self::default();
        for message in messages {
            match message {
                BestEffortMessage::RoomMessage { room, class, push, left_out } => {
                    if !push.is_empty() {
                        *counts.room_messages.entry((room.clone(), *class)).or_default() += 1;
                    }
                    if *left_out > 0 {
                        *counts.left_out.entry(room.clone()).or_default() += left_out;
                    }
                }
                BestEffortMessage::RoomLoss { room, count } => {
                    *counts.losses.entry(room.clone()).or_default() += count
                }
                BestEffortMessage::Signal { .. } => counts.signals += 1,
                BestEffortMessage::Notice { .. } => counts.notices += 1,
                BestEffortMessage::Mark { .. } => counts.marks += 1,
                BestEffortMessage::FanOut { .. } => counts.fan_outs += 1,
                // Not queued, and found by a version in the store if it is lost.
                BestEffortMessage::BlocksChanged { .. } | BestEffortMessage::GuardChanged => {}
                BestEffortMessage::RoomTally { .. } => counts.tallies += 1,
            }
        }
        counts
    }
}

impl BestEffortMessage {
    fn queue_bytes(&self) -> usize {
        match self {
            Self::RoomMessage { push, .. } => 2 * ENTRY_BYTES + push.len(),
            Self::RoomTally { tally, .. } => (2 + tally.reactions.counts.len()) * ENTRY_BYTES,
            Self::RoomLoss { .. } | Self::BlocksChanged { .. } | Self::GuardChanged => 2 * ENTRY_BYTES,
            Self::Signal { users, frame, .. } | Self::Notice { users, frame, .. } => {
                (2 + users.len()) * ENTRY_BYTES + frame.len()
            }
            Self::Mark { frame, .. } => 3 * ENTRY_BYTES + frame.len(),
            Self::FanOut { record, .. } => 2 * ENTRY_BYTES + record.len(),
        }
    }

    /// Returns the queue size above which the message is dropped.
    fn queue_bytes_max(&self) -> usize {
        match self {
            Self::Signal { .. } => SIGNAL_QUEUE_BYTES_MAX,
            Self::Notice { .. } => NOTICE_QUEUE_BYTES_MAX,
            Self::RoomMessage { class, .. } => class_share(ROOM_QUEUE_BYTES_MAX, *class),
            Self::RoomTally { .. } => TALLY_QUEUE_BYTES_MAX,
            Self::RoomLoss { .. }
            | Self::Mark { .. }
            | Self::FanOut { .. }
            | Self::BlocksChanged { .. }
            | Self::GuardChanged => MARK_QUEUE_BYTES_MAX,
        }
    }
}

#[cfg(test)]
mod tests;
