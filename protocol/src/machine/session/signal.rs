//! Signals, which are volatile frames, and reactions to live rooms: validates them and enforces their common budget; the
//! driver forwards them (SPEC section 7).

use super::{
    Action, Session, SessionLimits, State,
    send::{Refusal, target},
};
use crate::{
    Code, Time,
    id::{ConversationId, ConversationKind, RoomId, check_id},
    machine::reactions::{REACTION_KIND_BYTES_MAX, ReactionKind},
    pb::{self, server_frame::Body as ServerBody},
};
use prost::Message;
use std::time::Duration;

/// Time over which the budget of signals is counted.
const BUDGET_SPAN: Duration = Duration::from_secs(1);

impl Session {
    /// Handles the outcome of an [`Action::Signal`] or [`Action::React`]: whether the connection may do that there, not who
    /// received it.
    pub fn signalled(
        &mut self,
        id: u64,
        outcome: Result<(), (Code, &str)>,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        if !matches!(self.state, State::Live | State::Leaving { .. }) {
            return;
        }
        match outcome {
            Ok(()) => {
                self.done(id, out);
            }
            Err((code, message)) => self.refuse(id, code, message, limits, out),
        }
    }

    /// Handles that a signal was dropped because a rate limit of its user is reached. Only a signal that asks for an
    /// answer gets one.
    pub fn signal_limited(&mut self, id: u64, wait: Duration, out: &mut Vec<Action>) {
        self.signal_deferred(id, Code::RateLimited.error_after("", wait), out);
    }

    /// Handles that a signal was dropped for the time that the error names. Only a signal that asks for an answer gets one.
    pub fn signal_deferred(&mut self, id: u64, error: pb::Error, out: &mut Vec<Action>) {
        if id != 0 && matches!(self.state, State::Live | State::Leaving { .. }) {
            self.push_frame(id, ServerBody::Error(error), out);
        }
    }

    pub(super) fn handle_signal(
        &mut self,
        id: u64,
        signal: pb::Signal,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        match self.to_signal(signal, limits) {
            Err((code, message)) => self.refuse(id, code, &message, limits, out),
            Ok((conversation, signal)) if self.may_signal(limits, now) => {
                out.push(Action::Signal { id, conversation, signal });
            }
            // Over the budget, only a signal that asks for an answer gets one.
            Ok(_) => {
                out.push(Action::SignalDropped);
                if id != 0 {
                    self.refuse(id, Code::RateLimited, "signal dropped: send fewer per second", limits, out);
                }
            }
        }
    }

    pub(super) fn handle_react(
        &mut self,
        id: u64,
        react: &pb::React,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        let room = match RoomId::new(&react.room) {
            Ok(room) => room,
            Err(error) => return self.refuse(id, Code::BadId, &error.to_string(), limits, out),
        };
        let Some(kind) = ReactionKind::new(&react.kind) else {
            let cure =
                format!("kind: 1 to {REACTION_KIND_BYTES_MAX} bytes without spaces and control characters");
            return self.refuse(id, Code::BadId, &cure, limits, out);
        };
        if self.may_signal(limits, now) {
            return out.push(Action::React { id, room, kind });
        }
        out.push(Action::SignalDropped);
        if id != 0 {
            self.refuse(id, Code::RateLimited, "reaction dropped: send fewer per second", limits, out);
        }
    }

    /// Takes one signal or reaction from the budget, and returns whether one was left.
    fn may_signal(&mut self, limits: &SessionLimits, now: Time) -> bool {
        let Some(each) = BUDGET_SPAN.checked_div(limits.signals_per_second) else { return false };
        let until = self.signals_until.max(now) + each;
        let fits = until <= now + BUDGET_SPAN;
        if fits {
            self.signals_until = until;
        }
        fits
    }

    fn to_signal(
        &self,
        signal: pb::Signal,
        limits: &SessionLimits,
    ) -> Result<(ConversationId, Box<pb::Signal>), Refusal> {
        let identity = self.identity.as_ref().ok_or((Code::BadState, String::new()))?;
        let conversation = target(&signal.conversation, &signal.to_user, identity)?;
        if matches!(conversation.kind(), ConversationKind::Room(_)) {
            let cure = "a live room accepts no signals; send a message, which is as volatile";
            return Err((Code::Unsupported, cure.to_owned()));
        }
        check_id(&signal.kind).map_err(|error| (Code::BadId, format!("kind: {error}")))?;
        let content = signal.content.map(|content| match content.encoded_len() {
            0 => Ok(content),
            _ => content.checked(),
        });
        let content = content.transpose().map_err(|error| (Code::BadContent, format!("content: {error}")))?;
        let bytes = content.as_ref().map_or(0, Message::encoded_len);
        if bytes > limits.signal_bytes_max as usize {
            let cure = format!("signal content is too large; send at most {} bytes", limits.signal_bytes_max);
            return Err((Code::ContentTooLarge, cure));
        }
        let complete = pb::Signal {
            conversation: conversation.to_string(),
            to_user: String::new(),
            sender: identity.user.to_string(),
            content,
            ..signal
        };
        Ok((conversation, Box::new(complete)))
    }
}
