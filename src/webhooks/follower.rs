//! Follower of the stored endpoints, which the guard of a node holds.

use std::sync::{Arc, Weak};

use async_trait::async_trait;

use super::Webhooks;
use crate::{
    cluster::GuardHandler,
    store::{GuardKind, GuardRow},
};

/// Handler of the entries of endpoints. It does not keep the webhooks alive: their notices use the cluster, whose guard has
/// this handler, and a circle would keep the store open after the node has stopped.
pub struct EndpointFollower(Weak<Webhooks>);

impl EndpointFollower {
    /// Creates the handler for these webhooks.
    pub fn new(webhooks: &Arc<Webhooks>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(webhooks)))
    }
}

#[async_trait]
impl GuardHandler for EndpointFollower {
    fn handles(&self, kind: GuardKind) -> bool {
        kind == GuardKind::Webhook
    }

    async fn restarted(&self) {
        if let Some(webhooks) = self.0.upgrade() {
            webhooks.restarted();
        }
    }

    async fn changed(&self, rows: &[GuardRow], now_ms: u64) {
        if let Some(webhooks) = self.0.upgrade() {
            webhooks.changed(rows, now_ms);
        }
    }

    async fn caught_up(&self, _: u64) {
        if let Some(webhooks) = self.0.upgrade() {
            webhooks.caught_up();
        }
    }

    async fn time_passed(&self, now_ms: u64) {
        if let Some(webhooks) = self.0.upgrade() {
            webhooks.time_passed(now_ms);
        }
    }
}
