//! Puts the routes of this node's conns back after the routes lost something, a page at a time.

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
    mail::{Mail, Reassert, ShardHandle, Slice},
    metrics::Metrics,
    routes::{Route, Routes, RoutesError},
};

/// Between two pages: at most 10,000 rows a second from one node.
const PAUSE: Duration = Duration::from_millis(50);
/// While the routes do not answer.
const RETRY: Duration = Duration::from_millis(500);
/// A login may have registered before the loss and be in no index yet: a second round comes when it is.
const SETTLE: Duration = Duration::from_secs(6);
/// Without any sign of a loss all rows are asserted this often: finds what a failover lost between two beats, and keeps rows
/// of long conns from their time to live.
const ROUND_EVERY: Duration = Duration::from_secs(15 * 60);

/// The losses that were noticed, and those after which everything was put back.
#[derive(Default)]
pub(crate) struct Losses {
    noticed: AtomicU64,
    mended: AtomicU64,
    bell: Notify,
}

impl Losses {
    /// Something was lost.
    pub(crate) fn one_more(&self) {
        self.noticed.fetch_add(1, Ordering::SeqCst);
        self.bell.notify_one();
    }

    /// Whether routes of this node may be missing.
    pub(crate) fn are_open(&self) -> bool {
        self.noticed.load(Ordering::SeqCst) != self.mended.load(Ordering::SeqCst)
    }
}

/// Asks the shards for their routes, and tells the routes.
pub(crate) struct Putter {
    pub(crate) routes: Arc<dyn Routes>,
    pub(crate) shards: Vec<ShardHandle>,
    pub(crate) losses: Arc<Losses>,
    pub(crate) metrics: Metrics,
}

impl Putter {
    /// For as long as the node lives.
    pub(crate) async fn run(self) {
        loop {
            let lost = timeout(ROUND_EVERY, self.losses.bell.notified()).await.is_ok();
            let noticed = self.losses.noticed.load(Ordering::SeqCst);
            self.round().await;
            if lost {
                sleep(SETTLE).await;
                self.round().await;
                self.losses.mended.store(noticed, Ordering::SeqCst);
                tracing::info!("the routes of this node's connections are back");
            }
        }
    }

    async fn round(&self) {
        for shard in &self.shards {
            let mut from = Some(0);
            while let Some(place) = from {
                // A shard is gone only when the node stops.
                let Some(Slice { rows, next }) = collect(shard, place).await else { break };
                from = if rows.is_empty() || self.put(shard, rows).await { next } else { Some(place) };
            }
        }
    }

    /// One page; false if it is to be collected anew, since meanwhile conns come and go.
    async fn put(&self, shard: &ShardHandle, rows: Vec<(crate::mail::ConnKey, Route)>) -> bool {
        let routes: Vec<Route> = rows.iter().map(|(_, route)| route.clone()).collect();
        let (stands, done) = match self.routes.reassert(&routes).await {
            Ok(stands) => {
                self.metrics.routes_reasserted.increment(stands.len() as u64);
                (stands, true)
            }
            // The next renewal hears of it, and ends the node.
            Err(RoutesError::LeaseLost) => return true,
            Err(error) => {
                tracing::debug!(%error, "routes could not be put back; again in a moment");
                let in_doubt = matches!(error, RoutesError::Unknown(_));
                (vec![true; if in_doubt { rows.len() } else { 0 }], false)
            }
        };
        let settled: Vec<_> =
            rows.into_iter().zip(stands).map(|((key, route), stands)| (key, route, stands)).collect();
        if !settled.is_empty() {
            // The shard has stopped: its rows are swept with the node's.
            shard.post(Mail::Reassert(Reassert::Settle(settled))).await.ok();
        }
        sleep(if done { PAUSE } else { RETRY }).await;
        done
    }
}

async fn collect(shard: &ShardHandle, from: u32) -> Option<Slice> {
    let (reply, slice) = oneshot::channel();
    shard.post(Mail::Reassert(Reassert::Collect(from, reply))).await.ok()?;
    slice.await.ok()
}
