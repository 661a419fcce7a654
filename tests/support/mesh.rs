//! Several nodes in this process on shared memory ports: real shards, sockets and use-cases, with faults that a test
//! plans. The first node owns the log.
//!
//! A node is composed as in production, except for these parts. It has no lease, reaper, drain or event publisher; a test
//! sets the peers in its snapshot. Each node has a scratch of its own. The clocks of routes and scratch do not advance, so
//! that no row expires.
#![allow(dead_code, unreachable_pub, reason = "each user takes a part of it")]

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tidegate::{
    accept::{AcceptScreen, Acceptor, Stopper},
    auth::{self, Verifier},
    bans::BanBoard,
    broker::{Broker, Parts, Peering, Settings, ShardSettings},
    budget::Admission,
    bus::{Bus, LocalBus, LocalBusConfig, NodeFeed, TopicId},
    cluster::{Cluster, GuardChange, PeerSnapshot},
    config,
    connections::Connections,
    fault::{FaultPlan, Faulty},
    ingest::admin::Admin,
    link::{Link, MemoryLink},
    mail::{Mail, ShardHandle},
    metrics,
    partition::{
        owner,
        retention::{self, Keep},
        rules,
    },
    ports::Ports,
    room::Rooms,
    room_rules::{RoomRule, RoomRules},
    routes::{DevicePolicy, Leases, MemoryRoutes, NodeBoot, NodeInfo, Routes},
    scratch::{MemoryScratch, Numbers},
    shard::{Driver, DriverQueue},
    store::{GuardEntry, GuardKey, GuardKind, GuardPut, MemoryStore, Store},
};
use tidegate_protocol::{
    Code, Time,
    codec::Wire,
    id::{ConversationId, NodeId, UserId},
    machine::session::SubmitAnswer,
    pb,
    record::{MemberAction, MemberChange},
};
use tokio::runtime::Runtime;

use super::support::{Client, ask, hello};

const KEY: &[u8] = b"a key of thirty-two bytes, or so";
const SHARDS: usize = 2;
/// Largest member count of a group that accepts signals.
const SMALL_GROUP_MAX: usize = 4;

/// Nodes, `n1` and up.
pub struct Mesh {
    nodes: Vec<MeshNode>,
    store: Arc<MemoryStore>,
    routes: Arc<MemoryRoutes>,
    link: MemoryLink,
    bus: Arc<LocalBus>,
    answers_first: bool,
    devices: DevicePolicy,
    runtime: Runtime,
}

/// Node of a mesh.
pub struct MeshNode {
    broker: Arc<Broker>,
    /// Faults of the node's routes.
    pub routes: Arc<FaultPlan>,
    /// Faults of the node's link.
    pub link: Arc<FaultPlan>,
    /// Faults of the node's bus.
    pub bus: Arc<FaultPlan>,
    /// Faults of the node's store.
    pub store: Arc<FaultPlan>,
    address: SocketAddr,
    stopper: Stopper,
    threads: Vec<Thread>,
}

impl Mesh {
    /// Starts `count` nodes that share these room numbers. Their owners reply before they archive, which is the harder
    /// order (ADR 16).
    pub fn start(count: usize, numbers: &Arc<dyn Numbers>) -> Self {
        Self::start_with(count, numbers, true, DevicePolicy::default())
    }

    /// Starts `count` nodes whose owners reply before they archive, or after it.
    pub fn start_in_order(count: usize, numbers: &Arc<dyn Numbers>, answers_first: bool) -> Self {
        Self::start_with(count, numbers, answers_first, DevicePolicy::default())
    }

    /// Starts `count` nodes that limit the sessions of a user.
    pub fn start_with_devices(count: usize, numbers: &Arc<dyn Numbers>, devices: DevicePolicy) -> Self {
        Self::start_with(count, numbers, true, devices)
    }

