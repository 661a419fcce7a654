//! Plan of an endpoint: what its deliverers send to whom, and what an operator has ordered.

use std::{collections::BTreeMap, fmt, ops::RangeInclusive, sync::Arc};

use async_trait::async_trait;
use tidegate_protocol::{id::ConversationId, machine::webhook::WebhookSettings};

use super::{filter::WebhookFilter, waiting_form::WaitingForm};
use crate::{
    hooks::{WebhookReply, WebhookRequest, WebhookSender},
    store::ConsumerName,
};

/// Where an endpoint starts in a partition without a cursor of its own, or starts again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookStart {
    /// Behind what the feed has when the partition's deliverer begins, or carries out the order.
    Now,
    /// At the oldest entry that the feed has.
    Oldest,
    /// At the first entry that was received at this time or later, in ms since 1970. The times of a partition rise, except
    /// where the clock of a node was set back.
    At(u64),
    /// Behind these numbers, by partition; in another one at its first entry.
    After(Arc<BTreeMap<u32, u64>>),
}

/// Order of an operator. Each partition carries it out once, in the order of the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookOrder {
    /// Number, which is above that of all former orders of the endpoint.
    pub number: u64,
    /// Action of each partition's deliverer.
    pub action: WebhookAction,
}

/// Action that an operator orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookAction {
    /// Deliver everything from there on, also what was taken before, and nothing before it.
    Replay(WebhookStart),
    /// Remove an event from those set aside.
    Drop {
        /// Conversation of the event.
        conversation: ConversationId,
        /// Seq of the event.
        seq: u64,
    },
    /// Send again after the receiver has answered 410.
    Resume,
}

/// Receiver of the events of an endpoint.
#[async_trait]
pub trait WebhookReceiver: Send + Sync {
    /// Sends a request, and returns what the answer means.
    async fn send(&self, request: &WebhookRequest) -> WebhookReply;

    /// Reports numbers that the feed of a partition no longer has. Returns false if that failed: it is repeated, and nothing
    /// after them is sent before.
    async fn report_gap(&self, _partition: u32, _numbers: &RangeInclusive<u64>) -> bool {
        true
    }
}

#[async_trait]
impl WebhookReceiver for WebhookSender {
    async fn send(&self, request: &WebhookRequest) -> WebhookReply {
        self.send(request).await
    }
}

/// What a deliverer sends to whom. A new plan is applied while it runs, from the next request on; only the consumer must
/// not change.
pub struct WebhookPlan {
    /// Id of the endpoint, under which its cursors are stored.
    pub consumer: ConsumerName,
    /// Source of the events.
    pub source: String,
    /// Events that the endpoint wants. What a deliverer has read already is judged by the filter of that time, too.
    pub filter: WebhookFilter,
    /// Whether events have the content of messages.
    pub with_content: bool,
    /// Lanes, batches and patience. With `batch_max` 1, a request is one event; otherwise it is a list.
    pub delivery: WebhookSettings,
    /// Where it starts in a partition without a cursor.
    pub start: WebhookStart,
    /// Whether nothing is sent.
    pub is_paused: bool,
    /// Orders. Those that every cursor of the endpoint has carried out may be left out. A partition takes at most
    /// [`tidegate_protocol::machine::webhook::WEBHOOK_ORDERS_MAX`] at a time.
    pub orders: Vec<WebhookOrder>,
    /// Notices that messages wait; `None` if the endpoint wants none.
    pub waiting: Option<WaitingPlan>,
    /// Receiver.
    pub receiver: Arc<dyn WebhookReceiver>,
}

impl WebhookPlan {
    /// Returns the number of the newest order; 0 for none.
    pub(super) fn newest_order(&self) -> u64 {
        self.orders.iter().map(|order| order.number).max().unwrap_or(0)
    }
}

/// Notices of an endpoint on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPlan {
    /// Name under which their cursors are stored.
    pub consumer: ConsumerName,
    /// Definition.
    pub form: WaitingForm,
    /// Where they start in a partition without a cursor.
    pub start: WebhookStart,
    /// Number of the newest order to send again after the receiver has answered 410; 0 for none.
    pub resumed: u64,
}

/// Shows nothing of the receiver, whose URL and headers may have secrets.
impl fmt::Debug for WebhookPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookPlan")
            .field("consumer", &self.consumer)
            .field("source", &self.source)
            .field("filter", &self.filter)
            .field("with_content", &self.with_content)
            .field("delivery", &self.delivery)
            .field("start", &self.start)
            .field("is_paused", &self.is_paused)
            .field("orders", &self.orders)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}
