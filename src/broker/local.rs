//! Local delivery: what every component needs to reach the connections of this node.

use std::sync::Arc;

use crate::{
    cluster::Cluster,
    delivery::{local::LocalDispatcher, pending::Pending},
    directory::Directory,
    mail::ShardHandles,
    metrics::Metrics,
    peer::Peer,
};

/// Shards of this node and the requests that wait at it, for every component that passes something to them.
#[derive(Clone)]
pub(super) struct LocalDelivery {
    pub(super) cluster: Arc<Cluster>,
    pub(super) directory: Arc<Directory>,
    /// Mailboxes of all shards, set once.
    pub(super) handles: ShardHandles,
    pub(super) pending: Arc<Pending>,
    pub(super) metrics: Metrics,
}

impl LocalDelivery {
    pub(super) fn new(cluster: &Arc<Cluster>, metrics: &Metrics) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            directory: Arc::default(),
            handles: ShardHandles::default(),
            pending: Arc::default(),
            metrics: metrics.clone(),
        }
    }

    /// Creates a dispatcher to the shards; each ordered stream has its own.
    pub(super) fn dispatcher(&self) -> LocalDispatcher {
        let (directory, handles) = (Arc::clone(&self.directory), Arc::clone(&self.handles));
        LocalDispatcher::new(self.cluster.me.clone(), directory, handles, Arc::clone(&self.pending))
    }

    /// Creates a receiving end of the link that knows the connections only.
    pub(super) fn peer(&self) -> Peer {
        let (directory, handles) = (Arc::clone(&self.directory), Arc::clone(&self.handles));
        let (pending, metrics) = (Arc::clone(&self.pending), self.metrics.clone());
        Peer::new(self.cluster.me.clone(), directory, handles, pending, metrics)
    }
}
