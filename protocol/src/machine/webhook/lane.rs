//! Lane of an endpoint in one partition: the events of its conversations that wait, in feed order.

use std::collections::VecDeque;

use super::{WebhookEvent, WebhookItem, health::HealthMark};
use crate::{Time, id::ConversationId};

/// Events of one lane in one partition.
#[derive(Debug)]
pub(super) struct Lane {
    /// Events that are not taken, in feed order.
    waiting: VecDeque<Waiting>,
    /// Feed number up to which the lane has read.
    read: u64,
    /// Time since which an event waits.
    since: Time,
    /// Most events of the next request.
    pub(super) limit: usize,
    /// Failures since the last success.
    pub(super) failures: u32,
    /// Successes of the endpoint until the first of these failures.
    pub(super) failing: Option<HealthMark>,
    /// Probes of this lane that failed since its last success.
    pub(super) failed_probes: usize,
    pub(super) retry_at: Time,
    pub(super) is_in_flight: bool,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    event: WebhookEvent,
}

impl Lane {
    /// Creates a lane behind the feed number.
    pub(super) const fn new(read: u64, limit: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            read,
            since: Time::ZERO,
            limit,
            failures: 0,
            failing: None,
            failed_probes: 0,
            retry_at: Time::ZERO,
            is_in_flight: false,
        }
    }

    /// Returns the number up to which all events of the lane are done.
    pub(super) fn done(&self) -> u64 {
        self.waiting.front().map_or(self.read, |first| first.number.saturating_sub(1))
    }

    pub(super) const fn read(&self) -> u64 {
        self.read
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether the lane reads no further for now.
    pub(super) fn is_full(&self, capacity: usize) -> bool {
        self.waiting.len() >= capacity.div_ceil(2)
    }

    /// Advances what is read, without an event.
    pub(super) fn advance(&mut self, number: u64) {
        self.read = self.read.max(number);
    }

    /// Adds the next event.
    pub(super) fn push(&mut self, item: &WebhookItem, now: Time) {
        if self.waiting.is_empty() {
            self.since = now;
        }
        self.waiting.push_back(Waiting { number: item.number, event: item.event.clone() });
        self.read = item.number;
    }

    /// Returns the time at which the lane can send: it has a full request, or has waited for one.
    pub(super) fn ready_at(&self, wait: std::time::Duration) -> Option<Time> {
        let filled = match self.waiting.len() {
            0 => return None,
            len if len >= self.limit => self.since,
            _ => self.since + wait,
        };
        (!self.is_in_flight).then_some(filled.max(self.retry_at))
    }

    /// Returns the events of the next request.
    pub(super) fn batch(&self) -> Vec<WebhookEvent> {
        self.first_events(self.limit).cloned().collect()
    }

    /// Goes back to the feed number, above which the feed is read again.
    pub(super) fn fall_back(&mut self, number: u64) {
        self.waiting.retain(|it| it.number <= number);
        self.read = self.read.min(number);
    }

    /// Returns the first events.
    pub(super) fn first_events(&self, count: usize) -> impl Iterator<Item = &WebhookEvent> {
        self.waiting.iter().take(count).map(|it| &it.event)
    }

    /// Removes the first events, which are done.
    pub(super) fn take(&mut self, count: usize, now: Time) {
        self.waiting.drain(..count.min(self.waiting.len()));
        self.since = now;
    }

    /// Returns the first event of each conversation, which may be sent before those of other conversations.
    pub(super) fn heads(&self) -> Vec<WebhookEvent> {
        let mut heads: Vec<WebhookEvent> = Vec::new();
        for Waiting { event, .. } in &self.waiting {
            if !heads.iter().any(|head| head.conversation == event.conversation) {
                heads.push(event.clone());
            }
        }
        heads
    }

    pub(super) fn first(&self) -> Option<&WebhookEvent> {
        self.waiting.front().map(|it| &it.event)
    }

    /// Returns the events of a conversation.
    pub(super) fn of(&self, conversation: &ConversationId) -> Vec<WebhookEvent> {
        let of = self.waiting.iter().filter(|it| it.event.conversation == *conversation);
        of.map(|it| it.event.clone()).collect()
    }

    /// Removes the events of a conversation.
    pub(super) fn remove_conversation(&mut self, conversation: &ConversationId) {
        self.waiting.retain(|it| it.event.conversation != *conversation);
    }

    /// Removes an event that was taken out of turn.
    pub(super) fn remove(&mut self, event: &WebhookEvent) {
        let at = self.waiting.iter().position(|it| it.event == *event);
        at.and_then(|at| self.waiting.remove(at));
    }

    /// Forgets the failures.
    pub(super) fn succeed(&mut self, batch_max: usize) {
        (self.failures, self.failing, self.failed_probes) = (0, None, 0);
        self.limit = self.limit.saturating_mul(2).min(batch_max);
    }
}
