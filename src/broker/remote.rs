//! Services of a clustered node that bypass the log, or that follow it by node topics.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::local::LocalDelivery;
use crate::{
    bus::NodeFeed,
    delivery::best_effort::BestEffortSender,
    large_group::{publisher::GroupPublisher, subscriber::GroupSubscriber},
    link::BestEffortQueues,
    room::Rooms,
    scratch::Numbers,
    storms::RoomStorms,
    supervised,
};

/// Large groups, signals and marks among nodes.
pub(super) struct RemoteServices {
    /// Large groups with members on this node.
    pub(super) subscriber: Arc<GroupSubscriber>,
    /// Signals and marks for users on other nodes.
    pub(super) best_effort: Arc<BestEffortSender>,
    /// Queues of best-effort messages to peers; they also carry the records that a node topic does not accept.
    queues: Arc<BestEffortQueues>,
}

impl RemoteServices {
    /// Starts the services, and the live rooms that share their queues. Must run in a runtime.
    pub(super) fn start(
        local: &LocalDelivery,
        numbers: Arc<dyn Numbers>,
        storms: Arc<RoomStorms>,
        feed: Box<dyn NodeFeed>,
        small_group_max: usize,
    ) -> (Arc<Rooms>, Self) {
        let (cluster, directory, metrics) = (&local.cluster, &local.directory, &local.metrics);
        let runtime = Handle::current();
        let queues = BestEffortQueues::new(Arc::clone(&cluster.ports.link), runtime.clone(), metrics.clone());
        let peer = local.peer();
        let rooms = Arc::new(Rooms::among_others(
            numbers,
            storms,
            Arc::clone(cluster),
            Arc::clone(directory),
            Arc::clone(&queues),
            move |rooms| peer.report_possible_loss(rooms),
        ));
        supervised::spawn("the keeper of rooms", Arc::clone(&rooms).keep());
        let out = local.dispatcher();
        let subscriber =
            GroupSubscriber::start(cluster, directory, small_group_max, feed, out, metrics.clone());
        let best_effort = BestEffortSender::start(&runtime, cluster, Arc::clone(&queues), metrics.clone());
        (rooms, Self { subscriber, best_effort, queues })
    }

    /// Starts the publisher of large-group records, for the owners of this node. Must run in a runtime.
    pub(super) fn start_publisher(&self, local: &LocalDelivery) -> Arc<GroupPublisher> {
        let (subscriber, queues) = (Arc::clone(&self.subscriber), Arc::clone(&self.queues));
        GroupPublisher::start(&local.cluster, subscriber, queues, local.metrics.clone())
    }
}
