//! Reaper: sweeps the routes of ended runs by their full tokens, so that devices that reconnected elsewhere stay.
//!
//! Every live node does this. Two reapers at once are harmless, because a row is removed by its full token (flaws S3,
//! S5) and the node that deletes it publishes the departure. A list entry without a row is a departure that some node
//! was about to publish. If it is still listed after [`DEPARTURE_GRACE`], the reaper that finds it publishes it (ADR
//! 14).

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    cluster::Cluster,
    events::sort,
    metrics::Metrics,
    routes::{NodeBoot, Retire, RoutesError},
};

/// Rows per page.
const PAGE_ROWS: usize = 500;
/// Pause between two pages, so that a dead node with many users does not keep Redis from serving the live ones.
const PAGE_INTERVAL: Duration = Duration::from_millis(20);
/// Time that another reaper has to publish the departure whose row it deleted, and that a device closed in a drain has
/// to reconnect elsewhere.
const DEPARTURE_GRACE: Duration = Duration::from_secs(3);

/// Treatment of list entries without a row, which are unpublished departures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Departures {
    /// Leave them to another node, for now.
    Leave,
    /// Publish them.
    Publish,
}

/// Result of a sweep.
#[derive(Clone, Copy, Default)]
pub(super) struct SweepCounts {
    /// Rows that were removed.
    pub(super) removed: u64,
    /// Departures that were left to other nodes.
    left: u64,
}

/// Retires each run whose lease has expired, and removes its rows. Failures are retried after the next fetch of the
/// nodes.
pub async fn reap(cluster: Arc<Cluster>, dead: Vec<NodeBoot>, metrics: Metrics) {
    for run in dead {
        match reap_one(&cluster, &run).await {
            Ok(None) => tracing::debug!(%run, "lease renewed; run not reaped"),
            // It stays listed while other nodes publish its departures.
            Ok(Some(0)) => tracing::debug!(%run, "sweep found no rows"),
            Ok(Some(rows)) => {
                metrics.rows_reaped.increment(rows);
                tracing::warn!(%run, rows, "run ended; its routes are swept");
            }
            Err(error) => tracing::warn!(%run, %error, "sweep of an ended run failed; retrying"),
        }
    }
}

async fn reap_one(cluster: &Cluster, run: &NodeBoot) -> Result<Option<u64>, RoutesError> {
    // A retired run writes no row, so the sweep ends (S5).
    if !cluster.ports.routes.retire(run, Retire::Lapsed).await? {
        return Ok(None);
    }
    let swept = sweep(cluster, run, Departures::Leave).await?;
    if swept.left > 0 {
        sleep(DEPARTURE_GRACE).await;
        sweep(cluster, run, Departures::Publish).await?;
    }
    Ok(Some(swept.removed))
}

/// Removes the rows of a retired run, page by page.
pub(super) async fn sweep(
    cluster: &Cluster,
    run: &NodeBoot,
    departures: Departures,
) -> Result<SweepCounts, RoutesError> {
    let routes = &*cluster.ports.routes;
    let (mut after, mut swept) = (None, SweepCounts::default());
    loop {
        let page = routes.rows_of(run, after, PAGE_ROWS).await?;
        let Some(last) = page.last() else { return Ok(swept) };
        let is_full = page.len() == PAGE_ROWS;
        after = Some((last.user.clone(), last.device.clone()));
        let sorted = sort(routes, page).await?;
        // Includes devices that moved, whose entries are removed.
        let removable = [sorted.registered, sorted.moved].concat();
        if !removable.is_empty() {
            // The routes record the departures.
            let gone = routes.remove(&removable).await?;
            swept.removed += gone.into_iter().filter(|gone| *gone).count() as u64;
        }
        match departures {
            Departures::Leave => swept.left += sorted.gone.len() as u64,
            // The entry is removed once the event is published.
            Departures::Publish => sorted.gone.iter().for_each(|row| cluster.events.offline(row)),
        }
        if is_full {
            sleep(PAGE_INTERVAL).await;
        }
    }
}
