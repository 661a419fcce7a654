//! Composition of a broker: everything between the ports and the listeners, for nodes and for tests.
//!
//! The caller chooses the adapters, opens the sockets and drives the shards. So a node, a mesh of nodes in one process
//! and the simulation differ in [`Parts`] only.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use tidegate_protocol::machine::{drain, presence::PresenceLimits};

use crate::{
    ack_times::AckTimes,
    assign::Assigner,
    budget::Admission,
    bus::NodeFeed,
    clock::wall_ms,
    cluster::{
        BanHandler, ClosedRoomHandler, Cluster, ErasureHandler, PriorityHandler, StormHandler,
        SuspensionHandler,
    },
    connections::Connections,
    conversation::mark_read::Devices,
    delivery::answer_cache::AnswerCache,
    directory::Directory,
    drain::Drainer,
    ingest::{
        admin::Admin,
        intake::{Intake, Outlets},
    },
    limits::RuleGuard,
    load::LoadFigures,
    mail::{ShardHandle, ShardHandles},
    metrics::Metrics,
    peer::Peer,
    presence::PresenceWatches,
    room::Rooms,
    routes::{DevicePolicy, NodeDescription},
    scratch::Numbers,
    shard::{self, Driver, DriverQueue},
    supervised,
    waiting::WaitingNotices,
    webhooks::{EndpointFollower, WebhookPolicy, Webhooks},
};

mod announcement;
mod cut;
mod local;
mod remote;
mod shard_settings;
mod tasks;

pub use self::{
    announcement::NodeAnnouncement,
    cut::ConnectionCutter,
    shard_settings::ShardSettings,
    tasks::{RunningTasks, STOP_MAX},
};
use self::{local::LocalDelivery, remote::RemoteServices};

/// Components from which a broker is composed.
pub struct Parts {
    /// Ports of the node, and its view of the cluster.
    pub cluster: Arc<Cluster>,
    /// Exchange with other nodes.
    pub peering: Peering,
    /// Numbering of live rooms.
    pub numbers: Arc<dyn Numbers>,
    /// Limits and description.
    pub settings: Settings,
    /// Metrics of the node.
    pub metrics: Metrics,
}

/// Exchange of a broker with other nodes.
pub enum Peering {
    /// No other nodes: the owner of the only partition knows all memberships, and answers logins.
    Single,
    /// Everything: replies and pushes, live rooms, signals and marks over the link, and large groups over node topics.
    /// The feed reads the topic of this node from its end.
    Clustered(Box<dyn NodeFeed>),
    /// Replies and pushes only. A broker without shards has no members, no signals and no logins; the simulation runs
    /// such brokers, and their tasks end with [`RunningTasks::abort`].
    LogOnly,
}

/// Limits of a broker, and the description of its node.
pub struct Settings {
    /// Most bytes of sends that wait for the log.
    pub intake_bytes_max: usize,
    /// Limits on the sessions of one user.
    pub devices: DevicePolicy,
    /// Largest member count of a group that is not large.
    pub small_group_max: usize,
    /// Description of the node, for the assignment of clients.
    pub description: NodeDescription,
    /// Time for which a client may use an assignment.
    pub assign_ttl: Duration,
    /// What endpoints of webhooks may be.
    pub webhooks: WebhookPolicy,
    /// Limits of the watches of who of a conversation is online.
    pub presence: PresenceLimits,
}

impl Settings {
    /// Creates settings with 1 MiB for sends that wait, of a node that has no description and no limits on
    /// devices.
    pub fn new(small_group_max: usize) -> Self {
        let (description, assign_ttl) = (NodeDescription::default(), Duration::from_secs(10));
        let devices = DevicePolicy::default();
        let (webhooks, presence) = (WebhookPolicy::default(), PresenceLimits::default());
        let intake_bytes_max = 1 << 20;
        Self { intake_bytes_max, devices, small_group_max, description, assign_ttl, webhooks, presence }
    }
}

