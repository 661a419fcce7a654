//! Conversion between traces and the messages of `link.proto`.

use bytes::Bytes;
use tidegate_protocol::{
    id::{MsgId, UserId},
    pb,
};

use super::convert::Malformed;
use crate::trace::{FOUND_TRACES, Facts, Step, TraceEvent, TraceFilter};

fn put_id(id: u128) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

fn id(sent: &[u8]) -> Option<u128> {
    sent.try_into().ok().map(u128::from_be_bytes)
}

pub(super) fn put_query(query: TraceFilter) -> pb::LinkTraceQuery {
    pb::LinkTraceQuery {
        msg: query.msg.unwrap_or_default(),
        user: query.user.unwrap_or_default(),
        traces: query.traces.into_iter().map(put_id).collect(),
        passive: query.is_passive,
    }
}

pub(super) fn query(sent: pb::LinkTraceQuery) -> Result<TraceFilter, Malformed> {
    let named = |name: String| (!name.is_empty()).then_some(name);
    let (msg, user) = (named(sent.msg), named(sent.user));
    if msg.as_deref().is_some_and(|msg| MsgId::new(msg).is_err()) {
        return Err(Malformed("message id"));
    }
    if user.as_deref().is_some_and(|user| UserId::new(user).is_err()) {
        return Err(Malformed("user id"));
    }
    if sent.traces.len() > FOUND_TRACES {
        return Err(Malformed("query for too many traces"));
    }
    let traces =
        sent.traces.iter().map(|sent| id(sent).ok_or(Malformed("trace"))).collect::<Result<_, _>>()?;
    Ok(TraceFilter { msg, user, traces, is_passive: sent.passive })
}

pub(super) fn put_steps(steps: Vec<TraceEvent>) -> pb::LinkSteps {
    let put = |event: TraceEvent| pb::LinkStep {
        trace: put_id(event.id()),
        time_us: event.time_us,
        step: event.step.word().to_owned(),
        msg: event.msg.into(),
        conversation: event.conversation.into(),
        seq: event.seq,
        user: event.user.into(),
        device: event.device.into(),
        note: event.note.into(),
    };
    pb::LinkSteps { steps: steps.into_iter().map(put).collect() }
}

/// Decodes trace steps, and omits those that this version can't decode.
pub(super) fn steps(sent: pb::LinkSteps) -> Vec<TraceEvent> {
    let read = |sent: pb::LinkStep| {
        let facts = Facts {
            msg: &sent.msg,
            conversation: &sent.conversation,
            seq: sent.seq,
            user: &sent.user,
            device: &sent.device,
        };
        Some(TraceEvent::new(id(&sent.trace)?, sent.time_us, Step::named(&sent.step)?, facts, &sent.note))
    };
    sent.steps.into_iter().filter_map(read).collect()
}
