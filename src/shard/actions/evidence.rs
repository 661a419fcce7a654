//! Evidence of abuse on the connections of a shard, and the sends of suspended devices.

use std::time::Duration;

use tidegate_protocol::{
    Code,
    id::ConversationId,
    machine::session::{Submit, SubmitRefusal},
    pb,
};

use crate::{
    evidence::{EvidenceKind, EvidenceSource},
    net::io::Io,
    shard::{
        Shard,
        conn::{AnnouncedWait, Conn},
    },
};

/// Time after a refusal for which messages still come whose sender did not know of it.
const REFUSAL_LAG: Duration = Duration::from_millis(500);

/// Time before the end of a wait at which a message counts as in time.
const EARLY_MAX: Duration = Duration::from_millis(50);

/// Time in which several refused requests of a connection for what it may not see count as one: messages that a client had
/// queued for groups that it has left are refused at once.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Longest wait that a refusal names to a suspended device, which may be lifted before its end.
const SUSPENDED_WAIT_MAX: Duration = Duration::from_secs(60);

impl<I: Io> Shard<I> {
    /// Notes evidence of the connection, with its user once it has logged in.
    pub(in crate::shard) fn note_evidence(&self, conn: &Conn, kind: EvidenceKind) {
        let route = conn.login.as_deref().map(|login| &login.route);
        let source = EvidenceSource {
            address: Some(conn.address),
            user: route.map(|route| route.user.clone()),
            device: route.map(|route| route.device.clone()),
        };
        self.context.cluster.evidence.note(kind, source);
    }

    /// Notes what a refused request is evidence of.
    pub(in crate::shard) fn note_refusal(&mut self, conn: &mut Conn, error: &pb::Error) {
        // Probes are noted with their conversation.
        let kind = EvidenceKind::of_refusal(error.code).filter(|kind| *kind != EvidenceKind::Probe);
        let Some(kind) = kind else { return };
        self.note_evidence(conn, kind);
        // Other limits are used up by other users, too.
        let is_own = error.detail.get("level").is_some_and(|level| level == "user" || level == "device");
        if kind == EvidenceKind::LimitHit && is_own {
            self.note_impatience(conn, Duration::from_millis(u64::from(error.retry_after_ms)));
        }
    }

    /// Notes a refused request for a conversation, if its code says that there is none for the user: once for each
    /// conversation on one connection, because an honest client may try again and again.
    pub(in crate::shard) fn note_probe(&self, conn: &mut Conn, code: Code, conversation: &ConversationId) {
        if EvidenceKind::of_refusal(code.number().into()) != Some(EvidenceKind::Probe) {
            return;
        }
        let Some(login) = conn.login.as_deref_mut().filter(|login| login.next_probe <= self.now) else {
            return;
        };
        if login.probed.get_or_insert_default().insert(conversation) {
            login.next_probe = self.now + PROBE_INTERVAL;
            self.note_evidence(conn, EvidenceKind::Probe);
        }
    }

    /// Notes a message over a limit of its sender that comes before the last wait was over.
    fn note_impatience(&self, conn: &mut Conn, wait: Duration) {
        let Some(login) = conn.login.as_deref_mut() else { return };
        let is_impatient = login
            .announced
            .is_some_and(|it| it.at + REFUSAL_LAG <= self.now && self.now + EARLY_MAX < it.until);
        let is_over = login.announced.is_none_or(|it| it.until <= self.now + EARLY_MAX);
        // One wait is at most one evidence: further messages of it were under way as well.
        if is_impatient || is_over {
            login.announced = Some(AnnouncedWait { at: self.now, until: self.now + wait });
        }
        if is_impatient {
            self.note_evidence(conn, EvidenceKind::Impatience);
        }
    }

    /// Refuses a send of a suspended device before anything else counts it, and returns whether it did.
    pub(in crate::shard) fn refuse_suspended(&mut self, conn: &mut Conn, submit: &Submit) -> bool {
        let Some(retry_after) = self.suspended_for(conn) else { return false };
        self.context.metrics.suspended_sends.increment(1);
        let refusal = SubmitRefusal { retry_after, ..Code::Suspended.into() };
        let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
        conn.session.submit_refused(submit.ticket, refusal, limits, self.now, out);
        true
    }

    /// Drops a signal of a suspended device, and returns whether it did. Only a signal that asks for an answer gets one.
    pub(in crate::shard) fn drop_suspended(&mut self, conn: &mut Conn, id: u64) -> bool {
        let Some(wait) = self.suspended_for(conn) else { return false };
        self.context.metrics.signals_dropped.increment(1);
        conn.session.signal_deferred(id, Code::Suspended.error_after("", wait), &mut self.buffers.actions);
        true
    }

    /// Returns the wait that a refusal names to a suspended device; `None` if it may send.
    fn suspended_for(&self, conn: &Conn) -> Option<Duration> {
        let (cluster, route) = (&self.context.cluster, &conn.login.as_deref()?.route);
        let left = cluster.suspensions.left(&route.user, &route.device, || cluster.guard.now_ms());
        left.map(|left| left.min(SUSPENDED_WAIT_MAX))
    }
}
