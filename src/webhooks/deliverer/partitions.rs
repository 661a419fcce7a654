//! Partitions of a deliverer: where their delivery begins and ends, their orders, and the newest numbers of their feeds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidegate_protocol::machine::webhook::{WebhookChange, WebhookCursor, WebhookStep};
use tokio::time::Instant;

use super::{Done, OwnedFeed, OwnedFeeds, STORE_RETRY_INTERVAL, WebhookDeliverer};
use crate::{
    log_limit::log_limited,
    store::{FeedCursor, FeedPosition, StoreError},
    supervised,
    webhooks::{
        plan::{WebhookAction, WebhookOrder},
        start::number_before,
    },
};

impl WebhookDeliverer {
    /// Begins and ends partitions as the node does, gives them the orders of the plan, and asks for the newest numbers of
    /// those that have archived.
    pub(super) async fn follow(&mut self, feeds: OwnedFeeds) {
        let now = self.now();
        let gone: Vec<u32> = self.feeds.keys().filter(|it| !feeds.contains_key(it)).copied().collect();
        for partition in gone {
            self.feeds.remove(&partition);
            self.machine.handle_lost(partition);
        }
        self.ended.retain(|partition, fence| feeds.get(partition).is_some_and(|feed| feed.fence == *fence));
        self.unreadable.retain(|partition| self.ended.contains_key(partition));
        let mut begun = BTreeMap::new();
        for (partition, feed) in feeds {
            let former = self.feeds.get(&partition).copied();
            if self.ended.get(&partition) == Some(&feed.fence) {
                continue;
            }
            if former.is_none_or(|former| former.fence != feed.fence) {
                self.machine.handle_lost(partition);
                self.feeds.remove(&partition);
                if !feed.is_leaving {
                    begun.insert(partition, feed);
                }
                continue;
            }
            if former.is_some_and(|former| former.archives != feed.archives) {
                self.note_archived(partition);
            }
            if feed.is_leaving {
                self.machine.handle_release(partition, now);
            }
            self.feeds.insert(partition, feed);
        }
        if self.retry_at.is_none_or(|at| at <= Instant::now()) {
            self.retry_at = None;
            self.begin(begun).await;
            self.give_orders().await;
        }
        self.ask_newest();
    }

    fn note_archived(&mut self, partition: u32) {
        self.archived.insert(partition);
        self.archived_mark = self.permits.newest.mark();
    }

    fn retry(&mut self, partition: Option<u32>, error: &StoreError) {
        log_limited!(warn, %error, partition, "store not read for a webhook; retrying");
        self.retry_at = Some(Instant::now() + STORE_RETRY_INTERVAL);
    }

    /// Begins partitions. One that can't begin keeps no other from it.
    async fn begin(&mut self, begun: OwnedFeeds) {
        if begun.is_empty() {
            return;
        }
        let cursors = match self.store.cursors(&self.consumer).await {
            Ok(cursors) => cursors,
            Err(error) => return self.retry(None, &error),
        };
        for (partition, feed) in begun {
            let saved = cursors.iter().find(|cursor| cursor.partition() == partition);
            match self.first_cursor(partition, feed, saved).await {
                Ok(Some(cursor)) => {
                    self.machine.handle_owned(partition, cursor, self.now());
                    self.feeds.insert(partition, feed);
                    self.note_archived(partition);
                }
                // Another owner has it, or the cursor can't be read.
                Ok(None) | Err(StoreError::Fenced) => drop(self.ended.insert(partition, feed.fence)),
                Err(error) => self.retry(Some(partition), &error),
            }
        }
    }

    /// Returns the cursor at which a partition begins; `None` if it can't be read.
    async fn first_cursor(
        &mut self,
        partition: u32,
        feed: OwnedFeed,
        saved: Option<&FeedCursor>,
    ) -> Result<Option<WebhookCursor>, StoreError> {
        match saved.map(|cursor| WebhookCursor::decode(cursor.bytes())) {
            Some(Ok(cursor)) => Ok(Some(cursor)),
            // Another start could skip events, or repeat all.
            Some(Err(error)) => {
                let webhook = self.consumer.as_str();
                tracing::error!(webhook, partition, %error, "cursor can't be read; the partition is not delivered");
                self.unreadable.insert(partition);
                Ok(None)
            }
            None => {
                let number = number_before(&*self.store, partition, &self.plan.start).await?;
                // It has carried out no order: one that was given meanwhile counts here, too.
                let cursor = WebhookCursor::at(number, self.plan.delivery.parallel);
                // Durable before anything is sent: a crash must not move the start.
                self.save_bytes(partition, feed.fence, cursor.encode(), true).await?;
                Ok(Some(cursor))
            }
        }
    }

    /// Gives each partition the orders that it has not taken.
    async fn give_orders(&mut self) {
        let newest = self.plan.newest_order();
        let stays = |partition: &u32| !self.feeds[partition].is_leaving;
        let partitions: Vec<u32> = self.feeds.keys().copied().filter(stays).collect();
        for partition in partitions {
            while let Some(last) = self.machine.last_order(partition).filter(|last| *last < newest) {
                let next = self.plan.orders.iter().filter(|it| it.number > last).min_by_key(|it| it.number);
                let Some(WebhookOrder { number, action }) = next.cloned() else { break };
                match self.change(partition, action).await {
                    Ok(change) => {
                        let now = self.now();
                        self.machine.handle_order(partition, WebhookStep { number, change }, now);
                    }
                    Err(error) => {
                        self.retry(Some(partition), &error);
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
                WebhookChange::Replay { after: number_before(&*self.store, partition, &start).await? }
            }
            WebhookAction::Drop { conversation, seq } => WebhookChange::Drop { conversation, seq },
            WebhookAction::Resume => WebhookChange::Resume,
        })
    }

    /// Reads the newest numbers of the feeds that have archived, in the background.
    fn ask_newest(&mut self) {
        let is_early = self.newest_retry_at.is_some_and(|at| at > Instant::now());
        if self.archived.is_empty() || self.is_asking_newest || is_early {
            return;
        }
        let (store, permits) = (Arc::clone(&self.store), Arc::clone(&self.permits));
        let (partitions, mark) = (std::mem::take(&mut self.archived), self.archived_mark);
        (self.is_asking_newest, self.newest_retry_at) = (true, None);
        supervised::spawn_in(&mut self.tasks, "a read of the newest numbers", async move {
            let positions = permits.newest.after(mark, &*store).await;
            Done::Newest(partitions, positions)
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

    /// Ends the delivery of a partition that has another owner.
    pub(super) fn end(&mut self, partition: u32) {
        if let Some(feed) = self.feeds.remove(&partition) {
            self.ended.insert(partition, feed.fence);
        }
        self.machine.handle_lost(partition);
    }
}
