//! Queue of submissions in flight, oldest first: assigns answers to submissions and finds overdue ones.

use crate::{
    Time,
    id::{ConversationId, MsgId},
};
use std::collections::VecDeque;

/// Submission that has no answer, or waits in the queue behind one that has none.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) id: u64,
    pub(super) conversation: ConversationId,
    pub(super) msg_id: MsgId,
    /// Successor of a chained message, `None` for an unchained one.
    pub(super) next_id: Option<MsgId>,
    /// Whether the client got *unknown*.
    pub(super) unknown: bool,
    pub(super) sent: Time,
    /// Whether a gate has admitted it.
    pub(super) gated: bool,
    /// Time from which its delay counts: it may have waited for a decision before a gate admitted it.
    pub(super) admitted: Time,
}

/// Submissions in flight. Tickets rise by one, so the ticket gives the index; the queue is freed when it empties.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    queue: VecDeque<Slot>,
    next_ticket: u64,
}

#[derive(Clone, Debug)]
struct Slot {
    flight: Flight,
    answered: bool,
}

impl Flights {
    /// Returns the number of used slots. An answered flight keeps its slot until all before it are answered.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a flight and returns its ticket.
    pub(super) fn push(&mut self, flight: Flight) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queue.push_back(Slot { flight, answered: false });
        ticket
    }

    /// Returns whether `ticket` is the last submission.
    pub(super) fn is_newest(&self, ticket: u64) -> bool {
        ticket + 1 == self.next_ticket
    }

    /// Marks the flight of `ticket` as answered and returns it, `None` if it is unknown or already answered.
    pub(super) fn answer(&mut self, ticket: u64) -> Option<&mut Flight> {
        let first = self.oldest_ticket();
        let slot = self.queue.get_mut(usize::try_from(ticket.checked_sub(first)?).ok()?)?;
        if slot.answered {
            return None;
        }
        slot.answered = true;
        Some(&mut slot.flight)
    }

    /// Returns the unanswered flight of `ticket`.
    pub(super) fn unanswered(&mut self, ticket: u64) -> Option<&mut Flight> {
        let first = self.oldest_ticket();
        let slot = self.queue.get_mut(usize::try_from(ticket.checked_sub(first)?).ok()?)?;
        (!slot.answered).then_some(&mut slot.flight)
    }

    /// Removes and returns the first flight if it is answered.
    pub(super) fn pop_answered(&mut self) -> Option<Flight> {
        let slot = self.queue.pop_front_if(|slot| slot.answered);
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        Some(slot?.flight)
    }

    /// Returns the id of the first chained flight.
    pub(super) fn first_chained(&self) -> Option<&MsgId> {
        self.queue.iter().map(|slot| &slot.flight).find(|it| it.next_id.is_some()).map(|it| &it.msg_id)
    }

    /// Replaces the successor `skipped` by `resumed_at`, where the chain continues.
    pub(super) fn relink(&mut self, skipped: &MsgId, resumed_at: &MsgId) {
        for slot in &mut self.queue {
            if slot.flight.next_id.as_ref() == Some(skipped) {
                slot.flight.next_id = Some(resumed_at.clone());
            }
        }
    }

    /// Returns when the oldest unanswered flight was submitted.
    pub(super) fn oldest(&self) -> Option<Time> {
        // Each answer is followed by a pop, so the first slot is unanswered.
        self.queue.front().map(|slot| slot.flight.sent)
    }

    /// Returns the ticket of the oldest flight.
    pub(super) fn oldest_ticket(&self) -> u64 {
        self.next_ticket - self.queue.len() as u64
    }
}
