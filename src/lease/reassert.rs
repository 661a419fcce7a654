//! Route re-assertion: after a loss, writes the routes of this node's connections again, page by page.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::{sleep, timeout},
};

use crate::{
    fault::planted::{Planted, is_planted},
    mail::{Mail, Reassert, ShardHandle, Slice},
    metrics::Metrics,
    routes::{Route, Routes, RoutesError},
};

/// Pause between two pages: at most 10,000 rows per second from one node.
const PAGE_INTERVAL: Duration = Duration::from_millis(50);
/// Delay before a page is retried while the routes do not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Delay before the second round, for logins that registered before the loss and were in no index yet.
const SECOND_ROUND_DELAY: Duration = Duration::from_secs(6);
/// Interval between rounds without any sign of a loss. They restore what a failover lost between two renewals, and keep
/// the rows of long connections from expiring.
const ROUND_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Number of losses that were noticed, and of those after which all routes were restored.
#[derive(Default)]
pub(super) struct RouteLosses {
    noticed: AtomicU64,
    restored: AtomicU64,
    wakeup: Notify,
}

impl RouteLosses {
    /// Records a loss.
    pub(super) fn record(&self) {
        self.noticed.fetch_add(1, Ordering::SeqCst);
        self.wakeup.notify_one();
    }

    /// Returns whether routes of this node may be missing.
    pub(super) fn are_pending(&self) -> bool {
        self.noticed.load(Ordering::SeqCst) != self.restored.load(Ordering::SeqCst)
    }
}

/// Task that collects the routes of all shards and re-asserts them.
pub(super) struct ReassertTask {
    pub(super) routes: Arc<dyn Routes>,
    pub(super) shards: Vec<ShardHandle>,
    pub(super) losses: Arc<RouteLosses>,
    pub(super) metrics: Metrics,
}

impl ReassertTask {
    /// Runs for as long as the node lives.
    pub(super) async fn run(self) {
        loop {
            let lost = timeout(ROUND_INTERVAL, self.losses.wakeup.notified()).await.is_ok();
            let noticed = self.losses.noticed.load(Ordering::SeqCst);
            self.round().await;
            if lost {
                sleep(SECOND_ROUND_DELAY).await;
                self.round().await;
                self.losses.restored.store(noticed, Ordering::SeqCst);
                tracing::info!("routes of local connections restored");
            }
        }
    }

    async fn round(&self) {
        if is_planted(Planted::RoutesNotReasserted) {
            return;
        }
        for shard in &self.shards {
            let mut from = Some(0);
            while let Some(slot) = from {
                let Some(Slice { rows, next }) = collect(shard, slot).await else { break };
                from = if rows.is_empty() || self.reassert(shard, rows).await { next } else { Some(slot) };
            }
        }
    }

    /// Re-asserts one page; false if it must be collected again, because connections come and go in the meantime.
    async fn reassert(&self, shard: &ShardHandle, rows: Vec<(crate::mail::ConnKey, Route)>) -> bool {
        let routes: Vec<Route> = rows.iter().map(|(_, route)| route.clone()).collect();
        let (current, done) = match self.routes.reassert(&routes).await {
            Ok(current) => {
                self.metrics.routes_reasserted.increment(current.len() as u64);
                (current, true)
            }
            // The next renewal fails for the same reason, and ends the node.
            Err(RoutesError::LeaseLost) => return true,
            Err(error) => {
                tracing::debug!(%error, "failed to re-assert routes; retrying");
                let in_doubt = matches!(error, RoutesError::Unknown(_));
                (vec![true; if in_doubt { rows.len() } else { 0 }], false)
            }
        };
        let settled: Vec<_> =
            rows.into_iter().zip(current).map(|((key, route), current)| (key, route, current)).collect();
        if !settled.is_empty() {
            // The rows of a stopped shard are swept with those of its node.
            shard.post(Mail::Reassert(Reassert::Settle(settled))).await.ok();
        }
        sleep(if done { PAGE_INTERVAL } else { RETRY_INTERVAL }).await;
        done
    }
}

async fn collect(shard: &ShardHandle, from: u32) -> Option<Slice> {
    let (reply, slice) = oneshot::channel();
    shard.post(Mail::Reassert(Reassert::Collect(from, reply))).await.ok()?;
    slice.await.ok()
}
