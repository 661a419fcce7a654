//! Queries of the figures of all live peers.

use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

mod allowance;

use self::allowance::Allowances;
use crate::{
    cluster::Cluster,
    figures::{FiguresPage, FiguresQuery},
    link::{Link, LinkError},
    log_limit::log_limited,
    metrics::Metrics,
    routes::NodeBoot,
};

/// Time for a peer to return its figures, shorter than the interval of the stream's queries.
pub(super) const TIMEOUT: Duration = Duration::from_millis(900);

/// Returns the live runs of other nodes; a former run of this node is none.
pub(super) fn live(cluster: &Cluster) -> Vec<NodeBoot> {
    let mut runs = cluster.peers.runs();
    runs.retain(|run| run.node != cluster.me.node);
    runs
}

/// Queries of figures, with what each peer may return.
pub(super) struct PeerFigures {
    allowances: Mutex<Allowances>,
    metrics: Metrics,
}

impl PeerFigures {
    /// Creates the queries of a node; each peer has its whole allowance.
    pub(super) fn new(metrics: Metrics) -> Self {
        Self { allowances: Mutex::default(), metrics }
    }

    /// Queries peers concurrently; each has [`TIMEOUT`] to answer. A peer that has used up its allowance is not queried,
    /// and an answer that exceeds it is dropped.
    pub(super) async fn query(
        &self,
        link: &dyn Link,
        queries: Vec<(NodeBoot, FiguresQuery)>,
    ) -> Vec<(NodeBoot, Result<FiguresPage, LinkError>)> {
        let late = |_| Err(LinkError::Unknown("no figures in time".to_owned()));
        join_all(queries.into_iter().map(async |(run, query)| {
            if !self.allowances.lock().has_left(&run.node, Instant::now()) {
                return (run, Err(over_allowance()));
            }
            let answer = timeout(TIMEOUT, link.figures(&run, query)).await.unwrap_or_else(late);
            let answer = answer.and_then(|page| self.take(&run, page));
            (run, answer)
        }))
        .await
    }

    fn take(&self, run: &NodeBoot, page: FiguresPage) -> Result<FiguresPage, LinkError> {
        let bytes = page.bytes() as u64;
        let Err(exceeded) = self.allowances.lock().take(&run.node, bytes, Instant::now()) else {
            return Ok(page);
        };
        self.metrics.figures_dropped.increment(1);
        if exceeded.is_first {
            log_limited!(warn, node = %run.node, bytes, "peer returned more figures than its allowance; they are dropped");
        }
        Err(over_allowance())
    }
}

fn over_allowance() -> LinkError {
    LinkError::Unavailable("the peer has used up its allowance of figures".to_owned())
}

#[cfg(test)]
mod tests;