    fn start_with(
        count: usize,
        numbers: &Arc<dyn Numbers>,
        answers_first: bool,
        devices: DevicePolicy,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let log = LocalBusConfig {
            partitions: 1,
            topic: TopicId(1),
            max_records: 1 << 12,
            max_bytes: 1 << 24,
            node_max_records: 16,
            node_max_bytes: 1 << 16,
        };
        let mut mesh = Self {
            nodes: Vec::new(),
            store: Arc::new(MemoryStore::default()),
            routes: Arc::new(MemoryRoutes::new(1, Leases::default(), || Time::from_millis(1))),
            link: MemoryLink::default(),
            bus: Arc::new(LocalBus::new(log)),
            answers_first,
            devices,
            runtime,
        };
        for nth in 0..count {
            let node = mesh.node_of(nth, numbers);
            mesh.nodes.push(node);
        }
        mesh.set_peers(false, 0);
        mesh
    }

    /// Returns the store that the nodes share.
    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// Blocks `other` for `user` by a request to a node, or ends the block; returns the nodes that were not reached.
    pub fn set_block(&self, nth: usize, user: &str, other: &str, is_blocked: bool) -> Vec<String> {
        let cluster = self.nodes[nth].cluster();
        let [user, other] = [user, other].map(|name| UserId::new(name).expect("a good id"));
        self.runtime.block_on(async {
            let store = &cluster.ports.store;
            let changed = match is_blocked {
                true => store.block(&user, &other, 1, 9).await,
                false => store.unblock(&user, &other).await,
            };
            changed.expect("memory is there");
            cluster.publish_block(&user, &other, is_blocked).await
        })
    }

    /// Stores an entry of the guard by a request to a node.
    pub fn put_entry(
        &self,
        nth: usize,
        key: (GuardKind, &str),
        value: Bytes,
        until_ms: Option<u64>,
    ) -> GuardChange {
        let key = GuardKey::new(key.0, key.1).expect("a key");
        let entry = GuardEntry::new(key, value, until_ms).expect("an entry");
        let put = GuardPut { entry, expected: None };
        self.run(self.node(nth).cluster().put_guard(&put.into())).expect("the store takes it")
    }

    /// Returns a running node, counted from 0.
    pub fn node(&self, nth: usize) -> &MeshNode {
        &self.nodes[nth]
    }

    /// Runs a future to its end.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Sets the peer snapshot of all nodes: whether routes may be incomplete, and how often routes were lost.
    pub fn set_peers(&self, may_be_incomplete: bool, losses: u64) {
        let routes = &self.routes;
        let rows: Vec<_> = self.runtime.block_on(async {
            for node in &self.nodes {
                routes.renew(&node.info()).await.expect("memory is there");
            }
            routes.nodes().await.expect("memory is there")
        });
        for node in &self.nodes {
            let others = rows.iter().filter(|row| row.info.boot != *node.me()).cloned().collect();
            let seen =
                PeerSnapshot { rows: rows.clone().into(), others, stale: false, may_be_incomplete, losses };
            node.broker.cluster.peers.set(seen);
        }
    }

    /// Stops reading a node's topic; returns the feed, which gets the later records until the topic is read again.
    pub fn take_topic(&self, nth: usize) -> Box<dyn NodeFeed> {
        self.runtime.block_on(self.bus.consume_node(self.nodes[nth].me())).expect("memory is there")
    }

    /// Limits a node's peer snapshot to these nodes.
    pub fn limit_peers(&self, nth: usize, others: &[usize]) {
        let peers = &self.nodes[nth].broker.cluster.peers;
        let is_known = |run: &NodeBoot| others.iter().any(|other| self.nodes[*other].me() == run);
        let seen = peers.snapshot();
        let known = seen.others.iter().filter(|row| is_known(&row.info.boot)).cloned().collect();
        peers.set(PeerSnapshot { others: known, ..seen });
    }

    /// Opens a logged-in connection without a chain.
    pub fn login(&self, nth: usize, wire: Wire, user: &str, device: &str) -> Client {
        let mut client = Client::connect(self.nodes[nth].address, wire);
        client.login(hello(&auth::sign(KEY, user, None, Duration::from_secs(600)), device));
        client
    }

    /// Opens a connection and sends Hello, without waiting for the reply.
    pub fn hello(&self, nth: usize, wire: Wire, user: &str, device: &str) -> Client {
        self.hello_with(nth, wire, user, device, None)
    }

