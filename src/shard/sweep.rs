//! Deadline sweep: walks one dense array of ticks ten times a second, instead of a timer per connection.

use tidegate_protocol::{
    Code, Time,
    machine::{session::SessionPhase, window::Verdict},
};

use super::{
    SWEEP_INTERVAL, Shard,
    conn::{Conn, Ending, NO_DEADLINE, TrackedPush},
};
use crate::net::io::Io;

impl<I: Io> Shard<I> {
    /// Handles every connection whose deadline has passed, and retries reports of lost room frames.
    pub(super) fn sweep(&mut self) {
        self.retry_missed_reports();
        self.report_left_out();
        self.room_queue.forget_idle(self.now);
        self.hub.set_room_rules(self.context.room_rules.get());
        self.hub.listings.forget_idle(self.now);
        self.report_members();
        self.report_thinned();
        let tick = self.tick_of(self.now);
        for slot in 0..self.conns.deadlines.len() {
            if self.conns.deadlines[slot] <= tick {
                self.conns.deadlines[slot] = NO_DEADLINE;
                self.with_conn(slot as u32, Self::on_deadline);
            }
        }
    }

    /// Sets the tick of the connection's next check, never later than the tick already set.
    pub(super) fn rearm(&mut self, conn: &Conn) {
        if let Some(due) = self.due(conn) {
            let tick = self.tick_of(due).saturating_add(1);
            let noted = &mut self.conns.deadlines[conn.key.slot as usize];
            *noted = (*noted).min(tick);
        }
    }

    fn tick_of(&self, time: Time) -> u32 {
        u32::try_from(time.as_millis() / SWEEP_INTERVAL.as_millis() as u64).unwrap_or(NO_DEADLINE - 1)
    }

    fn due(&self, conn: &Conn) -> Option<Time> {
        match conn.ending {
            Some(Ending::Flushing(until) | Ending::Lingering(until)) => return Some(until),
            Some(Ending::Closed) => return None,
            None => {}
        }
        let session = conn.session.poll_timeout(&conn.settings.limits);
        let window = conn.window.as_ref().and_then(|window| window.poll_timeout());
        let frame = conn.partial.as_ref().map(|partial| partial.since + conn.settings.frame_deadline);
        let frame = frame.filter(|_| !conn.paused);
        let write = conn.blocked_since.map(|since| since + conn.settings.write_deadline);
        [session, window, frame, write, self.expiry_due(conn)].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, conn: &mut Conn) {
        match conn.ending {
            Some(Ending::Flushing(until)) if until <= self.now => return self.reset(conn),
            Some(Ending::Lingering(until)) if until <= self.now => return self.abort(conn),
            Some(_) => return,
            None => {}
        }
        if conn.blocked_since.is_some_and(|since| since + conn.settings.write_deadline <= self.now) {
            self.slow(conn);
        } else if self.frame_overdue(conn) {
            let code = if conn.session.phase() == SessionPhase::Greeting {
                Code::HandshakeTimeout
            } else {
                Code::FrameTimeout
            };
            conn.session.close(code, "", &mut self.buffers.actions);
            self.act(conn);
        } else if !self.close_expired(conn) {
            let gated = conn.session.gated();
            conn.session.handle_timeout(&conn.settings.limits, self.now, &mut self.buffers.actions);
            self.note_expired(conn, gated);
            self.act(conn);
            self.retransmit(conn);
            self.resume(conn);
        }
        self.flush(conn);
    }

    fn frame_overdue(&self, conn: &Conn) -> bool {
        let overdue = |since: Time| since + conn.settings.frame_deadline <= self.now;
        !conn.paused && conn.partial.as_ref().is_some_and(|partial| overdue(partial.since))
    }

    fn retransmit(&mut self, conn: &mut Conn) {
        let Some(window) = &mut conn.window else { return };
        let mut resend = Vec::new();
        let verdict = window.handle_timeout(self.now, &mut resend);
        if verdict == Verdict::GiveUp {
            return self.slow(conn);
        }
        let wire = self.conns.hot[conn.key.slot as usize].wire;
        self.context.metrics.retransmits.increment(resend.len() as u64);
        for TrackedPush { conversation, seq, frame } in resend {
            if !conn.is_open() {
                return;
            }
            let outbox = conn.outbox.get_or_insert_with(Box::default);
            let outcome =
                outbox.push_normal(frame.bytes(wire).clone(), &conversation, seq, conn.settings.caps);
            self.handle_push_outcome(conn, outcome);
        }
    }
}
