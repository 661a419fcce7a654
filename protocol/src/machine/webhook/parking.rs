//! Parked conversations of one partition: each is delivered alone, seq by seq, until it has caught up with its lane.

use std::{collections::BTreeMap, time::Duration};

use super::{
    WebhookEvent, WebhookEventKind,
    cursor::{
        ASIDE_BYTES_MAX, ASIDE_MAX, PARKED_BYTES_MAX, PARKED_MAX, ParkedConversation, WebhookAside,
        aside_bytes, parked_bytes,
    },
};
use crate::{Time, id::ConversationId};

/// Time for which the receiver has to refuse a parked event until it is set aside.
pub const REFUSED_ASIDE: Duration = Duration::from_secs(600);

/// Parked conversations and events set aside of one partition.
#[derive(Debug, Default)]
pub(super) struct Parking {
    parked: BTreeMap<ConversationId, Parked>,
    parked_bytes: usize,
    aside: Vec<WebhookAside>,
    aside_bytes: usize,
}

/// State of a parked conversation.
#[derive(Debug)]
pub(super) struct Parked {
    next: u64,
    up_to: u64,
    pruned: u64,
    tries: u32,
    /// Begin of the failures of the next event.
    failing_since: Option<Time>,
    /// Begin of the refusals of the next event, without another failure since.
    refused_since: Option<Time>,
    retry_at: Time,
    /// Successes of the endpoint when the next event failed last; `None` without a failure here.
    successes: Option<u64>,
    is_in_flight: bool,
}

/// Failure of a parked event.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParkedFailure {
    pub(super) now: Time,
    pub(super) is_refusal: bool,
    pub(super) aside_after: Duration,
    /// Successes of the endpoint until now.
    pub(super) successes: u64,
    pub(super) retry_at: Time,
}

/// Time at which a time span began that has lasted for `span`, as far as the clock goes back.
fn began(now: Time, span: Duration) -> Time {
    let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    Time::from_millis(now.as_millis().saturating_sub(ms))
}

impl Parked {
    fn new(now: Time) -> Self {
        Self {
            next: 1,
            up_to: 0,
            pruned: 0,
            tries: 0,
            failing_since: None,
            refused_since: None,
            retry_at: now,
            successes: None,
            is_in_flight: false,
        }
    }

    /// Adds an event that the lane passes. Events that the receiver has taken, and repeated ones, change nothing.
    fn absorb(&mut self, event: &WebhookEvent) {
        match event.kind {
            WebhookEventKind::Pruned => self.pruned = self.pruned.max(event.seq),
            WebhookEventKind::Entry if self.next > self.up_to && event.seq > self.up_to => {
                (self.next, self.up_to) = (self.next.max(event.seq), event.seq.max(self.next));
            }
            WebhookEventKind::Entry => self.up_to = self.up_to.max(event.seq),
        }
    }

    /// Returns the event that is sent next, `None` if the conversation has caught up.
    fn next_event(&self, conversation: &ConversationId) -> Option<WebhookEvent> {
        let (seq, kind) = match self.next <= self.up_to {
            true => (self.next, WebhookEventKind::Entry),
            false if self.pruned > 0 => (self.pruned, WebhookEventKind::Pruned),
            false => return None,
        };
        Some(WebhookEvent { conversation: conversation.clone(), seq, kind })
    }

    /// Advances past an event that was taken or set aside.
    fn advance(&mut self, event: &WebhookEvent, now: Time) {
        match event.kind {
            WebhookEventKind::Entry => self.next = self.next.max(event.seq.saturating_add(1)),
            WebhookEventKind::Pruned if self.pruned == event.seq => self.pruned = 0,
            WebhookEventKind::Pruned => {}
        }
        (self.tries, self.failing_since, self.refused_since) = (0, None, None);
        (self.retry_at, self.successes) = (now, None);
    }
}

impl Parking {
    /// Restores the state of a cursor.
    pub(super) fn restore(parked: &[ParkedConversation], aside: Vec<WebhookAside>, now: Time) -> Self {
        let of = |it: &ParkedConversation| Parked {
            next: it.next,
            up_to: it.up_to,
            pruned: it.pruned,
            tries: it.tries,
            failing_since: (it.tries > 0).then(|| began(now, it.failing)),
            refused_since: it.refused.map(|span| began(now, span)),
            retry_at: now,
            successes: None,
            is_in_flight: false,
        };
        Self {
            parked_bytes: parked.iter().map(|it| parked_bytes(&it.conversation)).sum(),
            parked: parked.iter().map(|it| (it.conversation.clone(), of(it))).collect(),
            aside_bytes: aside.iter().map(|it| aside_bytes(&it.event.conversation)).sum(),
            aside,
        }
    }

    /// Returns the state for a cursor.
    pub(super) fn save(&self, now: Time) -> (Vec<ParkedConversation>, Vec<WebhookAside>) {
        let parked = self.parked.iter().map(|(conversation, it)| ParkedConversation {
            conversation: conversation.clone(),
            next: it.next,
            up_to: it.up_to,
            pruned: it.pruned,
            tries: it.tries,
            failing: it.failing_since.map_or(Duration::ZERO, |since| now.since(since)),
            refused: it.refused_since.map(|since| now.since(since)),
        });
        (parked.collect(), self.aside.clone())
    }

    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    pub(super) fn aside(&self) -> &[WebhookAside] {
        &self.aside
    }

