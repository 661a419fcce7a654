//! Parked conversations of one partition: each is delivered alone, seq by seq, until it has caught up with its lane.

use std::{collections::BTreeMap, time::Duration};

use super::{
    WebhookEvent, WebhookEventKind, WebhookFailure,
    cursor::{
        ASIDE_BYTES_MAX, ASIDE_MAX, PARKED_BYTES_MAX, PARKED_MAX, ParkedConversation, WebhookAside,
        aside_bytes, parked_bytes,
    },
    health::HealthMark,
};
use crate::{Time, id::ConversationId};

/// Time for which the receiver has to refuse a parked event, while it takes others, until it is set aside.
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
    awaits_replay: bool,
    tries: u32,
    /// Time for which the next event has failed while others succeeded.
    failing: Duration,
    /// Time of these in which the next event was refused, without another failure since.
    refused: Option<Duration>,
    retry_at: Time,
    /// Successes of the endpoint when the next event failed last; `None` without a failure here.
    failed_at: Option<HealthMark>,
    is_in_flight: bool,
}

/// Failure of a parked event.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParkedFailure {
    pub(super) failure: WebhookFailure,
    pub(super) is_refusal: bool,
    pub(super) aside_after: Duration,
    /// Successes of the endpoint until now.
    pub(super) mark: HealthMark,
    pub(super) retry_at: Time,
    pub(super) now: Time,
    /// Time of the failure, in ms since 1970.
    pub(super) at_ms: u64,
    /// Whether the endpoint may have a further event set aside.
    pub(super) fits: bool,
}

/// Begin of the failures of an event that is parked.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParkTimes {
    /// Time for which it has failed while others succeeded.
    pub(super) failing: Duration,
    /// Successes of the endpoint until now.
    pub(super) mark: HealthMark,
    pub(super) retry_at: Time,
}

impl Parked {
    const fn new(times: ParkTimes) -> Self {
        Self {
            next: 1,
            up_to: 0,
            pruned: 0,
            awaits_replay: false,
            tries: 1,
            failing: times.failing,
            refused: None,
            retry_at: times.retry_at,
            failed_at: Some(times.mark),
            is_in_flight: false,
        }
    }

