//! Tasks of a node on its services runtime.
//!
//! They append to the log, own partitions, answer logins, serve live rooms, best-effort messages and large groups,
//! and handle the calls of peers.

use std::sync::Arc;

use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::ports;
use crate::{
    bus::NodeFeed,
    config::Config,
    delivery::{
        answer_cache::AnswerCache, best_effort::BestEffortSender, local::LocalDispatcher,
        peer_queue::PeerQueues, pending::Pending, router::Router,
    },
    directory::Directory,
    ingest::{
        appender,
        intake::{Intake, Outlets},
        recovery,
    },
    large_group::{publisher::GroupPublisher, subscriber::GroupSubscriber},
    link::{BestEffortQueues, Listener},
    login,
    mail::ShardHandles,
    metrics::Metrics,
    partition::{
        assignment::{self, OwnerContext},
        dispatcher::Dispatcher,
        owner,
    },
    peer::Peer,
    ports::Ports,
    room::Rooms,
    scratch::Numbers,
};

/// Dependencies that the tasks of a node share.
pub(super) struct Broker {
    ports: Arc<Ports>,
    directory: Arc<Directory>,
    handles: ShardHandles,
    pending: Arc<Pending>,
    /// Recent answers of this node's owners.
    answer_cache: Arc<AnswerCache>,
    /// Large groups across nodes; `None` on a single node.
    large: Option<LargeGroups>,
    metrics: Metrics,
}

/// Large groups of a clustered node, and the queues to peers for records that node topics do not accept.
struct LargeGroups {
    subscriber: Arc<GroupSubscriber>,
    queues: Arc<BestEffortQueues>,
}

/// Services for frames that do not pass through the log.
pub(super) struct UnloggedServices {
    /// Live rooms.
    pub(super) rooms: Arc<Rooms>,
    /// Sender of signals and marks to other nodes; `None` on a single node.
    pub(super) best_effort: Option<Arc<BestEffortSender>>,
}

