//! Pages of the connections of all nodes, in an order that never changes: by run, then by the key in the run.

use std::time::Duration;

use tokio::time::Instant;

use super::{Connections, in_time, noted};
use crate::{
    link::{ConnectionPage, ConnectionQuery, ConnectionRow, ConnectionSort, LinkError, Selected},
    routes::NodeBoot,
};

/// Time after which a page is returned as far as it is, so that silent nodes don't delay it by their number.
const PAGE_TIMEOUT: Duration = Duration::from_secs(4);

/// Position in the list of all connections: those before it were returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagePosition {
    /// Run whose connections come next.
    pub run: NodeBoot,
    /// Smallest key of that run that comes next; `None` after its last connection.
    pub from_key: Option<u64>,
}

/// Connections of several nodes, from one position of the list to another.
#[derive(Debug, Default)]
pub struct PageOfNodes {
    /// Connections with the runs of their nodes, in order.
    pub rows: Vec<(NodeBoot, ConnectionRow)>,
    /// Position of the next page; `None` if this is the last one.
    pub next: Option<PagePosition>,
    /// Nodes that did not answer, whose connections are left out.
    pub silent: Vec<NodeBoot>,
}

impl Connections {
    /// Lists at most `limit` connections of all nodes, or of one, from a position on. Nodes are asked one after the
    /// other until the page is full, so that its size does not grow with their number.
    pub async fn page(
        &self,
        from: Option<PagePosition>,
        limit: usize,
        only: Option<&NodeBoot>,
    ) -> PageOfNodes {
        let ends = Instant::now() + PAGE_TIMEOUT;
        let mut page = PageOfNodes::default();
        for (run, from_key) in self.runs_from(from.as_ref(), only) {
            if page.rows.len() >= limit || Instant::now() >= ends {
                break;
            }
            let sort = ConnectionSort::KeyFrom(from_key);
            let query = ConnectionQuery { selected: Selected::All, sort, limit: limit - page.rows.len() };
            let answer = self.ask(&run, &query).await.and_then(|found| in_order(found, from_key));
            page.next = Some(PagePosition { run: run.clone(), from_key: None });
            match answer {
                Ok(found) => {
                    let last = found.rows.last().filter(|_| found.rows.len() >= query.limit);
                    let from_key = last.and_then(|row| row.key.checked_add(1));
                    page.rows.extend(found.rows.into_iter().map(|row| (run.clone(), row)));
                    page.next = Some(PagePosition { run, from_key });
                }
                // The run has ended, and its connections with it.
                Err(LinkError::NotHere) => {}
                Err(error) => page.silent.push(noted(run, &error)),
            }
        }
        let is_last =
            page.next.as_ref().or(from.as_ref()).is_none_or(|at| self.runs_from(Some(at), only).is_empty());
        if is_last {
            page.next = None;
        } else if page.next.is_none() {
            page.next = from;
        }
        page
    }

    /// Returns the runs that may have connections from a position on, each with its smallest key that counts.
    fn runs_from(&self, from: Option<&PagePosition>, only: Option<&NodeBoot>) -> Vec<(NodeBoot, u64)> {
        let mut runs = self.others();
        runs.push(self.cluster.me.clone());
        runs.retain(|run| only.is_none_or(|only| only == run));
        runs.sort();
        let key_of = |run: &NodeBoot| match from {
            Some(from) if *run == from.run => from.from_key,
            Some(from) if *run < from.run => None,
            _ => Some(0),
        };
        runs.into_iter().filter_map(|run| key_of(&run).map(|key| (run, key))).collect()
    }

    async fn ask(&self, run: &NodeBoot, query: &ConnectionQuery) -> Result<ConnectionPage, LinkError> {
        if *run == self.cluster.me {
            return self.list_here(query).await;
        }
        in_time(self.cluster.ports.link.connections(run, query.clone())).await
    }
}

/// Checks that a page has the requested order, which peers of older versions don't know.
fn in_order(page: ConnectionPage, from_key: u64) -> Result<ConnectionPage, LinkError> {
    let is_ascending = page.rows.windows(2).all(|pair| matches!(pair, [a, b] if a.key < b.key));
    if is_ascending && page.rows.iter().all(|row| row.key >= from_key) {
        Ok(page)
    } else {
        Err(LinkError::Unavailable("its version knows no pages of connections".to_owned()))
    }
}
