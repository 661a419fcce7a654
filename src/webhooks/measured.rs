//! Receiver that counts and times the requests of webhooks, and measures the lag of the events that are taken.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tidegate_protocol::machine::webhook::WebhookOutcome;
use tokio::time::Instant;

use super::plan::WebhookReceiver;
use crate::{
    clock::wall_ms,
    hooks::{WebhookReply, WebhookRequest},
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

    fn note_taken(&self, request: &WebhookRequest) {
        let (events, now_ms) = (request.body.events(), wall_ms());
        self.metrics.webhook_events.increment(events.len() as u64);
        // An event that was set aside waited for an operator, not for the node.
        if !request.is_resent {
            // The clock of the node that accepted it may be ahead: that counts as no lag.
            let lags = events.iter().filter_map(|event| Some(now_ms.saturating_sub(event.entry_ms?)));
            lags.for_each(|lag| self.metrics.webhook_lag.record(Duration::from_millis(lag)));
        }
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
            WebhookOutcome::Taken => self.note_taken(request),
            _ => self.metrics.webhook_failures.increment(1),
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hooks::{EncodedEvent, WebhookBody},
        metrics,
    };

    /// Receiver that refuses requests from the second try on.
    struct FirstTryReceiver;

    #[async_trait]
    impl WebhookReceiver for FirstTryReceiver {
        async fn send(&self, request: &WebhookRequest) -> WebhookReply {
            let outcome =
                if request.attempt == 1 { WebhookOutcome::Taken } else { WebhookOutcome::Refused(404) };
            WebhookReply { outcome, status: None, error: None }
        }
    }

    fn event(entry_ms: Option<u64>) -> EncodedEvent {
        EncodedEvent { id: "g:a/1".to_owned(), key: "g:a".to_owned(), json: Vec::new(), entry_ms }
    }

    #[tokio::test]
    async fn lag_is_that_of_each_event_of_the_log_that_was_taken() {
        let (metrics, page) = metrics::install();
        let receiver = MeasuredReceiver::new(Arc::new(FirstTryReceiver), metrics);
        let now_ms = wall_ms();
        let times = [Some(now_ms - 7_000), None, Some(now_ms + 60_000), Some(0)];
        let body = WebhookBody::List(times.map(event).to_vec());
        receiver.send(&WebhookRequest { body: body.clone(), attempt: 1, is_resent: false }).await;
        receiver.send(&WebhookRequest { body: body.clone(), attempt: 2, is_resent: false }).await;
        receiver.send(&WebhookRequest { body, attempt: 1, is_resent: true }).await;
        let page = page.render();
        for line in [
            "tidegate_webhook_lag_seconds_bucket{le=\"0.0005\"} 1",
            "tidegate_webhook_lag_seconds_bucket{le=\"5\"} 1",
            "tidegate_webhook_lag_seconds_bucket{le=\"10\"} 2",
            "tidegate_webhook_lag_seconds_count 3",
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
        }
    }
}
