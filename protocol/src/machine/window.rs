//! Retransmission window: the unacked pushes to one connection, resent until the client acks them (SPEC section 7).
//!
//! A push is in flight until it is acked. If a push stays unacked after `tries` resends, the window gives up on all
//! pushes. An empty window has no heap allocation beyond its own box; the driver then drops it.

use crate::{Time, id::ConversationId};
use foldhash::{HashMap, HashMapExt};
use std::{collections::VecDeque, time::Duration};

/// Limits and timeouts of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// Maximum number of unacked pushes.
    pub count_max: usize,
    /// Maximum size of the unacked pushes, in bytes.
    pub bytes_max: usize,
    /// Time to wait for an ack before a resend.
    pub ack_timeout: Duration,
    /// Number of resends before the client counts as slow.
    pub tries: u8,
}

impl Default for WindowLimits {
    fn default() -> Self {
        Self { count_max: 256, bytes_max: 256 << 10, ack_timeout: Duration::from_secs(5), tries: 3 }
    }
}

/// Result of [`Window::track`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracked {
    /// The push is tracked until its ack; send it.
    Ok,
    /// The window is full: send a `Behind` hint instead, so that the client pulls.
    Full,
}

/// Result of [`Window::handle_timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send the pushes in `resend`, if any.
    Fine,
    /// The client does not ack: close with `SLOW`. The window is now empty.
    GiveUp,
}

/// Pushes in flight to one connection, per conversation.
#[derive(Clone, Debug)]
pub struct Window<T> {
    limits: WindowLimits,
    /// Pushes sorted by seq; no queue is empty.
    conversations: HashMap<ConversationId, VecDeque<InFlight<T>>>,
    count: usize,
    bytes: usize,
    /// Lower bound of all deadlines.
    earliest: Time,
}

#[derive(Clone, Debug)]
struct InFlight<T> {
    seq: u64,
    payload: T,
    bytes: usize,
    deadline: Time,
    resent: u8,
}

impl<T: Clone> Window<T> {
    /// Creates an empty window.
    pub fn new(limits: WindowLimits) -> Self {
        Self { limits, conversations: HashMap::new(), count: 0, bytes: 0, earliest: Time::ZERO }
    }

    /// Returns whether no push is in flight, so that the window can be dropped.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of pushes in flight.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the size of the pushes in flight, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tracks a push that is sent now, unless it is already tracked.
    pub fn track(
        &mut self,
        conversation: &ConversationId,
        seq: u64,
        payload: T,
        bytes: usize,
        now: Time,
    ) -> Tracked {
        let at = match self.conversations.get(conversation) {
            Some(queue) => match queue.binary_search_by_key(&seq, |push| push.seq) {
                Ok(_) => return Tracked::Ok,
                Err(at) => at,
            },
            None => 0,
        };
        if self.count >= self.limits.count_max || self.bytes + bytes > self.limits.bytes_max {
            return Tracked::Full;
        }
        let deadline = self.deadline(now);
        self.earliest = if self.is_empty() { deadline } else { self.earliest.min(deadline) };
        let queue = self.conversations.entry(conversation.clone()).or_default();
        queue.insert(at, InFlight { seq, payload, bytes, deadline, resent: 0 });
        self.count += 1;
        self.bytes += bytes;
        Tracked::Ok
    }

    /// Removes all pushes of the conversation up to `seq`. Lower and unknown acks have no effect. Returns when the newest
    /// of these pushes was sent; `None` if there is none, or if it was resent, as it is unknown which one was acked.
    pub fn ack(&mut self, conversation: &ConversationId, seq: u64) -> Option<Time> {
        let timeout = self.timeout();
        let queue = self.conversations.get_mut(conversation)?;
        let mut sent_at = None;
        while let Some(push) = queue.pop_front_if(|push| push.seq <= seq) {
            self.count -= 1;
            self.bytes -= push.bytes;
            sent_at = (push.resent == 0).then(|| push.deadline - timeout);
        }
        if queue.is_empty() {
            self.conversations.remove(conversation);
        }
        if self.count == 0 {
            self.clear();
        }
        sent_at
    }

    /// Returns when to call [`Window::handle_timeout`]; may be early after an ack, never late.
    pub fn poll_timeout(&self) -> Option<Time> {
        (!self.is_empty()).then_some(self.earliest)
    }

    /// Appends overdue pushes to `resend`, by conversation and seq, or gives up.
    pub fn handle_timeout(&mut self, now: Time, resend: &mut Vec<T>) -> Verdict {
        if self.poll_timeout().is_none_or(|earliest| earliest > now) {
            return Verdict::Fine;
        }
        let deadline = self.deadline(now);
        let tries = self.limits.tries;
        let due = |push: &InFlight<T>| push.deadline <= now;
        if self.conversations.values().flatten().any(|push| due(push) && push.resent >= tries) {
            self.clear();
            return Verdict::GiveUp;
        }
        let mut earliest = deadline;
        // Sorted, because the order of the map differs from process to process.
        let mut queues: Vec<_> = self.conversations.iter_mut().collect();
        queues.sort_unstable_by_key(|(id, _)| *id);
        for push in queues.into_iter().flat_map(|(_, queue)| queue) {
            if due(push) {
                push.deadline = deadline;
                push.resent += 1;
                resend.push(push.payload.clone());
            }
            earliest = earliest.min(push.deadline);
        }
        self.earliest = earliest;
        Verdict::Fine
    }

    fn deadline(&self, now: Time) -> Time {
        now + self.timeout()
    }

    /// Returns the time to wait for an ack: at least a millisecond, so that a timer handled now lies in the future.
    fn timeout(&self) -> Duration {
        self.limits.ack_timeout.max(Duration::from_millis(1))
    }

    fn clear(&mut self) {
        self.conversations = HashMap::new();
        self.count = 0;
        self.bytes = 0;
    }
}
