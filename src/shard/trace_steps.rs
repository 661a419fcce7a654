//! The steps of traced messages that a shard sees: taken in, pushed, acked. Nothing here is done for the others.

use tidegate_protocol::{
    id::{ConversationId, ConversationKind},
    record::Message,
    trace::TraceContext,
};

use super::{Shard, conn::Conn};
use crate::{
    mail::Delivery,
    trace::{Facts, Step},
};

/// Traced pushes of a shard that wait for their acks; of more the oldest are not followed.
const AWAITED_MAX: usize = 256;

/// A traced push that its device has not acked.
pub(super) struct Awaited {
    slot: u32,
    conversation: ConversationId,
    seq: u64,
    trace: TraceContext,
}

impl Shard {
    /// Whether the message is traced; then its first step is noted.
    pub(super) fn trace(
        &self,
        given: Option<TraceContext>,
        message: &Message,
        now_ms: u64,
    ) -> Option<TraceContext> {
        let peers = match message.conversation.kind() {
            ConversationKind::Direct(a, b) => [a, b],
            ConversationKind::Group(_) | ConversationKind::Room(_) => [message.sender.as_str(); 2],
        };
        let tracer = &self.context.ports.trace;
        let trace = tracer.begin(now_ms, given, message.msg_id.as_str(), peers)?;
        let facts = Facts {
            msg: message.msg_id.as_str(),
            conversation: message.conversation.as_str(),
            user: message.sender.as_str(),
            device: message.device.as_str(),
            ..Facts::default()
        };
        tracer.note(&trace, Step::Received, facts, format_args!("attempt {}", message.attempt));
        Some(trace)
    }

    /// A traced push goes into a connection's outbox.
    #[cold]
    pub(super) fn note_push(&mut self, conn: &Conn, delivery: &Delivery, trace: TraceContext) {
        let Some(who) = &conn.who else { return };
        let facts = Facts {
            conversation: delivery.conversation.as_str(),
            seq: delivery.seq,
            user: who.route.user.as_str(),
            device: who.route.device.as_str(),
            ..Facts::default()
        };
        self.context.ports.trace.note(&trace, Step::Pushed, facts, format_args!(""));
        if self.awaited.len() >= AWAITED_MAX {
            self.awaited.pop_front();
        }
        let conversation = delivery.conversation.clone();
        self.awaited.push_back(Awaited { slot: conn.key.slot, conversation, seq: delivery.seq, trace });
    }

    /// Traced pushes go to a part of a group's members, without a look at who they are.
    #[cold]
    pub(super) fn note_fan_out(&self, run: &[Delivery], members: usize) {
        for delivery in run {
            let Some(trace) = delivery.frame.trace() else { continue };
            let facts =
                Facts { conversation: delivery.conversation.as_str(), seq: delivery.seq, ..Facts::default() };
            let shard = self.context.index;
            let more = format_args!("to {members} members of shard {shard}");
            self.context.ports.trace.note(trace, Step::Pushed, facts, more);
        }
    }

    /// A device has everything up to `seq`.
    #[cold]
    pub(super) fn note_ack(&mut self, conn: &Conn, conversation: &ConversationId, seq: u64) {
        let Some(who) = &conn.who else { return };
        let tracer = &self.context.ports.trace;
        self.awaited.retain(|it| {
            let acked = it.slot == conn.key.slot && it.seq <= seq && it.conversation == *conversation;
            if acked {
                let facts = Facts {
                    conversation: conversation.as_str(),
                    seq: it.seq,
                    user: who.route.user.as_str(),
                    device: who.route.device.as_str(),
                    ..Facts::default()
                };
                tracer.note(&it.trace, Step::Acked, facts, format_args!(""));
            }
            !acked
        });
    }

    /// The connection is gone: nobody acks for it, and its place is given to another.
    pub(super) fn forget_awaited(&mut self, slot: u32) {
        if !self.awaited.is_empty() {
            self.awaited.retain(|it| it.slot != slot);
        }
    }
}