    /// Sends Hello as [`Self::hello`] does, with settings.
    pub fn hello_with(
        &self,
        nth: usize,
        wire: Wire,
        user: &str,
        device: &str,
        settings: Option<pb::Settings>,
    ) -> Client {
        let mut client = Client::connect(self.nodes[nth].address, wire);
        let token = auth::sign(KEY, user, None, Duration::from_secs(600));
        client.say(ask::hello(pb::Hello { settings, ..hello(&token, device) }));
        client
    }

    /// Creates a group and returns its conversation key.
    pub fn group(&self, id: &str, members: &[&str]) -> String {
        self.change(id, MemberAction::Create, members);
        format!("g:{id}")
    }

    /// Removes users from a group.
    pub fn kick(&self, id: &str, users: &[&str]) {
        self.change(id, MemberAction::Kick, users);
    }

    /// Adds users to a group.
    pub fn join(&self, id: &str, users: &[&str]) {
        self.change(id, MemberAction::Join, users);
    }

    /// Returns the nodes that declare interest in a conversation.
    pub fn interested(&self, conversation: &str) -> Vec<String> {
        let id = ConversationId::parse(conversation).expect("a good id");
        let found = self.runtime.block_on(self.routes.interested(&[id])).expect("memory is there");
        let mut names: Vec<String> = found.into_iter().flatten().map(|it| it.node.node.to_string()).collect();
        names.sort();
        names
    }

    /// Returns the nodes that a user's devices are connected to, by the routes.
    pub fn nodes_of(&self, user: &str) -> Vec<String> {
        let user = UserId::new(user).expect("a good id");
        let found = self.runtime.block_on(self.routes.lookup(&[user])).expect("memory is there");
        found.into_iter().flatten().map(|(_, token)| token.at.node.to_string()).collect()
    }

    /// Deletes all routes, as a flush of Redis does, and reports the loss to the nodes.
    pub fn lose_routes(&self) {
        self.routes.lose_everything();
        self.set_peers(false, 1);
    }

    fn change(&self, id: &str, action: MemberAction, users: &[&str]) {
        let change = MemberChange {
            conversation: ConversationId::parse(&format!("g:{id}")).expect("a good id"),
            action,
            users: users.iter().map(|user| UserId::new(user).expect("a good id")).collect(),
            role: None,
            by: None,
            settings: BTreeMap::new(),
            request_id: Admin::fresh_request_id(),
        };
        let answer = self.runtime.block_on(self.nodes[0].broker.admin.change(change, 1));
        assert!(matches!(answer, SubmitAnswer::Accepted { .. }), "{answer:?}");
    }

    fn node_of(&self, nth: usize, numbers: &Arc<dyn Numbers>) -> MeshNode {
        let _runtime = self.runtime.enter();
        let me = NodeBoot { node: NodeId::new(&format!("n{}", nth + 1)).expect("a good id"), boot: 1 };
        let [routes, link, bus, store] = [(); 4].map(|()| FaultPlan::none());
        let cluster = Arc::new(Cluster::new(
            me.clone(),
            Ports {
                bus: Arc::new(Faulty::<dyn Bus>::new(self.bus.clone(), Arc::clone(&bus))),
                store: Arc::new(Faulty::<dyn Store>::new(self.store.clone(), Arc::clone(&store))),
                routes: Arc::new(Faulty::<dyn Routes>::new(self.routes.clone(), Arc::clone(&routes))),
                scratch: Arc::new(MemoryScratch::new(1 << 20, || 1)),
                link: Arc::new(Faulty::<dyn Link>::new(Arc::new(self.link.clone()), Arc::clone(&link))),
            },
        ));
        if self.answers_first {
            cluster.owned.unarchived().allow();
        }
        let feed = self.runtime.block_on(cluster.ports.bus.consume_node(&me)).expect("a topic");
        let metrics = metrics::install().0;
        let (broker, outlets) = Broker::assemble(Parts {
            cluster,
            peering: Peering::Clustered(feed),
            numbers: Arc::clone(numbers),
            settings: Settings { devices: self.devices, ..Settings::new(SMALL_GROUP_MAX) },
            metrics: metrics.clone(),
        });
        self.link.add(me, Arc::new(broker.peer()));
        let (newcomers, mut threads) = run_shards(&broker);
        // The in-memory log does not distribute its partitions, so the other nodes own none.
        broker.start(outlets, (nth == 0).then(|| owner_settings(self.answers_first)));
        let (address, stopper, acceptor) =
            open_listener(newcomers, Arc::clone(&broker.cluster.bans), metrics);
        threads.push(acceptor);
        MeshNode { broker, routes, link, bus, store, address, stopper, threads }
    }
}

