//! Partitions of a deliverer: their orders, and the newest numbers of their feeds.

use std::{collections::BTreeSet, sync::Arc};

use tidegate_protocol::machine::webhook::{WebhookChange, WebhookStep};
use tokio::time::Instant;

use super::{DeliveryDone, WebhookDeliverer};
use crate::{
    log_limit::log_limited,
    store::{FeedPosition, StoreError},
    supervised,
    webhooks::{
        consumer::STORE_RETRY_INTERVAL,
        plan::{WebhookAction, WebhookOrder},
        start::number_before,
    },
};

impl WebhookDeliverer {
    /// Gives each partition the orders that it has not taken.
    pub(super) async fn give_orders(&mut self) {
        let newest = self.driver.plan.newest_order();
        let stays = |partition: &u32| !self.driver.feeds[partition].is_leaving;
        let partitions: Vec<u32> = self.driver.feeds.keys().copied().filter(stays).collect();
        for partition in partitions {
            while let Some(last) = self.machine.last_order(partition).filter(|last| *last < newest) {
                let next =
                    self.driver.plan.orders.iter().filter(|it| it.number > last).min_by_key(|it| it.number);
                let Some(WebhookOrder { number, action }) = next.cloned() else { break };
                match self.change(partition, action).await {
                    Ok(change) => {
                        let now = self.driver.now();
                        self.machine.handle_order(partition, WebhookStep { number, change }, now);
                    }
                    Err(error) => {
                        self.driver.retry(Some(partition), &error);
                        break;
                    }
                }
                // Too many wait; they are given later.
                if self.machine.last_order(partition) == Some(last) {
                    break;
                }
            }
        }
    }

    async fn change(&self, partition: u32, action: WebhookAction) -> Result<WebhookChange, StoreError> {
        Ok(match action {
            WebhookAction::Replay(start) => {
                WebhookChange::Replay { after: number_before(&*self.driver.store, partition, &start).await? }
            }
            WebhookAction::Drop { conversation, seq } => WebhookChange::Drop { conversation, seq },
            WebhookAction::Resume => WebhookChange::Resume,
        })
    }

    /// Reads the newest numbers of the feeds that have archived, in the background.
    pub(super) fn ask_newest(&mut self) {
        let is_early = self.newest_retry_at.is_some_and(|at| at > Instant::now());
        if self.archived.is_empty() || self.is_asking_newest || is_early {
            return;
        }
        let (store, permits) = (Arc::clone(&self.driver.store), Arc::clone(&self.permits));
        let (partitions, mark) = (std::mem::take(&mut self.archived), self.archived_mark);
        (self.is_asking_newest, self.newest_retry_at) = (true, None);
        supervised::spawn_in(&mut self.driver.tasks, "a read of the newest numbers", async move {
            let positions = permits.newest.after(mark, &*store).await;
            DeliveryDone::Newest(partitions, positions)
        });
    }

    pub(super) fn note_newest(
        &mut self,
        partitions: BTreeSet<u32>,
        result: Result<Arc<Vec<FeedPosition>>, StoreError>,
    ) {
        self.is_asking_newest = false;
        match result {
            Ok(positions) => {
                for position in positions.iter().filter(|it| partitions.contains(&it.partition)) {
                    self.machine.handle_newest(position.partition, position.newest);
                }
            }
            Err(error) => {
                self.archived.extend(partitions);
                log_limited!(warn, %error, "newest numbers not read for a webhook; retrying");
                self.newest_retry_at = Some(Instant::now() + STORE_RETRY_INTERVAL);
            }
        }
    }
}
