//! Sweeps up after runs of nodes that are over: their rows go, by token, so that whoever came back elsewhere stays.
//!
//! Every live node does it: two reapers at once are harmless, for a row goes by its whole token (flaws S3, S5), and whoever
//! deletes it tells that the device left. A place without a row is a departure that somebody was about to tell: where it still is
//! listed after a while, whoever finds it tells it (ADR 14).

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    metrics::Metrics,
    ports::Ports,
    routes::{NodeBoot, Retire, RoutesError, sort},
};

/// Rows of one page.
const PAGE: usize = 500;
/// Between two pages, so that a dead node with many users does not keep Redis from the living.
const PAUSE: Duration = Duration::from_millis(20);
/// How long another reaper, which deleted a row, has to tell that its device left, and a device that a node closed when it
/// left to come back elsewhere.
const TELLING: Duration = Duration::from_secs(3);

/// What to make of a place whose row is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Untold {
    /// It is somebody else's to tell, for now.
    Leave,
    /// It is told here.
    Tell,
}

/// What a sweep came to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Swept {
    /// Rows that were removed.
    pub(crate) removed: u64,
    /// Departures that were left to others.
    left: u64,
}

/// Retires each run whose lease is over, and removes its rows. What fails is tried again after the next look.
pub async fn reap(ports: Arc<Ports>, dead: Vec<NodeBoot>, metrics: Metrics) {
    for run in dead {
        match reap_one(&ports, &run).await {
            Ok(None) => tracing::debug!(%run, "its lease lives after all"),
            // Looked at again: others are telling what is left of it.
            Ok(Some(0)) => tracing::debug!(%run, "nothing was left to sweep"),
            Ok(Some(rows)) => {
                metrics.rows_reaped.increment(rows);
                tracing::warn!(%run, rows, "a run of a node is over: its routes were swept");
            }
            Err(error) => tracing::warn!(%run, %error, "a run of a node that is over could not be swept yet"),
        }
    }
}

async fn reap_one(ports: &Ports, run: &NodeBoot) -> Result<Option<u64>, RoutesError> {
    // From then on it writes no row, or the sweep would not end (S5).
    if !ports.routes.retire(run, Retire::Lapsed).await? {
        return Ok(None);
    }
    let swept = sweep(ports, run, Untold::Leave).await?;
    if swept.left > 0 {
        sleep(TELLING).await;
        sweep(ports, run, Untold::Tell).await?;
    }
    Ok(Some(swept.removed))
}

/// Removes the rows of a retired run, page by page.
pub(crate) async fn sweep(ports: &Ports, run: &NodeBoot, untold: Untold) -> Result<Swept, RoutesError> {
    let routes = &*ports.routes;
    let (mut after, mut swept) = (None, Swept::default());
    loop {
        let page = routes.rows_of(run, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(swept) };
        let whole = page.len() == PAGE;
        after = Some((last.user.clone(), last.device.clone()));
        let sorted = sort(routes, page).await?;
        // Also those that moved: their places go.
        let over = [sorted.standing, sorted.moved].concat();
        if !over.is_empty() {
            // The routes note who left.
            let gone = routes.remove(&over).await?;
            swept.removed += gone.into_iter().filter(|gone| *gone).count() as u64;
        }
        match untold {
            Untold::Leave => swept.left += sorted.gone.len() as u64,
            // Told, its place goes.
            Untold::Tell => sorted.gone.iter().for_each(|row| ports.events.offline(row)),
        }
        if whole {
            sleep(PAUSE).await;
        }
    }
}