/// Parts of a node between its ports and its listeners.
pub struct Broker {
    /// Ports of the node, and its view of the cluster.
    pub cluster: Arc<Cluster>,
    /// Group changes and recalls by administrators.
    pub admin: Admin,
    /// Intake of the log.
    pub intake: Arc<Intake>,
    /// Assigner of clients to nodes.
    pub assigner: Arc<Assigner>,
    /// Times from sends to their acks.
    pub ack_times: Arc<AckTimes>,
    /// Load of the node, as its shards measure it.
    pub load: Arc<LoadFigures>,
    /// Live rooms.
    pub rooms: Arc<Rooms>,
    /// Watches of who of a conversation is online.
    pub watches: Arc<PresenceWatches>,
    /// Connections of this node and, over the link, of the others.
    pub connections: Arc<Connections>,
    /// Endpoints of webhooks.
    pub webhooks: Arc<Webhooks>,
    local: LocalDelivery,
    /// Recent answers of this node's owners.
    answer_cache: Arc<AnswerCache>,
    /// Whether other nodes may own partitions.
    is_clustered: bool,
    /// Services to other nodes that bypass the log or follow it by topic; `None` unless [`Peering::Clustered`].
    remote: Option<RemoteServices>,
    /// Rules of the shards, set with their context.
    rules: OnceLock<Arc<RuleGuard>>,
    devices: DevicePolicy,
    small_group_max: usize,
    metrics: Metrics,
}

/// Adds what puts the entries of the guard in force on this node, but those of webhooks.
fn put_entries_in_force(cluster: &Cluster, metrics: &Metrics) {
    let (guard, bans) = (&cluster.guard, Arc::clone(&cluster.bans));
    let (peers, evidence) = (Arc::clone(&cluster.peers), Arc::clone(&cluster.evidence));
    guard.add_handler(Arc::new(StormHandler::new(Arc::clone(&cluster.storms))));
    guard.add_handler(BanHandler::new(bans, peers, Arc::clone(&evidence), metrics.clone()));
    guard.add_handler(Arc::new(PriorityHandler::new(Arc::clone(&cluster.priorities))));
    guard.add_handler(SuspensionHandler::new(Arc::clone(&cluster.suspensions), metrics.clone()));
    guard.add_handler(ClosedRoomHandler::new(Arc::clone(&cluster.closed_rooms), metrics.clone()));
    guard.add_handler(ErasureHandler::new(evidence));
}

impl Broker {
    /// Composes a broker, and starts the services for frames that do not pass through the log. Must run in a runtime.
    ///
    /// [`Self::build_shards`] and then [`Self::start`] come next; the latter takes the outlets. A test that acts as the
    /// log and the owner reads the outlets itself.
    pub fn assemble(parts: Parts) -> (Arc<Self>, Outlets) {
        let Parts { cluster, peering, numbers, settings, metrics } = parts;
        let Settings {
            intake_bytes_max,
            devices,
            small_group_max,
            description,
            assign_ttl,
            webhooks,
            presence,
        } = settings;
        put_entries_in_force(&cluster, &metrics);
        let (intake, outlets) = Intake::new(intake_bytes_max);
        let local = LocalDelivery::new(&cluster, &metrics);
        let admin = Admin::new(cluster.me.clone(), Arc::clone(&intake), Arc::clone(&local.pending));
        let is_clustered = !matches!(peering, Peering::Single);
        let storms = cluster.storms.open_rooms(&cluster.events, &metrics, wall_ms);
        let (rooms, remote) = match peering {
            Peering::Clustered(feed) => {
                let (rooms, remote) = RemoteServices::start(&local, numbers, storms, feed, small_group_max);
                (rooms, Some(remote))
            }
            Peering::Single | Peering::LogOnly => (Arc::new(Rooms::alone(numbers, storms)), None),
        };
        supervised::spawn("the watch of storms in rooms", Arc::clone(&rooms).watch_storms());
        let (directory, shards) = (Arc::clone(&local.directory), Arc::clone(&local.handles));
        supervised::spawn("the tallies of rooms", Arc::clone(&rooms).publish_tallies(directory, shards));
        let watches = Arc::new(PresenceWatches::new(presence, metrics.clone()));
        let reporting = Arc::clone(&watches).run(Arc::clone(&cluster), Arc::clone(&local.handles));
        supervised::spawn("the presence of conversations", reporting);
        let (store, owned) = (Arc::clone(&cluster.ports.store), Arc::clone(&cluster.owned));
        let webhooks = Arc::new(Webhooks::new(webhooks, store, owned, metrics.clone()));
        cluster.guard.add_handler(EndpointFollower::new(&webhooks));
        let connections = Connections::new(Arc::clone(&cluster), Arc::clone(&local.handles), metrics.clone());
        let connections = Arc::new(connections);
        let notices = WaitingNotices::new(Arc::clone(&cluster), Arc::clone(&connections), small_group_max);
        webhooks.accompany_with(Arc::new(notices));
        let broker = Self {
            connections,
            assigner: Arc::new(Assigner::new(Arc::clone(&cluster), description, assign_ttl)),
            cluster,
            ack_times: Arc::default(),
            load: Arc::default(),
            admin,
            intake,
            rooms,
            watches,
            webhooks,
            local,
            answer_cache: Arc::default(),
            is_clustered,
            remote,
            rules: OnceLock::new(),
            devices,
            small_group_max,
            metrics,
        };
        (Arc::new(broker), outlets)
    }