/// Tasks that run until the node stops.
pub(super) struct RunningTasks {
    /// Tasks with their names; the node breaks if one of them ends unexpectedly.
    pub(super) tasks: [(&'static str, JoinHandle<()>); 2],
    /// Makes the owners release their partitions and end.
    pub(super) shutdown: CancellationToken,
    /// Publisher of large-group records; `None` on a single node.
    pub(super) group_publisher: Option<Arc<GroupPublisher>>,
}

impl Broker {
    pub(super) fn new(
        ports: &Arc<Ports>,
        directory: &Arc<Directory>,
        handles: &ShardHandles,
        pending: Arc<Pending>,
        metrics: &Metrics,
    ) -> Self {
        let (ports, directory, handles) = (Arc::clone(ports), Arc::clone(directory), Arc::clone(handles));
        let (answer_cache, metrics) = (Arc::default(), metrics.clone());
        Self { ports, directory, handles, pending, answer_cache, large: None, metrics }
    }

    fn local(&self) -> LocalDispatcher {
        let (directory, handles) = (Arc::clone(&self.directory), Arc::clone(&self.handles));
        LocalDispatcher::new(self.ports.me.clone(), directory, handles, Arc::clone(&self.pending))
    }

    /// Starts live rooms and, in a cluster, best-effort messages and large groups; `feed` reads the node's topic.
    pub(super) fn start_unlogged(
        &mut self,
        runtime: &Handle,
        numbers: Arc<dyn Numbers>,
        feed: Option<Box<dyn NodeFeed>>,
        small_group_max: usize,
    ) -> UnloggedServices {
        let Some(feed) = feed else {
            return UnloggedServices { rooms: Arc::new(Rooms::alone(numbers)), best_effort: None };
        };
        let (ports, metrics) = (&self.ports, self.metrics.clone());
        let queues = BestEffortQueues::new(Arc::clone(&ports.link), runtime.clone(), metrics.clone());
        let (directory, handles) = (Arc::clone(&self.directory), Arc::clone(&self.handles));
        let peer =
            Peer::new(ports.me.clone(), directory, handles, Arc::clone(&self.pending), metrics.clone());
        let rooms = Arc::new(Rooms::among_others(
            numbers,
            Arc::clone(ports),
            Arc::clone(&self.directory),
            Arc::clone(&queues),
            move |rooms| peer.report_possible_loss(rooms),
        ));
        runtime.spawn(Arc::clone(&rooms).keep());
        let subscriber = {
            let _guard = runtime.enter();
            let (out, metrics) = (self.local(), metrics.clone());
            GroupSubscriber::start(ports, &self.directory, small_group_max, feed, out, metrics)
        };
        self.large = Some(LargeGroups { subscriber, queues: Arc::clone(&queues) });
        let best_effort = BestEffortSender::start(runtime, ports, queues, metrics);
        UnloggedServices { rooms, best_effort: Some(best_effort) }
    }

    /// Listens for calls of peers, in a cluster.
    ///
    /// # Errors
    /// The address can't be listened on, or the secret or a certificate is invalid.
    pub(super) fn listen(&self, services: &Handle, config: &Config) -> anyhow::Result<Option<Listener>> {
        let (directory, handles) = (Arc::clone(&self.directory), Arc::clone(&self.handles));
        let (pending, metrics) = (Arc::clone(&self.pending), self.metrics.clone());
        let end = Peer::new(self.ports.me.clone(), directory, handles, pending, metrics);
        let mut end = end
            .tracing(Arc::clone(&self.ports.trace))
            .with_answer_cache(Arc::clone(&self.answer_cache), Arc::clone(&self.ports));
        if let Some(large) = &self.large {
            end = end.with_group_subscriber(Arc::clone(&large.subscriber));
        }
        ports::listen(services, config, &self.ports.me, Arc::new(end), &self.metrics)
    }

    /// Starts the tasks. Must be called inside the services runtime.
    pub(super) fn start(
        self,
        (intake, outlets): (&Arc<Intake>, Outlets),
        settings: owner::Settings,
    ) -> RunningTasks {
        let shutdown = CancellationToken::new();
        let ports = Arc::clone(&self.ports);
        let append =
            appender::append_all(outlets.records, Arc::clone(intake), Arc::clone(&ports), self.local());
        let append = tokio::spawn(append);
        let (is_clustered, mut group_publisher) = (self.large.is_some(), None);
        let broker = Arc::new(self);
        // The owner of a single node knows memberships in log order and answers logins; in a cluster no owner knows
        // them all.
        let mut logins = Some(outlets.logins);
        if let Some((large, logins)) = broker.large.as_ref().zip(logins.take_if(|_| is_clustered)) {
            let (subscriber, queues) = (Arc::clone(&large.subscriber), Arc::clone(&large.queues));
            let publisher =
                GroupPublisher::start(&ports, Arc::clone(&subscriber), queues, broker.metrics.clone());
            group_publisher = Some(publisher);
            let broker = Arc::clone(&broker);
            tokio::spawn(login::answer_all(logins, Arc::clone(&ports), subscriber, move || broker.local()));
        }
        if is_clustered {
            let (pending, answer_cache) = (Arc::clone(&broker.pending), Arc::clone(&broker.answer_cache));
            let recovery = recovery::ask_again(
                Arc::clone(&ports),
                pending,
                answer_cache,
                broker.local(),
                broker.metrics.clone(),
            );
            tokio::spawn(recovery);
        }
        let answered = is_clustered.then(|| Arc::clone(&broker.answer_cache));
        let metrics = broker.metrics.clone();
        let remote =
            group_publisher.clone().map(|publisher| (PeerQueues::new(&ports, metrics.clone()), publisher));
        let dispatcher = move || match &remote {
            Some((queues, publisher)) => {
                let router = Router::start(&broker.ports, Arc::clone(queues));
                Dispatcher::clustered(broker.local(), router, Some(Arc::clone(publisher)))
            }
            None => Dispatcher::new(broker.local()),
        };
        let context = OwnerContext {
            ports,
            logins,
            dispatcher: Box::new(dispatcher),
            answered,
            settings,
            metrics,
            leaving: shutdown.clone(),
        };
        let own = tokio::spawn(assignment::own_all(context));
        RunningTasks { tasks: [("the log appender", append), ("the owner", own)], shutdown, group_publisher }
    }
}
