//! Signals: volatile frames, checked and held to a budget here, told to the others by the driver or dropped.

use super::{
    Action, Limits, Session, State,
    send::{Refusal, place},
};
use crate::{
    Code, Time,
    id::{ConversationId, ConversationKind, check_id},
    pb,
};
use prost::Message;
use std::time::Duration;

/// The time over which the budget is counted.
const SPAN: Duration = Duration::from_secs(1);

impl Session {
    /// The outcome of an [`Action::Signal`]: whether the conn may signal there, not whether anybody heard it.
    pub fn signalled(
        &mut self,
        id: u64,
        outcome: Result<(), (Code, &str)>,
        limits: &Limits,
        out: &mut Vec<Action>,
    ) {
        if !matches!(self.state, State::Live | State::Leaving { .. }) {
            return;
        }
        match outcome {
            Ok(()) => {
                self.errors = 0;
                self.done(id, out);
            }
            Err((code, words)) => self.refuse(id, code, words, limits, out),
        }
    }

    pub(super) fn handle_signal(
        &mut self,
        id: u64,
        signal: pb::Signal,
        limits: &Limits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        match self.to_signal(signal, limits) {
            Err((code, message)) => self.refuse(id, code, &message, limits, out),
            Ok((conversation, signal)) if self.may_signal(limits, now) => {
                out.push(Action::Signal { id, conversation, signal });
            }
            // Who floods is not answered unless it asks.
            Ok(_) => {
                out.push(Action::SignalDropped);
                if id != 0 {
                    self.refuse(
                        id,
                        Code::RateLimited,
                        "signals come too fast; this one was dropped",
                        limits,
                        out,
                    );
                }
            }
        }
    }

    /// Takes one signal out of the budget, if it has one left.
    fn may_signal(&mut self, limits: &Limits, now: Time) -> bool {
        let Some(each) = SPAN.checked_div(limits.signals_per_second) else { return false };
        let until = self.signals_until.max(now) + each;
        let fits = until <= now + SPAN;
        if fits {
            self.signals_until = until;
        }
        fits
    }

    fn to_signal(
        &self,
        signal: pb::Signal,
        limits: &Limits,
    ) -> Result<(ConversationId, Box<pb::Signal>), Refusal> {
        let identity = self.identity.as_ref().ok_or((Code::BadState, String::new()))?;
        let conversation = place(&signal.conversation, &signal.to_user, identity)?;
        if matches!(conversation.kind(), ConversationKind::Room(_)) {
            let cure = "a live room takes no signals; what is sent to it is as volatile";
            return Err((Code::Unsupported, cure.to_owned()));
        }
        check_id(&signal.kind).map_err(|why| (Code::BadId, format!("kind: {why}")))?;
        let bytes = signal.content.as_ref().map_or(0, Message::encoded_len);
        if bytes > limits.signal_bytes_max as usize {
            let cure = format!("a signal carries at most {} bytes", limits.signal_bytes_max);
            return Err((Code::ContentTooLarge, cure));
        }
        let told = pb::Signal {
            conversation: conversation.to_string(),
            to_user: String::new(),
            sender: identity.user.to_string(),
            ..signal
        };
        Ok((conversation, Box::new(told)))
    }
}
