//! Notices to endpoints of webhooks that messages wait for users, for push providers (ADR 35).
//!
//! [`tidegate_protocol::machine::waiting`] decides when a notice may be due and what is saved; this module reads the feed
//! `delayMs` behind, finds the recipients of its messages, and asks, when a notice may be due, what they have read and
//! acked. Nothing here delays an owner or a delivery. What does not answer counts as not acked, so a failure costs a notice
//! too many and none too few; only the store has to answer.
//!
//! **Memory.** An endpoint with notices holds at most [`tidegate_protocol::machine::waiting::WAITING_MAX`] of them, those of
//! one page more, and [`tidegate_protocol::machine::waiting::RECENT_MAX`] pairs of user and conversation, about 25 MiB at
//! the most, on each node. A round has at most [`tidegate_protocol::machine::waiting::ROUND_MAX`] notices. Contents of messages
//! are held only while they are read, [`crate::webhooks::REQUEST_BYTES_MAX`] or one message at a time: for a page, and for
//! each request that has a permit. For users whose bound cuts a notice, 256 KiB or one message are read, eight times at once.
//! What stays of contents is mentions and previews, both of a bounded length. A page and a round keep for at most 4,096 senders
//! whether they may mention all members of a group.

mod cursor;
mod due;
mod encode;
mod notifier;
mod recipients;
mod round;
mod standing;

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_protocol::machine::webhook::WebhookEvent;
use tokio::sync::watch;

use self::notifier::Notifier;
use crate::{
    cluster::{Cluster, OwnedFeeds},
    connections::Connections,
    store::{Store, StoreError},
    webhooks::{EndpointCompanion, FoundEntry, NoticeStatus, WebhookPermits, WebhookPlan, read_entries},
};

/// Sender of notices of a node, for all endpoints that want some.
pub struct WaitingNotices {
    cluster: Arc<Cluster>,
    connections: Arc<Connections>,
    store: Arc<dyn Store>,
    small_group_max: usize,
}

impl WaitingNotices {
    /// Creates the sender of a node. Members of groups up to `small_group_max` get notices of all messages, those of larger
    /// ones of messages that mention them.
    pub fn new(cluster: Arc<Cluster>, connections: Arc<Connections>, small_group_max: usize) -> Self {
        let store = &cluster.ports.store;
        let store = store.for_back_ends().unwrap_or_else(|| Arc::clone(store));
        Self { cluster, connections, store, small_group_max }
    }
}

/// Reads what the events are about, and returns what `take` makes of each, with its place. Contents are held for a part of
/// them at a time. `None` if the store lacks an entry: it fell back to an older state.
async fn read_each<T>(
    store: &dyn Store,
    events: &[WebhookEvent],
    mut take: impl FnMut(usize, FoundEntry) -> T,
) -> Result<Option<Vec<T>>, StoreError> {
    let mut taken = Vec::with_capacity(events.len());
    while taken.len() < events.len() {
        // At least one is read each time.
        match read_entries(store, &events[taken.len()..]).await? {
            Some(more) if !more.is_empty() => {
                for found in more {
                    let one = take(taken.len(), found);
                    taken.push(one);
                }
            }
            _ => return Ok(None),
        }
    }
    Ok(Some(taken))
}

#[async_trait]
impl EndpointCompanion for WaitingNotices {
    async fn accompany(
        self: Arc<Self>,
        owned: watch::Receiver<OwnedFeeds>,
        plans: watch::Receiver<Arc<WebhookPlan>>,
        permits: Arc<WebhookPermits>,
        status: watch::Sender<NoticeStatus>,
    ) {
        let plan = Arc::clone(&plans.borrow());
        Notifier::new(self, plan, permits, status).run(owned, plans).await;
    }
}

#[cfg(test)]
mod tests;
