//! Several nodes in this process, on memory ports that they share: real shards, sockets and use-cases, and faults where a
//! test plans them. The first node owns the log.
#![allow(dead_code, unreachable_pub, reason = "each user takes a part of it")]

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tidegate::{
    accept::{Acceptor, Stopper},
    assign::Assigner,
    auth::{self, Verifier},
    budget::Admission,
    bus::{Bus, LocalBus, LocalBusConfig, NodeFeed, TopicId},
    cluster::{Cluster, PeerSnapshot},
    config,
    conversation::recall::Recaller,
    delivery::{
        best_effort::BestEffortSender, local::LocalDispatcher, peer_queue::PeerQueues, pending::Pending,
        router::Router,
    },
    directory::Directory,
    fault::{FaultPlan, Faulty},
    ingest::{admin::Admin, appender, intake::Intake},
    large_group::{publisher::GroupPublisher, subscriber::GroupSubscriber},
    link::{BestEffortQueues, Link, MemoryLink},
    login,
    mail::{Mail, ShardHandle, ShardHandles},
    metrics,
    net::upgrade,
    partition::{
        assignment::{self, OwnerContext},
        dispatcher::Dispatcher,
        owner,
        retention::{self, Keep},
        rules,
    },
    peer::Peer,
    ports::Ports,
    room::Rooms,
    routes::{Leases, MemoryRoutes, NodeBoot, NodeDescription, NodeInfo, Routes},
    scratch::{MemoryScratch, Numbers},
    shard::{self, Caps, Context, newcomer::NewcomerQueue},
    store::{MemoryStore, Store},
};
use tidegate_protocol::{
    Code, Time,
    codec::Wire,
    id::{ConversationId, NodeId, UserId},
    machine::session::SubmitAnswer,
    record::{MemberAction, MemberChange},
};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::support::{Client, ask, hello};

const KEY: &[u8] = b"a key of thirty-two bytes, or so";
const SHARDS: usize = 2;
/// Groups up to this many members take signals.
const SMALL: usize = 4;

/// Nodes, `n1` and up.
pub struct Mesh {
    nodes: Vec<MeshNode>,
    store: Arc<MemoryStore>,
    routes: Arc<MemoryRoutes>,
    link: MemoryLink,
    bus: Arc<LocalBus>,
    runtime: Runtime,
}

/// One of them.
pub struct MeshNode {
    me: NodeBoot,
    /// Faults of its routes.
    pub routes: Arc<FaultPlan>,
    /// Faults of its link.
    pub link: Arc<FaultPlan>,
    /// Faults of its bus.
    pub bus: Arc<FaultPlan>,
    /// Faults of its store.
    pub store: Arc<FaultPlan>,
    /// The use-case of rooms.
    pub rooms: Arc<Rooms>,
    address: SocketAddr,
    cluster: Arc<Cluster>,
    admin: Admin,
    handles: Vec<ShardHandle>,
    stopper: Stopper,
    threads: Vec<Thread>,
}

