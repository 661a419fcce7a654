//! Submission: collects the records of a turn's sends, and hands them to the intake together with the turn's logins.

use std::{mem, sync::Arc};

use bytes::Bytes;
use tidegate_protocol::{
    Code, Time,
    id::ConversationKind,
    machine::{
        ledger::MODES_RULES,
        session::{Action, Order, Ruling, SessionLimits, Submit, SubmitAnswer, SubmitRefusal},
    },
    pb::server_frame::Body as FrameBody,
    record::{Body, Message, MessageMode, Origin, Record, SenderOrder, body_hash},
};

use super::{
    Shard,
    actions::{limits::SendFault, token::RECIPIENT_NOT_GRANTED},
    conn::{Conn, LoginState},
};
use crate::{
    fault::planted::{Planted, is_planted},
    ingest::intake,
    net::io::Io,
    storms::SlowMessage,
};

impl<I: Io> Shard<I> {
    /// Adds the record of a send to the turn's batch, or refuses the send; a room message goes to its room instead.
    pub(super) fn submit(&mut self, conn: &mut Conn, submit: Submit) {
        self.context.metrics.sends.increment(1);
        let planned = !self.context.panic_in_shard && submit.msg_id.as_str() == self.context.panic_on_msg_id;
        if cfg!(debug_assertions) && planned {
            panic!("fault injected by fault.panic_on_msg_id");
        }
        if !Self::may_write(conn, &submit.conversation) {
            let (code, message) = RECIPIENT_NOT_GRANTED;
            let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
            let refusal = SubmitAnswer::Refused { code, message: message.into() };
            return conn.session.answered(submit.ticket, refusal, limits, self.now, out);
        }
        if self.refuse_suspended(conn, &submit) {
            return;
        }
        self.decide_send(conn, submit);
    }

    /// Adds the record of a send that its sender may make to the turn's batch, or refuses it for lack of capacity or because
    /// of a limit; a room message goes to its room instead. With `can_wait` a limit may let it wait.
    pub(super) fn submit_allowed(&mut self, conn: &mut Conn, submit: Submit, can_wait: bool) {
        if matches!(submit.conversation.kind(), ConversationKind::Room(_)) {
            return self.publish(conn, submit, can_wait);
        }
        if conn.login.is_none() {
            return;
        }
        if let Err(wait) = self.enter_send(conn) {
            return self.turn_away(conn, submit, &wait.into());
        }
        let Some(login) = &conn.login else { return };
        let (ticket, id, order) = (submit.ticket, submit.id, submit.order);
        let Ruling { denied, sent_hash, sent } = submit.ruling;
        let content = submit.content;
        let message = Message {
            conversation: submit.conversation,
            sender: login.route.user.clone(),
            device: login.route.device.clone(),
            msg_id: submit.msg_id,
            attempt: submit.attempt,
            body_hash: sent_hash.unwrap_or_else(|| body_hash(&content)),
            // What is refused is not kept.
            content: if denied.is_some() { Bytes::new() } else { content.clone() },
            order: SenderOrder { epoch: order.epoch, n: order.n, chained: order.chained },
            flags: submit.flags,
            mode: MessageMode { denied, ..MessageMode::of_flags(submit.flags) },
        };
        let origin = Origin {
            node: self.context.node.clone(),
            boot: self.context.boot,
            conn: conn.key.pack(),
            request: ticket,
        };
        // A refusal here gives the chain back to the client; a refusal by the log would close the connection.
        let cluster = &self.context.cluster;
        let refusal = intake::refusal(cluster, &message.conversation);
        // An owner of a former version would skip the record.
        let is_early = !message.mode.is_ordinary() && !cluster.peers.all_follow(MODES_RULES);
        let refusal = refusal.or(is_early.then_some(Code::NotYet));
        let received_at = self.wall_ms;
        let trace = self.trace_received(submit.trace, &message, received_at);
        let record = Record { origin, received_at, body: Body::Message(message), trace };
        let reserved = match refusal {
            Some(code) => Err(code.into()),
            None => self.reserve(conn, &record, sent.as_ref().unwrap_or(&content), can_wait),
        };
        match reserved {
            Ok(()) => {
                conn.session.admitted(ticket, self.now);
                self.context.ack_times.begin(conn.key, ticket);
                self.batch.push(record);
            }
            Err(fault) => {
                if is_planted(Planted::ChainSkipsRefused) {
                    let settings = Arc::clone(&conn.settings);
                    let (limits, actions) = (&settings.limits, &mut self.buffers.actions);
                    return refuse_and_go_on(conn, ticket, fault.refusal(), limits, self.now, actions);
                }
                if let Some(submit) = submit_of(record, content, sent, ticket, id, order) {
                    self.turn_away(conn, submit, &fault);
                }
            }
        }
    }

    /// Returns whether the connection may submit its next send now, before those of its user that wait.
    pub(super) fn may_submit(conn: &Conn) -> bool {
        let in_flight_max = conn.settings.limits.in_flight_max;
        let may_send = |login: &LoginState| login.sends.may_send(conn.session.in_flight(), in_flight_max);
        conn.held.is_none() && conn.login.as_deref().is_none_or(may_send)
    }

