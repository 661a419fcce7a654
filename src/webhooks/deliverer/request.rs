//! One request of a deliverer: its events with what the store has about them now.

use tidegate_protocol::machine::webhook::{WebhookBatch, WebhookOutcome};

use crate::{
    hooks::{EncodedEvent, WebhookBody, WebhookReply, WebhookRequest},
    store::Store,
    webhooks::{
        content::{self, REQUEST_BYTES_MAX},
        event::EventEncoder,
        plan::WebhookPlan,
    },
};

/// Outcome of a request, and how many events it had.
pub(crate) struct Delivered {
    pub(super) ticket: u64,
    pub(super) count: usize,
    pub(super) reply: WebhookReply,
}

/// Returns the body of a request; `None` without an event.
pub(crate) fn body(plan: &WebhookPlan, mut events: Vec<EncodedEvent>) -> Option<WebhookBody> {
    if plan.delivery.batch_max > 1 {
        return (!events.is_empty()).then_some(WebhookBody::List(events));
    }
    // Without batches, deliveries and operators send events one by one.
    events.pop().map(WebhookBody::Single)
}

/// Sends the events of a batch that the endpoint wants, up to the size of a request.
pub(super) async fn deliver(
    store: &dyn Store,
    plan: &WebhookPlan,
    encoder: &EventEncoder,
    batch: WebhookBatch,
) -> Delivered {
    let WebhookBatch { ticket, attempt, mut events, .. } = batch;
    // The plan may be newer than the batch; what is left out is sent by the next one.
    events.truncate(plan.delivery.batch_max.max(1));
    let unsent = |error: String| {
        let reply = WebhookReply { outcome: WebhookOutcome::Unsent, status: None, error: Some(error) };
        Delivered { ticket, count: events.len(), reply }
    };
    let found = match content::read(store, &events).await {
        Ok(Some(found)) => found,
        Ok(None) => return unsent("the store lacks the events; it fell back to an older state".into()),
        Err(error) => return unsent(error.to_string()),
    };
    let (mut encoded, mut bytes, mut count) = (Vec::with_capacity(found.len()), 0, 0);
    for (event, found) in events.iter().zip(found) {
        let event = encoder.encode(event, &found);
        bytes += event.as_ref().map_or(0, |event| event.json.len());
        if bytes > REQUEST_BYTES_MAX && count > 0 {
            break;
        }
        encoded.extend(event);
        count += 1;
    }
    let reply = match body(plan, encoded) {
        None => WebhookReply { outcome: WebhookOutcome::Passed, status: None, error: None },
        Some(body) => plan.receiver.send(&WebhookRequest { body, attempt, is_resent: false }).await,
    };
    Delivered { ticket, count, reply }
}
