//! Sweeps up after runs of nodes that are over: their rows go, by token, so that whoever came back elsewhere stays.
//!
//! Every live node does it: two reapers at once are harmless, for a row goes by its whole token (flaws S3, S5).

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    metrics::Metrics,
    routes::{NodeBoot, Retire, Routes, RoutesError},
};

/// Rows of one page.
const PAGE: usize = 500;
/// Between two pages, so that a dead node with many users does not keep Redis from the living.
const PAUSE: Duration = Duration::from_millis(20);

/// Retires each run whose lease is over, and removes its rows. What fails is tried again after the next look.
pub(super) async fn reap(routes: Arc<dyn Routes>, dead: Vec<NodeBoot>, metrics: Metrics) {
    for run in dead {
        match reap_one(&*routes, &run).await {
            Ok(None) => tracing::debug!(%run, "its lease lives after all"),
            Ok(Some(rows)) => {
                metrics.rows_reaped.increment(rows);
                tracing::warn!(%run, rows, "a run of a node is over: its routes were swept");
            }
            Err(error) => tracing::warn!(%run, %error, "a run of a node that is over could not be swept yet"),
        }
    }
}

async fn reap_one(routes: &dyn Routes, run: &NodeBoot) -> Result<Option<u64>, RoutesError> {
    // From then on it writes no row, or the sweep would not end (S5).
    if !routes.retire(run, Retire::Lapsed).await? {
        return Ok(None);
    }
    sweep(routes, run).await.map(Some)
}

/// Removes the rows of a retired run, page by page; how many went.
pub(super) async fn sweep(routes: &dyn Routes, run: &NodeBoot) -> Result<u64, RoutesError> {
    let (mut after, mut removed) = (None, 0);
    loop {
        let page = routes.rows_of(run, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(removed) };
        after = Some((last.user.clone(), last.device.clone()));
        let gone = routes.remove(&page).await?;
        removed += gone.into_iter().filter(|gone| *gone).count() as u64;
        if page.len() == PAGE {
            sleep(PAUSE).await;
        }
    }
}