impl Mesh {
    /// So many nodes, whose rooms are numbered by that.
    pub fn start(count: usize, numbers: &Arc<dyn Numbers>) -> Self {
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
            runtime,
        };
        for nth in 0..count {
            let node = mesh.node_of(nth, numbers);
            mesh.nodes.push(node);
        }
        mesh.introduce(false, 0);
        mesh
    }

    /// A running node, counted from 0.
    pub fn node(&self, nth: usize) -> &MeshNode {
        &self.nodes[nth]
    }

    /// What all nodes think of the others: whether the routes may name too few, and how often they lost something.
    pub fn introduce(&self, may_be_incomplete: bool, losses: u64) {
        let routes = &self.routes;
        let rows: Vec<_> = self.runtime.block_on(async {
            for node in &self.nodes {
                routes.renew(&node.info()).await.expect("memory is there");
            }
            routes.nodes().await.expect("memory is there")
        });
        for node in &self.nodes {
            let others = rows.iter().filter(|row| row.info.boot != node.me).cloned().collect();
            let seen =
                PeerSnapshot { rows: rows.clone().into(), others, stale: false, may_be_incomplete, losses };
            node.cluster.peers.set(seen);
        }
    }

    /// Ends the reading of a node's topic: what comes until it is read again goes to the feed that is handed out.
    pub fn take_topic(&self, nth: usize) -> Box<dyn NodeFeed> {
        self.runtime.block_on(self.bus.consume_node(&self.nodes[nth].me)).expect("memory is there")
    }

    /// Of the other nodes that one knows only these.
    pub fn know_only(&self, nth: usize, others: &[usize]) {
        let peers = &self.nodes[nth].cluster.peers;
        let is_known = |run: &NodeBoot| others.iter().any(|other| self.nodes[*other].me == *run);
        let seen = peers.snapshot();
        let known = seen.others.iter().filter(|row| is_known(&row.info.boot)).cloned().collect();
        peers.set(PeerSnapshot { others: known, ..seen });
    }

    /// A logged-in connection without a chain.
    pub fn login(&self, nth: usize, wire: Wire, user: &str, device: &str) -> Client {
        let mut client = Client::connect(self.nodes[nth].address, wire);
        client.login(hello(&auth::sign(KEY, user, None, Duration::from_secs(600)), device));
        client
    }

    /// A connection that has said hello and not heard an answer.
    pub fn hello(&self, nth: usize, wire: Wire, user: &str, device: &str) -> Client {
        let mut client = Client::connect(self.nodes[nth].address, wire);
        client.say(ask::hello(hello(&auth::sign(KEY, user, None, Duration::from_secs(600)), device)));
        client
    }

    /// Makes a group, and gives its conversation key.
    pub fn group(&self, id: &str, members: &[&str]) -> String {
        self.change(id, MemberAction::Create, members);
        format!("g:{id}")
    }

    /// Removes users from a group.
    pub fn kick(&self, id: &str, users: &[&str]) {
        self.change(id, MemberAction::Kick, users);
    }

    /// Takes users into a group.
    pub fn join(&self, id: &str, users: &[&str]) {
        self.change(id, MemberAction::Join, users);
    }

    /// The nodes that say that they have members of a conversation.
    pub fn interested(&self, conversation: &str) -> Vec<String> {
        let id = ConversationId::parse(conversation).expect("a good id");
        let found = self.runtime.block_on(self.routes.interested(&[id])).expect("memory is there");
        let mut names: Vec<String> = found.into_iter().flatten().map(|it| it.node.node.to_string()).collect();
        names.sort();
        names
    }

    /// The nodes at which devices of a user are, by the routes.
    pub fn places(&self, user: &str) -> Vec<String> {
        let user = UserId::new(user).expect("a good id");
        let found = self.runtime.block_on(self.routes.lookup(&[user])).expect("memory is there");
        found.into_iter().flatten().map(|(_, token)| token.at.node.to_string()).collect()
    }

    /// Empties the routes, as when Redis was emptied, and lets the nodes notice.
    pub fn lose_routes(&self) {
        self.routes.lose_everything();
        self.introduce(false, 1);
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
        let answer = self.runtime.block_on(self.nodes[0].admin.change(change, 1));
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
                scratch: Arc::new(MemoryScratch::new(1 << 20, || Time::from_millis(1))),
                link: Arc::new(Faulty::<dyn Link>::new(Arc::new(self.link.clone()), Arc::clone(&link))),
            },
        ));
        cluster.owned.unarchived().allow();
        let (intake, outlets) = Intake::new(1 << 20);
        let pending = Arc::new(Pending::default());
        let admin = Admin::new(me.clone(), Arc::clone(&intake), Arc::clone(&pending));
        let context = self.context(&cluster, &intake, &admin, numbers);
        let metrics = context.metrics.clone();
        let (directory, handles) = (Arc::clone(&context.directory), Arc::clone(&context.handles));
        let end = Peer::new(
            me.clone(),
            Arc::clone(&directory),
            Arc::clone(&handles),
            Arc::clone(&pending),
            metrics.clone(),
        );
        let (plain_me, shards, users) = (me.clone(), Arc::clone(&handles), Arc::clone(&directory));
        let plain = move || {
            let (directory, pending) = (Arc::clone(&directory), Arc::clone(&pending));
            LocalDispatcher::new(plain_me.clone(), directory, Arc::clone(&shards), pending)
        };
        let feed = self.runtime.block_on(cluster.ports.bus.consume_node(&me)).expect("a topic");
        let crowds = GroupSubscriber::start(&cluster, &users, SMALL, feed, plain(), metrics.clone());
        let end = end
            .with_group_subscriber(Arc::clone(&crowds))
            .with_answer_cache(Arc::default(), Arc::clone(&cluster));
        self.link.add(me.clone(), Arc::new(end));
        tokio::spawn(appender::append_all(outlets.records, intake, Arc::clone(&cluster), plain()));
        tokio::spawn(login::answer_all(
            outlets.logins,
            Arc::clone(&cluster),
            Arc::clone(&crowds),
            plain.clone(),
        ));
        if nth == 0 {
            self.own(&cluster, crowds, plain, metrics);
        }
        let rooms = Arc::clone(&context.rooms);
        let (list, newcomers, mut threads) = run_shards(&context);
        let (address, stopper, door) = open_door(newcomers, context.metrics.clone());
        threads.push(door);
        MeshNode {
            me,
            routes,
            link,
            bus,
            store,
            rooms,
            address,
            cluster,
            admin,
            handles: list,
            stopper,
            threads,
        }
    }

    fn own(
        &self,
        cluster: &Arc<Cluster>,
        crowds: Arc<GroupSubscriber>,
        plain: impl Fn() -> LocalDispatcher + Send + Sync + 'static,
        metrics: metrics::Metrics,
    ) {
        let (reaching, couriers) = (Arc::clone(cluster), PeerQueues::new(cluster, metrics.clone()));
        let strays = BestEffortQueues::new(
            Arc::clone(&cluster.ports.link),
            self.runtime.handle().clone(),
            metrics.clone(),
        );
        let spread = GroupPublisher::start(cluster, crowds, strays, metrics.clone());
        let dispatcher = move || {
            let router = Router::start(&reaching, Arc::clone(&couriers));
            Dispatcher::clustered(plain(), router, Some(Arc::clone(&spread)))
        };
        tokio::spawn(assignment::own_all(owning(Arc::clone(cluster), Box::new(dispatcher), metrics)));
    }

    fn context(
        &self,
        cluster: &Arc<Cluster>,
        intake: &Arc<Intake>,
        admin: &Admin,
        numbers: &Arc<dyn Numbers>,
    ) -> Context {
        let (directory, metrics) = (Arc::new(Directory::default()), metrics::install().0);
        let runtime = self.runtime.handle();
        let lanes = BestEffortQueues::new(Arc::clone(&cluster.ports.link), runtime.clone(), metrics.clone());
        let rooms = Arc::new(Rooms::among_others(
            Arc::clone(numbers),
            Arc::clone(cluster),
            Arc::clone(&directory),
            Arc::clone(&lanes),
            // The routes lose nothing here.
            drop,
        ));
        runtime.spawn(Arc::clone(&rooms).keep());
        Context {
            index: 0,
            node: cluster.me.node.clone(),
            boot: cluster.me.boot,
            limits: Default::default(),
            small_group_max: SMALL,
            recaller: Recaller { admin: admin.clone(), within: Duration::from_secs(120) },
            caps: Caps { control: 128 * 1024, data: 256 * 1024 },
            mailbox_bytes: 1 << 20,
            frame_deadline: Duration::from_secs(10),
            write_deadline: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            upgrade: upgrade::Policy::default(),
            verifier: Arc::new(Verifier::hs256(KEY)),
            assigner: Arc::new(Assigner::new(
                Arc::clone(cluster),
                NodeDescription::default(),
                Duration::from_secs(10),
            )),
            directory,
            handles: ShardHandles::default(),
            intake: Arc::clone(intake),
            cluster: Arc::clone(cluster),
            rooms,
            best_effort: Some(BestEffortSender::start(runtime, cluster, lanes, metrics.clone())),
            runtime: runtime.clone(),
            metrics,
            panic_on_msg_id: String::new(),
            panic_in_shard: false,
        }
    }
}