    /// Returns the handles of the metrics.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Returns the receiving end of the link, for the calls of peers.
    pub fn peer(&self) -> Peer {
        let peer = self
            .local
            .peer()
            .tracing(Arc::clone(&self.cluster.trace))
            .with_figures(Arc::clone(&self.cluster.figures))
            .with_connections(Arc::clone(&self.connections))
            .with_tallies(Arc::clone(self.rooms.tallies()))
            .with_answer_cache(Arc::clone(&self.answer_cache), Arc::clone(&self.cluster));
        match &self.remote {
            Some(remote) => peer.with_group_subscriber(Arc::clone(&remote.subscriber)),
            None => peer,
        }
    }

    /// Builds all shards of the broker, for the caller to run, with the queues of their new connections.
    ///
    /// # Errors
    /// The kernel can't create a poll, or the broker has its shards already.
    pub fn build_shards(
        &self,
        context: &shard::Context,
        count: usize,
    ) -> io::Result<Vec<(Driver, DriverQueue)>> {
        self.rooms.tallies().follow_rules(Arc::clone(&context.room_rules));
        let build = |index| shard::build(shard::Context { index, ..context.clone() });
        let built = (0..count).map(build).collect::<io::Result<Vec<(Driver, DriverQueue)>>>()?;
        let handles = built.iter().map(|(_, newcomers)| newcomers.shard().clone()).collect();
        self.local.handles.set(handles).map_err(|_| io::Error::other("the shards are already built"))?;
        Ok(built)
    }

    /// Returns the handles of all shards; empty until [`Self::build_shards`].
    pub fn shards(&self) -> &[ShardHandle] {
        self.local.handles.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the handles of all shards, shared with the parts that post to them.
    pub fn shard_handles(&self) -> ShardHandles {
        Arc::clone(&self.local.handles)
    }

    /// Returns the index of the users and members that are connected to this node.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.local.directory
    }

    /// Returns a notifier of users' devices, on this node and on others.
    pub fn devices(&self) -> Devices {
        Devices {
            directory: Arc::clone(&self.local.directory),
            shards: Arc::clone(&self.local.handles),
            best_effort: self.remote.as_ref().map(|remote| Arc::clone(&remote.best_effort)),
        }
    }

    /// Starts the drain of the node, which waits for its request; `start` is the time base of the shards. Must run in a
    /// runtime.
    pub fn start_drainer(
        &self,
        settings: drain::Settings,
        start: Instant,
        admission: &Arc<Admission>,
    ) -> Arc<Drainer> {
        let drainer = Drainer::new(
            settings,
            start,
            self.shards().to_vec(),
            Arc::clone(admission),
            Arc::clone(&self.intake),
            Arc::clone(&self.assigner),
            self.metrics.clone(),
        );
        supervised::spawn("the drain", Arc::clone(&drainer).run());
        drainer
    }
}
