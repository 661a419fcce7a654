//! Submissions on their way to the log, oldest first: whose answer is whose, and which are overdue.

use crate::{
    Time,
    id::{ConversationId, MsgId},
};
use std::collections::VecDeque;

/// A submission without an answer, or behind one without.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) id: u64,
    pub(super) conversation: ConversationId,
    pub(super) msg_id: MsgId,
    /// Set for a chained one.
    pub(super) next_id: Option<MsgId>,
    /// The client was told *unknown*.
    pub(super) unknown: bool,
    pub(super) sent: Time,
}

/// Tickets rise by one, so a flight is found by its distance from the first; the queue is freed when it empties.
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
    /// How many slots are taken. An answered flight keeps its slot until all before it have their answers.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a flight; gives its ticket.
    pub(super) fn push(&mut self, flight: Flight) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queue.push_back(Slot { flight, answered: false });
        ticket
    }

    /// Whether nothing was submitted after `ticket`.
    pub(super) fn is_youngest(&self, ticket: u64) -> bool {
        ticket + 1 == self.next_ticket
    }

    /// The flight of `ticket`, once: it has its answer now.
    pub(super) fn answer(&mut self, ticket: u64) -> Option<&mut Flight> {
        let first = self.next_ticket - self.queue.len() as u64;
        let slot = self.queue.get_mut(usize::try_from(ticket.checked_sub(first)?).ok()?)?;
        if slot.answered {
            return None;
        }
        slot.answered = true;
        Some(&mut slot.flight)
    }

    /// The next flight that has its answer, as have all before it.
    pub(super) fn pop_answered(&mut self) -> Option<Flight> {
        let slot = self.queue.pop_front_if(|slot| slot.answered);
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        Some(slot?.flight)
    }

    /// The first chained flight whose answer is not saved.
    pub(super) fn first_chained(&self) -> Option<&MsgId> {
        self.queue.iter().map(|slot| &slot.flight).find(|it| it.next_id.is_some()).map(|it| &it.msg_id)
    }

    /// The chain goes on at `resumed_at` and not at `skipped`, for whoever leads there.
    pub(super) fn relink(&mut self, skipped: &MsgId, resumed_at: &MsgId) {
        for slot in &mut self.queue {
            if slot.flight.next_id.as_ref() == Some(skipped) {
                slot.flight.next_id = Some(resumed_at.clone());
            }
        }
    }

    /// When the oldest flight without an answer was sent.
    pub(super) fn oldest(&self) -> Option<Time> {
        // Whoever answers also pops, so the first slot has no answer.
        self.queue.front().map(|slot| slot.flight.sent)
    }

    /// The oldest ticket.
    pub(super) fn oldest_ticket(&self) -> u64 {
        self.next_ticket - self.queue.len() as u64
    }
}
