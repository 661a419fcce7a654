//! Trace steps of a shard: records when a traced message is received, pushed and acked; untraced messages cost nothing.

use tidegate_protocol::{id::ConversationId, record::Message, trace::TraceContext};

use super::{Shard, conn::Conn};
use crate::{
    delivery::trace_steps,
    mail::Delivery,
    net::io::Io,
    trace::{Facts, Step},
};

/// Most traced pushes of a shard that wait for their acks; beyond it, the oldest are no longer tracked.
const UNACKED_TRACES_MAX: usize = 256;

/// Traced push that its device has not acked.
pub(super) struct UnackedTrace {
    slot: u32,
    conversation: ConversationId,
    seq: u64,
    trace: TraceContext,
}

impl<I: Io> Shard<I> {
    /// Records the first step of a message and returns its trace context, if the message is traced.
    pub(super) fn trace_received(
        &self,
        given: Option<TraceContext>,
        message: &Message,
        now_ms: u64,
    ) -> Option<TraceContext> {
        trace_steps::note_received(&self.context.cluster.trace, given, message, now_ms)
    }

    /// Records that a traced push enters a connection's outbox, and tracks its ack.
    #[cold]
    pub(super) fn trace_push(&mut self, conn: &Conn, delivery: &Delivery, trace: TraceContext) {
        let Some(login) = &conn.login else { return };
        let facts = Facts {
            conversation: delivery.conversation.as_str(),
            seq: delivery.seq,
            user: login.route.user.as_str(),
            device: login.route.device.as_str(),
            ..Facts::default()
        };
        self.context.cluster.trace.note(&trace, Step::Pushed, facts, format_args!(""));
        if self.unacked_traces.len() >= UNACKED_TRACES_MAX {
            self.unacked_traces.pop_front();
        }
        let conversation = delivery.conversation.clone();
        self.unacked_traces.push_back(UnackedTrace {
            slot: conn.key.slot,
            conversation,
            seq: delivery.seq,
            trace,
        });
    }

    /// Records that traced pushes are written to a slice of a group's members, without naming them.
    #[cold]
    pub(super) fn trace_fan_out(&self, batch: &[Delivery], members: usize) {
        for delivery in batch {
            let Some(trace) = delivery.frame.trace() else { continue };
            let facts =
                Facts { conversation: delivery.conversation.as_str(), seq: delivery.seq, ..Facts::default() };
            let shard = self.context.index;
            let more = format_args!("to {members} members of shard {shard}");
            self.context.cluster.trace.note(trace, Step::Pushed, facts, more);
        }
    }

    /// Records the acks of traced pushes up to `seq`.
    #[cold]
    pub(super) fn trace_ack(&mut self, conn: &Conn, conversation: &ConversationId, seq: u64) {
        let Some(login) = &conn.login else { return };
        let tracer = &self.context.cluster.trace;
        self.unacked_traces.retain(|it| {
            let acked = it.slot == conn.key.slot && it.seq <= seq && it.conversation == *conversation;
            if acked {
                let facts = Facts {
                    conversation: conversation.as_str(),
                    seq: it.seq,
                    user: login.route.user.as_str(),
                    device: login.route.device.as_str(),
                    ..Facts::default()
                };
                tracer.note(&it.trace, Step::Acked, facts, format_args!(""));
            }
            !acked
        });
    }

    /// Stops tracking the pushes of a closed connection, since its slot is reused.
    pub(super) fn forget_traces(&mut self, slot: u32) {
        if !self.unacked_traces.is_empty() {
            self.unacked_traces.retain(|it| it.slot != slot);
        }
    }
}
