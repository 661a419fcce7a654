//! Budget of frames of a live session: which frames count, and what follows when the budget is spent.
//!
//! Every frame counts, WebSocket control frames and fragments included, except those that the broker has other limits
//! for and wants at any rate: a Send that becomes a submission, and an Ack that a tracked push was waiting for. They
//! are counted when they arrive, and given back when they turn out to be such. A submission that is refused, or that
//! repeats an earlier message, counts after all.

use super::{Action, Session, SessionLimits, State};
use crate::{Code, Time, machine::frame_budget::FrameVerdict};

impl Session {
    /// Handles a WebSocket control frame or fragment: a sign of life that counts as a frame.
    pub fn handle_control_frame(&mut self, limits: &SessionLimits, now: Time) {
        self.handle_heard(now);
        self.count_frame(limits, now);
        self.update_reading(limits, now);
    }

    /// Exempts an Ack from the budget of frames, because a tracked push was waiting for it.
    pub fn ack_was_due(&mut self, limits: &SessionLimits) {
        self.frames.give_back(limits.frames_per_second);
    }

    pub(super) fn count_frame(&mut self, limits: &SessionLimits, now: Time) {
        if matches!(self.state, State::Live) {
            self.frames.take(limits.frames_per_second, now);
        }
    }

    /// Refills a spent budget, and closes the session of a client that persists.
    pub(super) fn refill_frames(&mut self, limits: &SessionLimits, now: Time, out: &mut Vec<Action>) {
        if self.frames.is_spent() && matches!(self.state, State::Live) {
            if self.frames.handle_timeout(limits.frames_per_second, now) == FrameVerdict::Persists {
                return self.close(Code::TooManyFrames, "", out);
            }
            self.update_reading(limits, now);
        }
    }
}
