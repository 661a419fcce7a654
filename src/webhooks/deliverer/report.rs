//! What operators see of a deliverer: log lines and its status.

use std::sync::Arc;

use tidegate_protocol::machine::webhook::WebhookNotice;

use super::{WebhookDeliverer, WebhookStatus};
use crate::{clock::wall_ms, log_limit::log_limited, webhooks::consumer};

impl WebhookDeliverer {
    pub(super) fn report(&mut self) {
        let plan = Arc::clone(&self.driver.plan);
        let webhook = plan.consumer.as_str();
        while let Some(notice) = self.machine.poll_notice() {
            match notice {
                WebhookNotice::Failing => {
                    // A status, or a failure of the connection: neither content nor secrets.
                    let error = self.last_error.as_deref().unwrap_or_default();
                    log_limited!(error, webhook, error, "webhook fails; it is probed until it succeeds");
                }
                WebhookNotice::Recovered => log_limited!(warn, webhook, "webhook succeeds again"),
                WebhookNotice::Disabled => {
                    log_limited!(error, webhook, "webhook answered 410; it is stopped")
                }
                WebhookNotice::Parked(event) => {
                    let (conversation, seq) = (event.conversation.as_str(), event.seq);
                    log_limited!(
                        warn,
                        webhook,
                        conversation,
                        seq,
                        "event keeps failing; its conversation is sent apart"
                    );
                }
                WebhookNotice::Aside(event) => {
                    let (conversation, seq) = (event.conversation.as_str(), event.seq);
                    log_limited!(error, webhook, conversation, seq, "event set aside; it is no longer sent");
                }
                WebhookNotice::Gap { partition, first, last } => {
                    self.missing.note(partition, &(first..=last), wall_ms());
                    log_limited!(
                        error,
                        webhook,
                        partition,
                        first,
                        last,
                        "the feed no longer has events of a webhook"
                    );
                }
                WebhookNotice::Released(partition) => consumer::end(self, partition),
            }
        }
    }

    pub(super) fn show_status(&mut self) {
        self.read_times.retain(|partition, _| self.driver.feeds.contains_key(partition));
        let done = |partition: &u32| self.machine.done(*partition);
        let oldest = self.read_times.iter_mut();
        let oldest = oldest.filter_map(|(partition, times)| times.oldest(done(partition)?)).min();
        let status = WebhookStatus {
            state: self.machine.state(),
            behind: self.machine.behind(),
            parked: self.machine.parked(),
            aside: self.machine.aside().count(),
            unreadable: self.driver.unreadable.len(),
            missing: self.missing.shown,
            oldest_ms: oldest,
            last_error: self.last_error.clone(),
        };
        self.status.send_if_modified(|shown| {
            let is_new = *shown != status;
            if is_new {
                *shown = status;
            }
            is_new
        });
    }
}
