//! What the broker says back: submissions decided, overdue or refused.

use super::{Action, Answer, Limits, Session, State};
use crate::{
    Code, Time,
    pb::{self, server_frame::Body as Said},
};

impl Session {
    /// The driver could not submit what it was just given: nothing reached the log.
    ///
    /// Temporary: a chained message is expected again and its successors stay held. Permanent: that is its answer, and
    /// the chain goes on. Either way its n is not used up.
    pub fn submit_refused(
        &mut self,
        ticket: u64,
        code: Code,
        message: &str,
        limits: &Limits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        let youngest = self.flights.is_youngest(ticket);
        let Some(flight) = self.flights.answer(ticket) else { return };
        let id = flight.id;
        if flight.next_id.is_some()
            && let Some(ordered) = self.ordered.as_mut()
        {
            if !youngest {
                // Its successors have numbers that the ledger would never reach.
                return self.close(Code::Resync, "", out);
            }
            ordered.uncount(&flight.conversation);
            if code.temporary() {
                // A skip in between would be undone by this, so it has to come before the next timeout.
                if !ordered.chain.retract(&flight.msg_id, now) {
                    return self.close(Code::Resync, "", out);
                }
                flight.next_id = None;
            }
        }
        self.settle(out);
        self.refuse(id, code, message, limits, out);
        self.close_if_left(out);
        self.note_reading(limits, now);
    }

    /// What became of a submission. An answer that comes after its submission was told *unknown* is dropped.
    pub fn answered(
        &mut self,
        ticket: u64,
        answer: Answer,
        limits: &Limits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        if matches!(answer, Answer::AppendFailed) {
            if matches!(self.state, State::Live | State::Leaving { .. }) {
                self.close(Code::Resync, "", out);
            }
            return;
        }
        let stuck = self.ordered.as_ref().is_some_and(|it| it.is_stuck());
        let Some(flight) = self.flights.answer(ticket) else { return };
        let id = flight.id;
        if flight.next_id.is_some() && is_order_broken(&answer) {
            // No number of this epoch is taken in that conversation any more; and this id is not done.
            self.refuse(id, Code::OrderBroken, "", limits, out);
            return self.close(Code::Resync, "", out);
        }
        flight.unknown = matches!(answer, Answer::Unknown);
        let again = (stuck && !is_for_now(&answer)).then(|| flight.msg_id.clone());
        let mut ack = pb::SendAck {
            conversation: flight.conversation.to_string(),
            msg_id: flight.msg_id.to_string(),
            ..pb::SendAck::default()
        };
        // Before the ack: a client that has it must not find an older chain at its next login.
        self.settle(out);
        if let (Some(id), Some(ordered)) = (again, &mut self.ordered) {
            ordered.known(&id, out);
        }
        match answer {
            Answer::Accepted { seq, time } => {
                self.errors = 0;
                (ack.seq, ack.time) = (seq, time);
                self.say(id, Said::SendAck(ack), out);
            }
            Answer::Duplicate { seq, time } => {
                self.errors = 0;
                (ack.seq, ack.time, ack.duplicate) = (seq, time, true);
                self.say(id, Said::SendAck(ack), out);
            }
            Answer::Refused { code, message } => self.refuse(id, code, &message, limits, out),
            Answer::Unknown => self.refuse(id, Code::Unknown, "", limits, out),
            Answer::AppendFailed => {}
        }
        if self.ordered.as_ref().is_some_and(|it| it.is_stale()) && matches!(self.state, State::Live) {
            self.close(Code::Resync, "an unknown message was not sent again", out);
        }
        self.close_if_left(out);
        self.note_reading(limits, now);
    }

    /// Tells *unknown* for what had no answer in time.
    pub(super) fn give_up_overdue(&mut self, limits: &Limits, now: Time, out: &mut Vec<Action>) {
        while self.flights.oldest().is_some_and(|sent| sent + limits.reply_deadline <= now) {
            self.answered(self.flights.oldest_ticket(), Answer::Unknown, limits, now, out);
        }
    }

    pub(super) fn close_if_left(&mut self, out: &mut Vec<Action>) {
        if let State::Leaving { code, reason } = &mut self.state
            && self.flights.is_empty()
            && !self.appending
        {
            let (code, reason) = (*code, std::mem::take(reason));
            self.close(code, reason, out);
        }
    }

    /// Lets go of the flights that have their answers, as have all before them.
    fn settle(&mut self, out: &mut Vec<Action>) {
        while let Some(flight) = self.flights.pop_answered() {
            if let (Some(expected), Some(ordered)) = (flight.next_id, &mut self.ordered) {
                ordered.settled(flight.msg_id, expected, flight.unknown, out);
            }
        }
    }
}

/// Whether the same may be asked again, and answered otherwise.
fn is_for_now(answer: &Answer) -> bool {
    match answer {
        Answer::Unknown => true,
        Answer::Refused { code, .. } => code.temporary(),
        _ => false,
    }
}

fn is_order_broken(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused { code: Code::OrderBroken, .. })
}
