//! Route re-assertion: after a loss, writes the routes of this node's connections again, page by page.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::id::UserId;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, sleep_until},
};

use crate::{
    fault::planted::{Planted, is_planted},
    mail::{Mail, Reassert, ShardHandle, Slice},
    metrics::Metrics,
    routes::{DevicePolicy, Route, Routes, RoutesError},
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
/// Shortest time from the end of a round to the next one that a peer requests, so that peers that can't call this node
/// cause a bounded load.
const RECHECK_INTERVAL_MIN: Duration = Duration::from_secs(10);

/// Number of losses that were noticed, and of those after which all routes were restored.
#[derive(Default)]
pub(super) struct RouteLosses {
    noticed: AtomicU64,
    restored: AtomicU64,
    wakeup: Notify,
    recheck: Notify,
}

impl RouteLosses {
    /// Records a loss.
    pub(super) fn record(&self) {
        self.noticed.fetch_add(1, Ordering::SeqCst);
        self.wakeup.notify_one();
    }

    /// Requests a round because newer sessions replaced some of this node, which could not be called.
    pub(super) fn request_recheck(&self) {
        self.recheck.notify_one();
    }

    /// Waits for the next round; returns whether it follows a loss.
    async fn next_round(&self, recheck_from: Instant) -> bool {
        let recheck = async {
            sleep_until(recheck_from).await;
            self.recheck.notified().await;
        };
        tokio::select! {
            biased;
            () = self.wakeup.notified() => true,
            () = recheck => false,
            () = sleep(ROUND_INTERVAL) => false,
        }
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
    /// Which sessions of a user newer ones replace.
    pub(super) devices: DevicePolicy,
    pub(super) metrics: Metrics,
}

impl ReassertTask {
    /// Runs for as long as the node lives.
    pub(super) async fn run(self) {
        let mut recheck_from = Instant::now();
        loop {
            let lost = self.losses.next_round(recheck_from).await;
            let noticed = self.losses.noticed.load(Ordering::SeqCst);
            self.round().await;
            if lost {
                sleep(SECOND_ROUND_DELAY).await;
                self.round().await;
                self.losses.restored.store(noticed, Ordering::SeqCst);
                tracing::info!("routes of local connections restored");
            }
            recheck_from = Instant::now() + RECHECK_INTERVAL_MIN;
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
                (staying(&*self.routes, self.devices, &routes, current).await, true)
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

/// Returns which of the re-asserted routes stay: those in force that no newer session replaces. A login that could not
/// reach this node leaves sessions that it replaced.
async fn staying(
    routes: &dyn Routes,
    devices: DevicePolicy,
    rows: &[Route],
    mut in_force: Vec<bool>,
) -> Vec<bool> {
    if devices == DevicePolicy::default() {
        return in_force;
    }
    let users: Vec<UserId> = rows.iter().map(|row| row.user.clone()).collect();
    match routes.lookup(&users).await {
        Ok(found) => {
            for ((row, of_user), stays) in rows.iter().zip(&found).zip(&mut in_force) {
                *stays &= !devices.is_replaced(row, of_user);
            }
        }
        Err(error) => tracing::debug!(%error, "failed to check re-asserted routes; left to the next round"),
    }
    in_force
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::{
        Time,
        id::{DeviceId, NodeId},
    };

    use super::*;
    use crate::routes::{Leases, MemoryRoutes, NodeBoot, OnePer, Registration};

    #[tokio::test(start_paused = true)]
    async fn requested_rounds_come_at_once_and_then_at_intervals() {
        let (losses, start) = (RouteLosses::default(), Instant::now());
        losses.request_recheck();
        assert!(!losses.next_round(start).await);
        assert_eq!(start.elapsed(), Duration::ZERO);
        (0..2).for_each(|_| losses.request_recheck());
        assert!(!losses.next_round(start + RECHECK_INTERVAL_MIN).await);
        assert_eq!(start.elapsed(), RECHECK_INTERVAL_MIN, "both requests are one");
        losses.request_recheck();
        losses.record();
        let later = Instant::now() + RECHECK_INTERVAL_MIN;
        assert!(losses.next_round(later).await, "a loss waits for nothing");
        assert!(!losses.next_round(later).await, "the request is kept");
        assert!(!losses.next_round(later).await && start.elapsed() >= ROUND_INTERVAL);
    }

    #[tokio::test]
    async fn round_ends_sessions_that_newer_ones_replace() {
        let routes = MemoryRoutes::new(1, Leases::default(), || Time::ZERO);
        let user = UserId::new("ann").unwrap();
        let mut rows = Vec::new();
        for device in ["phone-a", "web-a", "phone-b"] {
            let registration = Registration {
                user: user.clone(),
                device: DeviceId::new(device).unwrap(),
                at: NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 },
                above: 0,
                only_if: None,
                policy: DevicePolicy::default(),
            };
            let device = registration.device.clone();
            let token = routes.register(registration).await.unwrap().token;
            rows.push(Route { user: user.clone(), device, token });
        }
        let class = DevicePolicy { one_per: OnePer::Class, ..DevicePolicy::default() };
        assert_eq!(staying(&routes, class, &rows, vec![true; 3]).await, [false, true, true]);
        let each = DevicePolicy::default();
        assert_eq!(staying(&routes, each, &rows, vec![true, false, true]).await, [true, false, true]);
    }
}
