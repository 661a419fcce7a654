//! Nodes with rooms that share routes in memory and a clock, for the tests of rooms.

use super::*;

/// Numbers whose renewal fails `refuse` times, and which count their renewals.
#[derive(Default)]
pub(super) struct FailingNumbers {
    /// Number of renewals that fail from now on.
    pub(super) refuse: AtomicU64,
    pub(super) renewals: AtomicU64,
}

#[async_trait::async_trait]
impl Numbers for FailingNumbers {
    async fn take(&self, _: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        Ok(1..=count.get())
    }

    async fn changed(&self) -> Result<(), ScratchError> {
        let refuses = self.refuse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if refuses.is_ok() {
            return Err(ScratchError::Unavailable("a fault".to_owned()));
        }
        self.renewals.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Environment of nodes that share routes and a clock.
pub(super) struct World {
    pub(super) numbers: Arc<FailingNumbers>,
    now: Arc<AtomicU64>,
    pub(super) routes: Arc<MemoryRoutes>,
    /// Planned faults of the routes.
    pub(super) plan: Arc<FaultPlan>,
}

/// Rooms of one node, and what they sent.
pub(super) struct OneNode {
    pub(super) rooms: Arc<Rooms>,
    pub(super) directory: Arc<Directory>,
    pub(super) cluster: Arc<Cluster>,
    link: Arc<RecordingPeer>,
    /// Rooms whose members were notified that messages may be missing.
    notified: Arc<Mutex<Vec<ConversationId>>>,
}

pub(super) fn boot(name: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 }
}

pub(super) fn hall() -> ConversationId {
    ConversationId::parse("r:hall").unwrap()
}

impl World {
    pub(super) fn new() -> Self {
        let now = Arc::new(AtomicU64::new(1));
        let clock = Arc::clone(&now);
        let time = move || Time::from_millis(clock.load(Ordering::SeqCst));
        let routes = Arc::new(MemoryRoutes::new(1, Leases::default(), time));
        Self { numbers: Arc::default(), now, routes, plan: FaultPlan::none() }
    }

    pub(super) async fn node(&self, name: &str) -> OneNode {
        let link = Arc::<RecordingPeer>::default();
        let cluster = Arc::new(Cluster::new(
            boot(name),
            Ports {
                routes: Arc::new(Faulty::new(self.routes.clone() as Arc<dyn Routes>, Arc::clone(&self.plan))),
                ..Ports::in_memory(Arc::clone(&link) as Arc<dyn Link>)
            },
        ));
        let queues =
            BestEffortQueues::new(Arc::clone(&cluster.ports.link), Handle::current(), metrics::install().0);
        let directory = Arc::new(Directory::default());
        let numbers = Arc::clone(&self.numbers) as Arc<dyn Numbers>;
        let notified = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&notified);
        let storms = cluster.storms.open_rooms(&cluster.events, &metrics::install().0, || 1);
        let rooms = Rooms::among_others(
            numbers,
            storms,
            Arc::clone(&cluster),
            Arc::clone(&directory),
            queues,
            move |rooms| record.lock().unwrap().extend(rooms),
        );
        let node = OneNode { rooms: Arc::new(rooms), directory, cluster, link, notified };
        self.routes.renew(&node.info()).await.unwrap();
        node
    }

    /// Advances the clock, then renews the leases of the nodes.
    pub(super) async fn pass(&self, time: Duration, nodes: &[&OneNode]) {
        self.now.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
        for node in nodes {
            self.routes.renew(&node.info()).await.unwrap();
        }
    }
}

impl OneNode {
    fn info(&self) -> NodeInfo {
        NodeInfo { peer_address: "127.0.0.1:1".into(), ..NodeInfo::new(self.cluster.me.clone()) }
    }

    pub(super) async fn join(&self) {
        self.directory.hold_conversation(&hall(), 0);
        if !self.rooms.is_declared(&hall()) {
            self.declare(&hall()).await;
        }
    }

    pub(super) async fn declare(&self, room: &ConversationId) {
        self.rooms.declare(room, self.rooms.reserve_join().unwrap()).await;
    }

    pub(super) fn leave(&self) {
        self.directory.release_conversation(&hall(), 0);
    }

    pub(super) fn take_notified(&self) -> Vec<ConversationId> {
        std::mem::take(&mut self.notified.lock().unwrap())
    }

    pub(super) fn take_best_effort(&self) -> Vec<(NodeBoot, BestEffortMessage)> {
        std::mem::take(&mut self.link.best_effort.lock())
    }

    pub(super) async fn recipients(&self) -> Vec<NodeBoot> {
        self.rooms.assign_numbers(&hall(), NonZeroU64::MIN).await.unwrap().nodes
    }

    pub(super) fn set_peers(&self, others: &[&Self], may_be_incomplete: bool) {
        let row = |node: &&Self| crate::routes::NodeRow::new(node.info(), crate::routes::Lease::Live);
        let others = others.iter().map(row).collect();
        self.cluster.peers.set(PeerSnapshot { others, may_be_incomplete, ..PeerSnapshot::default() });
    }
}