type Thread = JoinHandle<std::io::Result<()>>;

type Newcomers = Vec<NewcomerQueue<mio::net::TcpStream>>;

fn run_shards(context: &Context) -> (Vec<ShardHandle>, Newcomers, Vec<Thread>) {
    let build = |index| shard::build(Context { index, ..context.clone() }).expect("a poll");
    let (drivers, newcomers): (Vec<_>, Newcomers) = (0..SHARDS).map(build).unzip();
    let list: Vec<ShardHandle> = newcomers.iter().map(|it| it.shard().clone()).collect();
    assert!(context.handles.set(list.clone()).is_ok(), "set once");
    let start = Instant::now();
    let threads = drivers.into_iter().map(|driver| thread::spawn(move || driver.run(start))).collect();
    (list, newcomers, threads)
}

fn open_door(shards: Newcomers, metrics: metrics::Metrics) -> (SocketAddr, Stopper, Thread) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.set_nonblocking(true).expect("a socket takes options");
    let address = listener.local_addr().expect("it listens");
    let acceptor =
        Acceptor::new(listener, Admission::new(0, 0), shards, config::SocketConfig::default(), metrics);
    let (acceptor, stopper) = acceptor.expect("a poll");
    (address, stopper, thread::spawn(|| acceptor.run()))
}

fn owning(
    cluster: Arc<Cluster>,
    dispatcher: Box<dyn Fn() -> Dispatcher + Send + Sync>,
    metrics: metrics::Metrics,
) -> OwnerContext {
    let retention = retention::Settings {
        node: Keep::parse("forever").expect("it is sound"),
        every: Duration::from_secs(86_400),
        keys: Duration::from_secs(86_400 * 30),
        wall_ms: || 1,
    };
    let settings = owner::Settings {
        small_group_max: SMALL,
        retention,
        rules: rules::Settings::default(),
        answers_first: Some(Duration::ZERO),
        panic_on_msg_id: String::new(),
    };
    let leaving = CancellationToken::new();
    OwnerContext { cluster, answered: None, logins: None, dispatcher, settings, metrics, leaving }
}

impl MeshNode {
    /// Connections that its shards have.
    pub fn conns(&self) -> usize {
        self.handles.iter().map(ShardHandle::conns).sum()
    }

    fn info(&self) -> NodeInfo {
        NodeInfo {
            peer_address: "127.0.0.1:1".into(),
            owns: if self.me.node.as_str() == "n1" { vec![0] } else { Vec::new() },
            ..NodeInfo::new(self.me.clone())
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        for mut node in self.nodes.drain(..) {
            node.stopper.stop();
            for handle in &node.handles {
                self.runtime.block_on(handle.post(Mail::Stop(Code::Draining))).ok();
            }
            for thread in node.threads.drain(..) {
                // A thread that panicked has said so.
                thread.join().ok();
            }
        }
    }
}
