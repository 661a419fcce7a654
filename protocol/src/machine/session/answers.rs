//! Answers of the broker to submissions: outcomes, refusals and timeouts, and the delays until then.

use super::{Action, Session, SessionLimits, State, SubmitAnswer, SubmitRefusal, send::is_exempt};
use crate::{
    Code, Time,
    id::ConversationId,
    pb::{self, server_frame::Body as ServerBody},
};
use std::time::Duration;

impl Session {
    /// Returns the number of unanswered submissions that a gate has admitted.
    pub const fn gated(&self) -> u32 {
        self.gated
    }

    /// Notes that a gate has admitted a submission: its delay begins. The deadline of its answer stays.
    pub fn admitted(&mut self, ticket: u64, now: Time) {
        if let Some(flight) = self.flights.unanswered(ticket) {
            self.gated += u32::from(!flight.gated);
            (flight.gated, flight.admitted) = (true, now);
        }
    }

    /// Returns how long a submission has waited for its answer since a gate has admitted it, `None` if none has, or if it is
    /// answered.
    pub fn delay_of(&mut self, ticket: u64, now: Time) -> Option<Duration> {
        let flight = self.flights.unanswered(ticket).filter(|flight| flight.gated)?;
        Some(now.since(flight.admitted))
    }

    /// Returns the conversation of a submission; `None` if it is answered.
    pub fn conversation_of(&mut self, ticket: u64) -> Option<&ConversationId> {
        self.flights.unanswered(ticket).map(|flight| &flight.conversation)
    }

    /// Handles the refusal of a submission before it reached the log.
    ///
    /// After a temporary refusal a chained message is expected again, and everything behind it is refused as well, in
    /// chain order, until it arrives. A permanent refusal is its answer, and the chain continues. Either way its n is
    /// not used up.
    pub fn submit_refused(
        &mut self,
        ticket: u64,
        refusal: SubmitRefusal<'_>,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        let newest = self.flights.is_newest(ticket);
        let Some(flight) = self.flights.answer(ticket) else { return };
        self.gated = self.gated.saturating_sub(flight.gated.into());
        let (id, was_exempt) = (flight.id, is_exempt(&flight.conversation));
        let mut given_back = None;
        if flight.next_id.is_some()
            && let Some(ordered) = self.ordered.as_mut()
        {
            if !newest {
                // The numbers of its successors would never be next for the ledger.
                return self.close(Code::Resync, "", out);
            }
            ordered.uncount(&flight.conversation);
            if refusal.code.temporary() {
                // A refusal after the next timeout could come after a skip, which can't be retracted.
                if !ordered.chain.retract(&flight.msg_id, now) {
                    return self.close(Code::Resync, "", out);
                }
                given_back = flight.next_id.take();
            }
        }
        if was_exempt {
            self.count_frame(limits, now);
        }
        self.release_answered(out);
        self.refuse_submit(id, &refusal, limits, out);
        if let Some(next_id) = given_back {
            self.start_giving_back(&next_id, &refusal, limits, now, out);
        }
        self.close_if_done(out);
        self.update_reading(limits, now);
    }

    /// Handles the answer to a submission. An answer after the client has got *unknown* is dropped.
    pub fn answered(
        &mut self,
        ticket: u64,
        answer: SubmitAnswer,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        if matches!(answer, SubmitAnswer::AppendFailed) {
            if matches!(self.state, State::Live | State::Leaving { .. }) {
                self.close(Code::Resync, "", out);
            }
            return;
        }
        let stuck = self.ordered.as_ref().is_some_and(|it| it.is_stuck());
        let Some(flight) = self.flights.answer(ticket) else { return };
        self.gated = self.gated.saturating_sub(flight.gated.into());
        let (id, was_exempt) = (flight.id, is_exempt(&flight.conversation));
        if let Some(code) = untaken(&answer).filter(|_| flight.next_id.is_some()) {
            // The ledger accepts no later number of this epoch in that conversation, and this id is not done.
            self.refuse(id, code, "", limits, out);
            return self.close(Code::Resync, "", out);
        }
        flight.unknown = matches!(answer, SubmitAnswer::Unknown);
        let resolved = (stuck && !is_temporary(&answer)).then(|| flight.msg_id.clone());
        let mut ack = pb::SendAck {
            conversation: flight.conversation.to_string(),
            msg_id: flight.msg_id.to_string(),
            ..pb::SendAck::default()
        };
        // Save before the ack: a client that has the ack must not find an older chain at its next login.
        self.release_answered(out);
        if let (Some(id), Some(ordered)) = (resolved, &mut self.ordered) {
            ordered.resolve_unknown(&id, out);
        }
        if was_exempt && matches!(answer, SubmitAnswer::Duplicate { .. } | SubmitAnswer::Refused { .. }) {
            self.count_frame(limits, now);
        }
        match answer {
            SubmitAnswer::Accepted { seq, time } => {
                self.errors = self.errors.saturating_sub(1);
                (ack.seq, ack.time) = (seq, time);
                self.push_frame(id, ServerBody::SendAck(ack), out);
            }
            SubmitAnswer::Duplicate { seq, time } => {
                (ack.seq, ack.time, ack.duplicate) = (seq, time, true);
                self.push_frame(id, ServerBody::SendAck(ack), out);
            }
            SubmitAnswer::Refused { code, message } => self.refuse(id, code, &message, limits, out),
            SubmitAnswer::Unknown => self.refuse(id, Code::Unknown, "", limits, out),
            SubmitAnswer::AppendFailed => {}
        }
        if self.ordered.as_ref().is_some_and(|it| it.is_stale()) && matches!(self.state, State::Live) {
            self.close(Code::Resync, "a message with an unknown outcome was not resent", out);
        }
        self.close_if_done(out);
        self.update_reading(limits, now);
    }

    /// Replies *unknown* for each submission whose answer is overdue.
    pub(super) fn expire_overdue(&mut self, limits: &SessionLimits, now: Time, out: &mut Vec<Action>) {
        while self.flights.oldest().is_some_and(|sent| sent + limits.reply_deadline <= now) {
            self.answered(self.flights.oldest_ticket(), SubmitAnswer::Unknown, limits, now, out);
        }
    }

    pub(super) fn close_if_done(&mut self, out: &mut Vec<Action>) {
        if let State::Leaving { code, reason } = &mut self.state
            && self.flights.is_empty()
            && !self.append_open
        {
            let (code, reason) = (*code, std::mem::take(reason));
            self.close(code, reason, out);
        }
    }

    /// Removes answered flights from the front of the queue.
    fn release_answered(&mut self, out: &mut Vec<Action>) {
        while let Some(flight) = self.flights.pop_answered() {
            if let (Some(expected), Some(ordered)) = (flight.next_id, &mut self.ordered) {
                ordered.add_answered(flight.msg_id, expected, flight.unknown, out);
            }
        }
    }
}

/// Returns whether the same message may get another answer later.
fn is_temporary(answer: &SubmitAnswer) -> bool {
    match answer {
        SubmitAnswer::Unknown => true,
        SubmitAnswer::Refused { code, .. } => code.temporary(),
        _ => false,
    }
}

/// Returns the code of a refusal by which a chained message has not taken its number.
fn untaken(answer: &SubmitAnswer) -> Option<Code> {
    match answer {
        SubmitAnswer::Refused { code: code @ (Code::OrderBroken | Code::NotYet), .. } => Some(*code),
        _ => None,
    }
}