    /// Absorbs the event if its conversation is parked: its lane must not send it.
    pub(super) fn absorb(&mut self, event: &WebhookEvent) -> bool {
        let parked = self.parked.get_mut(&event.conversation);
        parked.is_some_and(|parked| {
            parked.absorb(event);
            true
        })
    }

    /// Parks the conversation with the events that its lane holds, the failing one first. Returns false if it is full.
    pub(super) fn park(&mut self, events: &[WebhookEvent], since: Time, retry_at: Time) -> bool {
        let Some(first) = events.first() else { return true };
        let bytes = parked_bytes(&first.conversation);
        if self.parked.len() >= PARKED_MAX || self.parked_bytes + bytes > PARKED_BYTES_MAX {
            return false;
        }
        let mut parked = Parked::new(retry_at);
        for event in events {
            parked.absorb(event);
        }
        (parked.tries, parked.failing_since) = (1, Some(since));
        self.parked_bytes += bytes;
        self.parked.insert(first.conversation.clone(), parked);
        true
    }

    /// Returns a parked event whose retry is due; marks it as in flight.
    pub(super) fn take_due(&mut self, now: Time) -> Option<WebhookEvent> {
        let due = self.parked.iter().filter(|(_, it)| !it.is_in_flight && it.retry_at <= now);
        let conversation = due.min_by_key(|(_, it)| it.retry_at)?.0.clone();
        self.take(&conversation)
    }

    /// Returns the next event of the conversation unless it is in flight; marks it as in flight.
    pub(super) fn take(&mut self, conversation: &ConversationId) -> Option<WebhookEvent> {
        let parked = self.parked.get_mut(conversation).filter(|it| !it.is_in_flight)?;
        parked.is_in_flight = true;
        parked.next_event(conversation)
    }

    /// Returns the conversations without a request in flight.
    pub(super) fn idle(&self) -> impl Iterator<Item = &ConversationId> {
        self.parked.iter().filter(|(_, it)| !it.is_in_flight).map(|(conversation, _)| conversation)
    }

    /// Returns the earliest retry.
    pub(super) fn retry_at(&self) -> Option<Time> {
        self.parked.values().filter(|it| !it.is_in_flight).map(|it| it.retry_at).min()
    }

    /// Returns the failed tries of the conversation's next event.
    pub(super) fn tries(&self, conversation: &ConversationId) -> u32 {
        self.parked.get(conversation).map_or(0, |it| it.tries)
    }

    /// Advances past a taken event. The conversation goes back to its lane once nothing is left.
    pub(super) fn handle_taken(&mut self, event: &WebhookEvent, now: Time) {
        if let Some(parked) = self.parked.get_mut(&event.conversation) {
            parked.is_in_flight = false;
            parked.advance(event, now);
            self.unpark_if_done(&event.conversation);
        }
    }

    /// Schedules the next try of an event that was not sent, or about which the answer says nothing.
    pub(super) fn handle_again(&mut self, event: &WebhookEvent, retry_at: Time) {
        if let Some(parked) = self.parked.get_mut(&event.conversation) {
            (parked.is_in_flight, parked.retry_at) = (false, retry_at);
        }
    }

    /// Notes a failure. Returns whether the event was set aside.
    pub(super) fn handle_failure(&mut self, event: &WebhookEvent, failure: ParkedFailure) -> bool {
        let Some(parked) = self.parked.get_mut(&event.conversation) else { return false };
        let ParkedFailure { now, is_refusal, aside_after, successes, retry_at } = failure;
        // A success since the former try: the endpoint works, and the event is the cause.
        let others_succeed = parked.successes.is_some_and(|before| successes > before);
        (parked.is_in_flight, parked.retry_at, parked.successes) = (false, retry_at, Some(successes));
        parked.tries = parked.tries.saturating_add(1);
        let failing = now.since(*parked.failing_since.get_or_insert(now));
        match is_refusal {
            true => drop(parked.refused_since.get_or_insert(now)),
            false => parked.refused_since = None,
        }
        let refused = parked.refused_since.map_or(Duration::ZERO, |since| now.since(since));
        let is_over = failing >= aside_after || refused >= REFUSED_ASIDE;
        let bytes = aside_bytes(&event.conversation);
        let fits = self.aside.len() < ASIDE_MAX && self.aside_bytes + bytes <= ASIDE_BYTES_MAX;
        if !(others_succeed && is_over && fits) {
            return false;
        }
        self.aside.push(WebhookAside { event: event.clone(), tries: parked.tries });
        self.aside_bytes += bytes;
        parked.advance(event, now);
        self.unpark_if_done(&event.conversation);
        true
    }

    fn unpark_if_done(&mut self, conversation: &ConversationId) {
        if self.parked.get(conversation).is_some_and(|it| it.next_event(conversation).is_none()) {
            self.parked.remove(conversation);
            self.parked_bytes -= parked_bytes(conversation);
        }
    }
}
