//! Receiver that counts and times the requests of webhooks.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_protocol::machine::webhook::WebhookOutcome;
use tokio::time::Instant;

use super::plan::WebhookReceiver;
use crate::{
    hooks::{WebhookBody, WebhookReply, WebhookRequest},
    metrics::Metrics,
};

/// Receiver whose requests show in the metrics.
pub(super) struct MeasuredReceiver {
    inner: Arc<dyn WebhookReceiver>,
    metrics: Metrics,
}

impl MeasuredReceiver {
    /// Wraps a receiver.
    pub(super) fn new(inner: Arc<dyn WebhookReceiver>, metrics: Metrics) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl WebhookReceiver for MeasuredReceiver {
    async fn send(&self, request: &WebhookRequest) -> WebhookReply {
        let began = Instant::now();
        let reply = self.inner.send(request).await;
        self.metrics.webhook_times.record(began.elapsed());
        self.metrics.webhook_requests.increment(1);
        match reply.outcome {
            WebhookOutcome::Taken => {
                let count = match &request.body {
                    WebhookBody::Single(_) => 1,
                    WebhookBody::List(events) => events.len() as u64,
                };
                self.metrics.webhook_events.increment(count);
            }
            _ => self.metrics.webhook_failures.increment(1),
        }
        reply
    }
}
