//! Requests of an operator, apart from the deliveries: a test, and events that are sent once more.

use tidegate_protocol::machine::webhook::{WebhookEvent, WebhookOutcome};

use super::{
    content,
    deliverer::body,
    event::{EventEncoder, test_event},
    plan::WebhookPlan,
};
use crate::{
    hooks::{WebhookReply, WebhookRequest},
    store::Store,
};

/// Most events that [`send_once`] sends; further ones are left out.
pub const SEND_ONCE_MAX: usize = 100;

/// Sends the events once, whatever the filter wants, in as few requests as the plan allows, and returns the last reply: the
/// first that is no success ends it. Their cursors don't change. `is_resent` adds the header `tidegate-resent: 1`.
pub async fn send_once(
    plan: &WebhookPlan,
    store: &dyn Store,
    events: &[WebhookEvent],
    is_resent: bool,
) -> WebhookReply {
    let encoder = EventEncoder::unfiltered(plan);
    let mut reply = WebhookReply { outcome: WebhookOutcome::Passed, status: None, error: None };
    let mut rest = &events[..events.len().min(SEND_ONCE_MAX)];
    while !rest.is_empty() {
        let next = &rest[..rest.len().min(plan.delivery.batch_max.max(1))];
        let read = match content::read(store, next).await {
            Ok(Some(found)) => found,
            Ok(None) => return unsent("the store lacks an event of these"),
            Err(error) => return unsent(&error.to_string()),
        };
        let encoded: Vec<_> =
            next.iter().zip(&read).filter_map(|(event, found)| encoder.encode(event, found)).collect();
        rest = &rest[read.len()..];
        let Some(body) = body(plan, encoded) else { continue };
        reply = plan.receiver.send(&WebhookRequest { body, attempt: 1, is_resent }).await;
        if reply.outcome != WebhookOutcome::Taken {
            break;
        }
    }
    reply
}

/// Sends an event of the type `tidegate.webhook.test`, whatever the filter wants, and returns the reply.
pub async fn send_test(plan: &WebhookPlan) -> WebhookReply {
    let event = test_event(plan);
    match body(plan, vec![event]) {
        Some(body) => plan.receiver.send(&WebhookRequest { body, attempt: 1, is_resent: false }).await,
        None => unsent("no event"),
    }
}

fn unsent(why: &str) -> WebhookReply {
    WebhookReply { outcome: WebhookOutcome::Unsent, status: None, error: Some(why.to_owned()) }
}