type Thread = JoinHandle<std::io::Result<()>>;

fn run_shards(broker: &Broker) -> (Vec<DriverQueue>, Vec<Thread>) {
    let mut settings = ShardSettings::new(Verifier::hs256(KEY));
    let counted = RoomRule { members: true, ..RoomRule::default() };
    settings.room_rules = RoomRules::parse(counted, &[]).expect("a good rule");
    let context = broker.shard_context(settings);
    let start = Instant::now();
    let run = |(driver, newcomers): (Driver, _)| (newcomers, thread::spawn(move || driver.run(start)));
    broker.build_shards(&context, SHARDS).expect("a poll").into_iter().map(run).unzip()
}

fn open_listener(
    shards: Vec<DriverQueue>,
    bans: Arc<BanBoard>,
    metrics: metrics::Metrics,
) -> (SocketAddr, Stopper, Thread) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.set_nonblocking(true).expect("a socket takes options");
    let address = listener.local_addr().expect("it listens");
    let acceptor = Acceptor::new(
        listener,
        Admission::new(0, 0),
        shards,
        None,
        AcceptScreen { bans, ..AcceptScreen::default() },
        config::SocketConfig::default(),
        metrics,
    );
    let (acceptor, stopper) = acceptor.expect("a poll");
    (address, stopper, thread::spawn(|| acceptor.run()))
}

fn owner_settings(answers_first: bool) -> owner::Settings {
    let retention = retention::Settings {
        node: Keep::parse("forever").expect("it is sound"),
        every: Duration::from_secs(86_400),
        keys: Duration::from_secs(86_400 * 30),
        feed: retention::FeedRetention { keep: Duration::from_secs(86_400), bytes_max: 1 << 30 },
        wall_ms: || 1,
    };
    owner::Settings {
        small_group_max: SMALL_GROUP_MAX,
        retention,
        // As on a cluster whose nodes have agreed long ago.
        rules: rules::Settings { settle: Duration::ZERO, has_peers: false, ..rules::Settings::default() },
        answers_first: answers_first.then_some(Duration::ZERO),
        cache: Arc::default(),
        panic_on_msg_id: String::new(),
    }
}

impl MeshNode {
    /// Returns the connections of the node and of the others.
    pub fn connections(&self) -> &Connections {
        &self.broker.connections
    }

    /// Returns the live rooms of the node.
    pub fn rooms(&self) -> &Rooms {
        &self.broker.rooms
    }

    /// Returns the ports and the shared state of the node.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.broker.cluster
    }

    fn me(&self) -> &NodeBoot {
        &self.broker.cluster.me
    }

    /// Returns the number of connections on the node's shards.
    pub fn conns(&self) -> usize {
        self.broker.shards().iter().map(ShardHandle::conns).sum()
    }

    fn info(&self) -> NodeInfo {
        NodeInfo {
            peer_address: "127.0.0.1:1".into(),
            owns: if self.me().node.as_str() == "n1" { vec![0] } else { Vec::new() },
            ..NodeInfo::new(self.me().clone())
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        for mut node in self.nodes.drain(..) {
            node.stopper.stop();
            for handle in node.broker.shards() {
                self.runtime.block_on(handle.post(Mail::Stop(Code::Draining))).ok();
            }
            for thread in node.threads.drain(..) {
                // A thread that panicked has printed the reason.
                thread.join().ok();
            }
        }
    }
}
