//! Gates at the edges of a shard: what they admit, what a refusal says, and when admitted work ends.

use tidegate_protocol::{
    Code,
    id::RoomId,
    machine::{
        gate::GateClass,
        session::{Query, SessionPhase, SubmitAnswer},
    },
    pb,
};

use super::limits::OVERLOADED;
use crate::{
    load::OverloadWait,
    net::io::Io,
    shard::{
        Shard,
        conn::{Conn, class_of},
    },
};

/// Reason of a refused login.
const LOGIN_OVERLOADED: &str = "the node is overloaded: come back after the given time";

/// Highest priority of a user.
const PRIORITY_MAX: u8 = 3;

/// Sends of a connection, the next one included, with which it counts as light.
const LIGHT_MAX: usize = 2;

/// Returns the error of a refused request.
fn busy(wait: OverloadWait) -> pb::Error {
    Code::Busy.error_after(OVERLOADED, wait.0)
}

impl<I: Io> Shard<I> {
    /// Admits a send to the log, before its record is made. If it does not reach the log, it leaves the gate again at the
    /// end of the visit. Messages to rooms have bounds of their own.
    pub(in crate::shard) fn enter_send(&mut self, conn: &mut Conn) -> Result<(), OverloadWait> {
        let is_light = conn.session.in_flight() <= LIGHT_MAX;
        let is_urgent = class_of(self.conns.hot[conn.key.slot as usize].flags) == PRIORITY_MAX;
        let class = if is_urgent { GateClass::Urgent } else { GateClass::Send };
        let entered = self.gates.enter_send(class, is_light);
        match entered {
            Ok(()) => conn.login.iter_mut().for_each(|login| login.gated_sends += 1),
            Err(_) => self.context.metrics.gate_sends_refused.increment(1),
        }
        entered
    }

    /// Counts the delay of a send whose answer has come: with the time that its connection waited to be read. A failed append
    /// is answered at its own time, which says nothing about a queue.
    pub(in crate::shard) fn note_answered(&mut self, conn: &mut Conn, ticket: u64, answer: &SubmitAnswer) {
        let is_by_ledger = match answer {
            SubmitAnswer::Accepted { .. } | SubmitAnswer::Duplicate { .. } => true,
            SubmitAnswer::Refused { code, .. } => !code.temporary(),
            SubmitAnswer::Unknown | SubmitAnswer::AppendFailed => false,
        };
        if is_by_ledger && let Some(delay) = conn.session.delay_of(ticket, self.now) {
            self.gates.note_send_delay(delay + self.visit_lag.last());
        }
    }

    /// Counts the deadline as the delay of sends that have got no answer in time, of `gated` before the check.
    pub(in crate::shard) fn note_expired(&mut self, conn: &Conn, gated: u32) {
        if conn.session.phase() != SessionPhase::Closed {
            for _ in conn.session.gated()..gated {
                self.gates.note_send_delay(conn.settings.limits.reply_deadline);
            }
        }
    }

    /// Admits a login, or refuses it for a time.
    pub(in crate::shard) fn enter_login(&mut self, conn: &mut Conn, hello: &pb::Hello) -> bool {
        // A declared id continues the chain of a device.
        let class = if hello.next_id.is_empty() { GateClass::New } else { GateClass::Urgent };
        let Err(wait) = self.gates.enter_login(class) else {
            conn.is_login_gated = true;
            return true;
        };
        self.context.metrics.gate_logins_refused.increment(1);
        self.context.metrics.login_refusals.increment(1);
        self.buffers.close_after = Some(wait.0);
        let out = &mut self.buffers.actions;
        conn.session.login_deferred(Code::Overloaded, LOGIN_OVERLOADED, wait.0, out);
        false
    }

    /// Admits a query, or refuses it for a time. Only reads are refused: changes by users are few and awaited.
    pub(in crate::shard) fn enter_query(&mut self, conn: &mut Conn, id: u64, query: &Query) -> Option<bool> {
        if !matches!(query, Query::Pull(_) | Query::Sync(_) | Query::Watch { stop: false, .. }) {
            return Some(false);
        }
        let Err(wait) = self.gates.enter_read() else { return Some(true) };
        self.context.metrics.gate_reads_refused.increment(1);
        conn.session.query_deferred(id, busy(wait), &mut self.buffers.actions);
        None
    }

    /// Admits a join, or refuses it for a time.
    pub(in crate::shard) fn enter_join(&mut self, conn: &mut Conn, id: u64, room: &RoomId) -> bool {
        let Err(wait) = self.gates.enter_uncounted(GateClass::Presence) else { return true };
        self.context.metrics.gate_reads_refused.increment(1);
        conn.session.join_deferred(id, room, busy(wait), &mut self.buffers.actions);
        false
    }

    /// Admits a signal, or drops it.
    pub(in crate::shard) fn enter_signal(&mut self, conn: &mut Conn, id: u64) -> bool {
        let Err(wait) = self.gates.enter_uncounted(GateClass::Signal) else { return true };
        self.context.metrics.signals_dropped.increment(1);
        conn.session.signal_deferred(id, busy(wait), &mut self.buffers.actions);
        false
    }

    /// Ends a login that succeeds, before the session notices.
    pub(in crate::shard) fn leave_login(&mut self, conn: &mut Conn) {
        if let Some(since) = conn.session.logging_in_since()
            && std::mem::take(&mut conn.is_login_gated)
        {
            self.gates.leave_login(Some(self.now.since(since)));
        }
    }

    /// Ends the work of a connection that is over, after anything that was done for it.
    pub(in crate::shard) fn settle_gates(&mut self, conn: &mut Conn) {
        if let Some(login) = &mut conn.login {
            login.sends.count(conn.session.in_flight());
            let ended = login.gated_sends.saturating_sub(conn.session.gated());
            if ended > 0 {
                login.gated_sends -= ended;
                self.gates.leave_sends(ended);
            }
        }
        if conn.is_login_gated && (conn.session.phase() != SessionPhase::LoggingIn || !conn.is_open()) {
            conn.is_login_gated = false;
            self.gates.leave_login(None);
        }
        if let Some(query) = conn.open_query.as_mut().filter(|query| query.is_sent || conn.ending.is_some())
            && let Some(since) = query.gated_since.take()
        {
            self.gates.leave_read(query.is_sent.then(|| self.now.since(since)));
        }
    }
}
