//! Queries of the figures of all live peers.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use crate::{
    cluster::Cluster,
    figures::{FiguresPage, FiguresQuery},
    link::{Link, LinkError},
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

/// Queries peers concurrently; each has [`TIMEOUT`] to answer.
pub(super) async fn query(
    link: &dyn Link,
    queries: Vec<(NodeBoot, FiguresQuery)>,
) -> Vec<(NodeBoot, Result<FiguresPage, LinkError>)> {
    let late = |_| Err(LinkError::Unknown("no figures in time".to_owned()));
    join_all(queries.into_iter().map(async |(run, query)| {
        let answer = timeout(TIMEOUT, link.figures(&run, query)).await.unwrap_or_else(late);
        (run, answer)
    }))
    .await
}
