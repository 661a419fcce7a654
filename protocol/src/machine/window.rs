//! The window: pushes to one conn that its client has not acked yet, sent again until it does (DESIGN 6.4).
//!
//! A push ends in exactly one way: acked, still in flight, or given up together with all others when one was sent
//! again `tries` times for nothing. Empty, it holds no heap beyond its own box; the driver drops it then.

use crate::{Time, id::ConversationId};
use foldhash::{HashMap, HashMapExt};
use std::{collections::VecDeque, time::Duration};

/// The bounds and patience of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// The most pushes not yet acked.
    pub count_max: usize,
    /// The most bytes not yet acked.
    pub bytes_max: usize,
    /// How long to wait for an ack before sending again.
    pub ack_timeout: Duration,
    /// How often a push is sent again before the client counts as slow.
    pub tries: u8,
}

impl Default for WindowLimits {
    fn default() -> Self {
        Self { count_max: 256, bytes_max: 256 << 10, ack_timeout: Duration::from_secs(5), tries: 3 }
    }
}

/// Whether a push is followed until its ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracked {
    /// It is; send it.
    Ok,
    /// No room: send a `Behind` hint instead, the client pulls.
    Full,
}

/// How the client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send what was put into `resend`, if anything.
    Fine,
    /// It does not ack: close with `SLOW`. The window is empty now.
    GiveUp,
}

/// The pushes in flight to one conn, per conversation.
#[derive(Clone, Debug)]
pub struct Window<T> {
    limits: WindowLimits,
    /// Sorted by seq; never an empty queue.
    conversations: HashMap<ConversationId, VecDeque<InFlight<T>>>,
    count: usize,
    bytes: usize,
    /// No deadline of a push in flight lies before it.
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
    /// An empty window.
    pub fn new(limits: WindowLimits) -> Self {
        Self { limits, conversations: HashMap::new(), count: 0, bytes: 0, earliest: Time::ZERO }
    }

    /// Whether everything was acked: the window can be dropped.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many pushes are in flight.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The bytes in flight.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Follows a push that is sent now. One that is followed already is not followed twice.
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

    /// Everything up to `seq` of the conversation arrived. Lower and unknown acks say nothing new.
    pub fn ack(&mut self, conversation: &ConversationId, seq: u64) {
        let Some(queue) = self.conversations.get_mut(conversation) else { return };
        while let Some(push) = queue.pop_front_if(|push| push.seq <= seq) {
            self.count -= 1;
            self.bytes -= push.bytes;
        }
        if queue.is_empty() {
            self.conversations.remove(conversation);
        }
        if self.count == 0 {
            self.clear();
        }
    }

    /// When to call [`Window::handle_timeout`]; may be early after an ack, never late.
    pub fn poll_timeout(&self) -> Option<Time> {
        (!self.is_empty()).then_some(self.earliest)
    }

    /// Puts what is overdue into `resend`, in seq order within a conversation; or gives up.
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
        for push in self.conversations.values_mut().flatten() {
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
        // At least a millisecond, so that a timer handled now lies in the future.
        now + self.limits.ack_timeout.max(Duration::from_millis(1))
    }

    fn clear(&mut self) {
        self.conversations = HashMap::new();
        self.count = 0;
        self.bytes = 0;
    }
}