    /// Adds an event that the lane passes. Events that the receiver has taken, and repeated ones, change nothing, except the
    /// first one of a replay.
    fn absorb(&mut self, event: &WebhookEvent, now: Time) {
        if event.kind == WebhookEventKind::Pruned {
            self.pruned = self.pruned.max(event.seq);
            return;
        }
        if std::mem::take(&mut self.awaits_replay) && event.seq < self.next {
            self.next = event.seq;
            self.forget_failures(now);
        }
        if self.next > self.up_to && event.seq > self.up_to {
            (self.next, self.up_to) = (self.next.max(event.seq), event.seq.max(self.next));
        } else {
            self.up_to = self.up_to.max(event.seq);
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

    /// Advances past an event that was taken or set aside, unless a replay has begun before it meanwhile.
    fn advance(&mut self, event: &WebhookEvent, now: Time) {
        match event.kind {
            WebhookEventKind::Pruned if self.pruned == event.seq => self.pruned = 0,
            WebhookEventKind::Pruned => {}
            _ if self.next == event.seq => self.next = event.seq.saturating_add(1),
            _ => {}
        }
        self.forget_failures(now);
    }

    const fn forget_failures(&mut self, now: Time) {
        (self.tries, self.failing, self.refused) = (0, Duration::ZERO, None);
        (self.retry_at, self.failed_at) = (now, None);
    }
}

impl Parking {
    /// Restores the state of a cursor.
    pub(super) fn restore(parked: &[ParkedConversation], aside: Vec<WebhookAside>, now: Time) -> Self {
        let of = |it: &ParkedConversation| Parked {
            next: it.next,
            up_to: it.up_to,
            pruned: it.pruned,
            awaits_replay: it.awaits_replay,
            tries: it.tries,
            failing: it.failing,
            refused: it.refused,
            retry_at: now,
            failed_at: None,
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
    pub(super) fn save(&self) -> (Vec<ParkedConversation>, Vec<WebhookAside>) {
        let parked = self.parked.iter().map(|(conversation, it)| ParkedConversation {
            conversation: conversation.clone(),
            next: it.next,
            up_to: it.up_to,
            pruned: it.pruned,
            awaits_replay: it.awaits_replay,
            tries: it.tries,
            failing: it.failing,
            refused: it.refused,
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
    pub(super) fn absorb(&mut self, event: &WebhookEvent, now: Time) -> bool {
        let parked = self.parked.get_mut(&event.conversation);
        parked.is_some_and(|parked| {
            parked.absorb(event, now);
            true
        })
    }

    /// Parks the conversation with the events that its lane holds, the failing one first. Returns false if it is full.
    pub(super) fn park(&mut self, events: &[WebhookEvent], times: ParkTimes) -> bool {
        let Some(first) = events.first() else { return true };
        let bytes = parked_bytes(&first.conversation);
        if self.parked.len() >= PARKED_MAX || self.parked_bytes + bytes > PARKED_BYTES_MAX {
            return false;
        }
        let mut parked = Parked::new(times);
        for event in events {
            parked.absorb(event, times.retry_at);
        }
        self.parked_bytes += bytes;
        self.parked.insert(first.conversation.clone(), parked);
        true
    }

    /// Ends the requests in flight without an outcome, and has each conversation begin again with the first event that its
    /// lane reads.
    pub(super) fn await_replay(&mut self, now: Time) {
        for parked in self.parked.values_mut() {
            parked.awaits_replay = true;
            if std::mem::take(&mut parked.is_in_flight) {
                parked.retry_at = now;
            }
        }
    }

    /// Removes the conversations that need not catch up.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&ConversationId) -> bool) {
        self.parked.retain(|conversation, _| is_kept(conversation));
        self.parked_bytes = self.parked.keys().map(parked_bytes).sum();
    }

    /// Removes an event from those set aside, which was taken after all.
    pub(super) fn remove_aside(&mut self, event: &WebhookEvent) {
        let is_pruned = |it: &WebhookEvent| it.kind == WebhookEventKind::Pruned;
        let is_same = |it: &WebhookEvent| {
            it.seq == event.seq && is_pruned(it) == is_pruned(event) && it.conversation == event.conversation
        };
        self.retain_aside(|it| !is_same(it));
    }

    /// Removes what is set aside at a seq of a conversation.
    pub(super) fn drop_aside(&mut self, conversation: &ConversationId, seq: u64) {
        self.retain_aside(|it| it.seq != seq || it.conversation != *conversation);
    }

    fn retain_aside(&mut self, is_kept: impl Fn(&WebhookEvent) -> bool) {
        self.aside.retain(|it| is_kept(&it.event));
        self.aside_bytes = self.aside.iter().map(|it| aside_bytes(&it.event.conversation)).sum();
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

    /// Advances past an event that was taken or is not wanted. The conversation goes back to its lane once nothing is left.
    pub(super) fn handle_done(&mut self, event: &WebhookEvent, now: Time) {
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
    pub(super) fn handle_failure(&mut self, event: &WebhookEvent, failed: ParkedFailure) -> bool {
        let Some(parked) = self.parked.get_mut(&event.conversation) else { return false };
        // A success since the former try: the endpoint works, and the event is the cause.
        let before = parked.failed_at.replace(failed.mark);
        let others_succeed = before.is_some_and(|before| failed.mark.successes > before.successes);
        let worked =
            before.map_or(Duration::ZERO, |before| failed.mark.working.saturating_sub(before.working));
        (parked.is_in_flight, parked.retry_at) = (false, failed.retry_at);
        parked.tries = parked.tries.saturating_add(1);
        parked.failing = parked.failing.saturating_add(worked);
        parked.refused = failed
            .is_refusal
            .then(|| parked.refused.map_or(Duration::ZERO, |refused| refused.saturating_add(worked)));
        let is_refused = parked.refused.is_some_and(|refused| refused >= REFUSED_ASIDE);
        let is_over = parked.failing >= failed.aside_after || is_refused;
        let tries = parked.tries;
        if !(others_succeed && is_over && failed.fits && self.set_aside(event, tries, failed)) {
            return false;
        }
        if let Some(parked) = self.parked.get_mut(&event.conversation) {
            parked.advance(event, failed.now);
        }
        self.unpark_if_done(&event.conversation);
        true
    }

    /// Adds an event to those set aside, in place of its former entry. Returns false if no more fit.
    fn set_aside(&mut self, event: &WebhookEvent, tries: u32, failed: ParkedFailure) -> bool {
        self.remove_aside(event);
        let bytes = aside_bytes(&event.conversation);
        if self.aside.len() >= ASIDE_MAX || self.aside_bytes + bytes > ASIDE_BYTES_MAX {
            return false;
        }
        let (at_ms, failure) = (failed.at_ms, failed.failure);
        self.aside.push(WebhookAside { event: event.clone(), tries, at_ms, failure });
        self.aside_bytes += bytes;
        true
    }

    fn unpark_if_done(&mut self, conversation: &ConversationId) {
        if self.parked.get(conversation).is_some_and(|it| it.next_event(conversation).is_none()) {
            self.parked.remove(conversation);
            self.parked_bytes -= parked_bytes(conversation);
        }
    }
}