    /// Lists a connection whose next send has to wait, and which is not read until it is submitted.
    pub(super) fn hold_sends(&mut self, conn: &mut Conn) {
        if let Some(login) = conn.login.as_deref_mut().filter(|login| !login.sends.is_waiting())
            && conn.session.has_submit()
        {
            login.sends.set_waiting(true);
            self.held.push_back(conn.key.slot);
        }
    }

    /// Submits one send of each connection that waits for others of its user, as far as these may be in flight. The
    /// connections take turns.
    pub(super) fn submit_held(&mut self) {
        for slot in mem::take(&mut self.held) {
            if !self.is_released(slot) {
                self.held.push_back(slot);
                continue;
            }
            self.with_conn(slot, |shard, conn| {
                if let Some(login) = &mut conn.login {
                    login.sends.set_waiting(false);
                }
                let (limits, out) = (&conn.settings.limits, &mut shard.buffers.actions);
                if let Some(submit) = conn.session.poll_submit(limits, shard.now, out) {
                    shard.submit(conn, *submit);
                }
                shard.act(conn);
                shard.resume(conn);
                shard.flush(conn);
            });
        }
    }

    /// Returns whether the connection, which has waited, may submit its next send, or has none any more.
    pub(super) fn is_released(&self, slot: u32) -> bool {
        let Some(conn) = self.conns.peek(slot) else { return true };
        let in_flight_max = conn.settings.limits.in_flight_max;
        let has_room = |login: &LoginState| {
            conn.held.is_none() && login.sends.has_room(conn.session.in_flight(), in_flight_max)
        };
        !conn.session.has_submit() || conn.login.as_deref().is_none_or(has_room)
    }

    /// Reserves capacity for a message and counts it in the limits of its sender and in all rules; does neither if one
    /// refuses it.
    fn reserve(&self, conn: &Conn, record: &Record, content: &[u8], can_wait: bool) -> Result<(), SendFault> {
        let weight = intake::weight(record);
        self.context.intake.reserve(weight)?;
        let Body::Message(message) = &record.body else { return Ok(()) };
        let conversation = &message.conversation;
        let limiter = || {
            let slow = self.context.cluster.storms.entries().slow();
            let Message { sender: user, device, msg_id, .. } = message;
            let asked = SlowMessage { group: conversation, user, device, msg_id };
            let admission = slow.admit(asked, || !self.hub.is_in(conversation, conn.key.slot))?;
            let limited = self.context.limiter.send(&message.sender, conversation, self.now);
            limited.inspect_err(|_| admission.withdraw())
        };
        let admitted = self.admit_send(conn, conversation, content, can_wait, limiter);
        if admitted.is_err() {
            self.context.intake.release(weight);
        }
        admitted
    }

    /// Hands this turn's sends and logins to the intake; those that it does not take now are offered again next turn.
    pub(super) fn submit_turn(&mut self) {
        let is_planned = |record: &Record| intake::is_message(record, &self.context.panic_on_msg_id);
        if cfg!(debug_assertions) && self.context.panic_in_shard && self.batch.iter().any(is_planned) {
            panic!("fault injected by fault.panic_on_msg_id in fault.panic_in=shard");
        }
        if !self.batch.is_empty() {
            self.batch = self.context.intake.offer_records(mem::take(&mut self.batch));
        }
        if !self.logins.is_empty() {
            self.logins = self.context.intake.offer_logins(mem::take(&mut self.logins));
            // Connections that closed meanwhile need no memberships.
            self.logins.retain(|(key, _)| self.conns.find(*key).is_some());
        }
        if self.frames_in > 0 {
            self.context.metrics.frames_in.increment(mem::take(&mut self.frames_in));
        }
    }
}

/// Returns the send that a record was made of, with its content and that of the client, if it is another one.
fn submit_of(
    record: Record,
    content: Bytes,
    sent: Option<Bytes>,
    ticket: u64,
    id: u64,
    order: Order,
) -> Option<Submit> {
    let Record { body: Body::Message(message), trace, .. } = record else { return None };
    let Message { conversation, msg_id, attempt, flags, mode, body_hash, .. } = message;
    let ruling = Ruling { denied: mode.denied, sent_hash: Some(body_hash), sent };
    Some(Submit { ticket, id, conversation, msg_id, attempt, content, order, flags, trace, ruling })
}

/// Refuses a send as temporarily as `refusal` does, but continues the chain as after a permanent refusal; a planted fault.
fn refuse_and_go_on(
    conn: &mut Conn,
    ticket: u64,
    refusal: SubmitRefusal<'_>,
    limits: &SessionLimits,
    now: Time,
    actions: &mut Vec<Action>,
) {
    let before = actions.len();
    let permanent = SubmitRefusal { code: Code::NotAMember, ..refusal };
    conn.session.submit_refused(ticket, permanent, limits, now, actions);
    for action in &mut actions[before..] {
        if let Action::Reply(frame) = action
            && let Some(FrameBody::Error(error)) = &mut frame.body
        {
            (error.code, error.temporary) = (u32::from(refusal.code.number()), true);
        }
    }
}
