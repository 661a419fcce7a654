//! Refresh of a connection's token, which its driver checks.

use super::{Action, Session, SessionLimits, State};
use crate::{Code, pb::server_frame::Body as ServerBody};
use std::time::Duration;

impl Session {
    /// Handles the outcome of an [`Action::Refresh`].
    pub fn refreshed(
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
            Ok(()) => self.done(id, out),
            Err((code, message)) => self.refuse(id, code, message, limits, out),
        }
    }

    /// Refuses an [`Action::Refresh`] because a limit is reached: the client may try again after `wait`.
    pub fn refresh_limited(&mut self, id: u64, message: &str, wait: Duration, out: &mut Vec<Action>) {
        if matches!(self.state, State::Live | State::Leaving { .. }) {
            let error = Code::RateLimited.error_after(message, wait);
            self.push_frame(id, ServerBody::Error(error), out);
        }
    }
}
