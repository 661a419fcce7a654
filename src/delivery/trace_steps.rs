//! Trace steps: records where traced messages are, as their owner sees them and as peers report them.

use tidegate_protocol::{
    id::ConversationKind,
    machine::ledger::Outcome,
    pb,
    record::{Body, Message, Record},
    trace::TraceContext,
};

use crate::trace::{Facts, Step, Tracer};

/// Records the first step of a message and returns its trace context, if the message is traced.
pub(crate) fn note_received(
    tracer: &Tracer,
    given: Option<TraceContext>,
    message: &Message,
    now_ms: u64,
) -> Option<TraceContext> {
    let peers = match message.conversation.kind() {
        ConversationKind::Direct(a, b) => [a, b],
        ConversationKind::Group(_) | ConversationKind::Room(_) => [message.sender.as_str(); 2],
    };
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

/// Records a step of each traced record of a batch; a record without a trace costs one check.
pub(crate) fn note(tracer: &Tracer, decided: &[(Record, Outcome)], step: Step, partition: u32) {
    for (record, outcome) in decided {
        if let Some(trace) = &record.trace {
            let facts = facts(record, *outcome);
            tracer.note(
                trace,
                step,
                facts,
                format_args!("partition {partition}: {}", outcome_text(*outcome)),
            );
        }
    }
}

/// Records that the answer to a traced record is on its way to the node that appended it.
pub(crate) fn note_answer(tracer: &Tracer, record: &Record, outcome: Outcome) {
    if let Some(trace) = &record.trace {
        let facts = facts(record, outcome);
        tracer.note(trace, Step::Answered, facts, format_args!("for {}", record.origin.node));
    }
}

/// Records that the owner's answer to a traced record of this node has arrived.
pub(crate) fn note_peer_answer(tracer: &Tracer, traceparent: &str, outcome: Outcome) {
    if !traceparent.is_empty()
        && let Ok(trace) = traceparent.parse()
    {
        let facts = Facts { seq: seq_of(outcome), ..Facts::default() };
        tracer.note(&trace, Step::Answered, facts, format_args!("by a peer: {}", outcome_text(outcome)));
    }
}

/// Parses the trace of a peer's push; `None` for most pushes.
pub(crate) fn parse_trace(traceparent: &str) -> Option<TraceContext> {
    if traceparent.is_empty() { None } else { traceparent.parse().ok() }
}

/// Records that a peer's push of a traced message has arrived.
pub(crate) fn note_peer_push(tracer: &Tracer, trace: &TraceContext, push: &pb::Push, targets: usize) {
    let facts = Facts {
        msg: &push.msg_id,
        conversation: &push.conversation,
        seq: push.seq,
        user: &push.sender,
        ..Facts::default()
    };
    tracer.note(trace, Step::Arrived, facts, format_args!("from a peer, for {targets}"));
}

fn facts(record: &Record, outcome: Outcome) -> Facts<'_> {
    let seq = seq_of(outcome);
    match &record.body {
        Body::Message(it) => Facts {
            msg: it.msg_id.as_str(),
            conversation: it.conversation.as_str(),
            seq,
            user: it.sender.as_str(),
            device: it.device.as_str(),
        },
        _ => Facts { seq, ..Facts::default() },
    }
}

fn seq_of(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Accepted { seq, .. } | Outcome::Duplicate { seq, .. } => seq,
        _ => 0,
    }
}

fn outcome_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Accepted { .. } => "accepted",
        Outcome::Duplicate { .. } => "accepted before",
        Outcome::Refused { code } | Outcome::RefusedBefore { code } => code.name(),
        Outcome::Void { .. } => "void: a newer connection of the device has sent messages",
        Outcome::Noted => "noted",
    }
}
