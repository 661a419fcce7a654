//! Nodes among each other: leases, peers, reasserted routes, and sweeps of dead nodes. In one process, over routes in
//! memory, on a clock that advances whenever all tasks wait.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate::{
    bus::{LocalBus, LocalBusConfig, TopicId},
    cluster::{Cluster, LagLimit, Lags, OwnerProgress, Peers},
    events::Events,
    fault::{Fault, FaultPlan, Faulty, Gate, Rates},
    lease::{self, NodeLease},
    link::MemoryLink,
    mail::{self, ConnKey, Mail, Reassert, ShardHandle, Slice},
    metrics,
    peer::Peer as PeerEnd,
    ports::Ports,
    routes::{
        Lease, Leases, MemoryRoutes, NodeBoot, NodeInfo, NodeState, Registration, Route, Routes, Token,
    },
    scratch::MemoryScratch,
    store::MemoryStore,
};
use tidegate_protocol::{
    Time,
    id::{ConversationId, DeviceId, NodeId, UserId},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, interval, timeout},
};

const LEASES: Leases = Leases { node: Duration::from_secs(10), interest: Duration::from_secs(60) };

fn run_of(name: &str, boot: u64) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot }
}

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

/// Advances the clock for all nodes.
async fn pass(time: Duration) {
    let mut ticks = interval(time);
    ticks.tick().await;
    ticks.tick().await;
}

async fn seconds(count: u64) {
    pass(Duration::from_secs(count)).await;
}

fn routes() -> Arc<MemoryRoutes> {
    let start = Instant::now();
    let now = move || Time::from_millis(start.elapsed().as_millis() as u64);
    Arc::new(MemoryRoutes::new(1_763_712_000_000, LEASES, now))
}

/// Membership part of one node: a shard with connections, and the lease.
struct Peer {
    cluster: Arc<Cluster>,
    plan: Arc<FaultPlan>,
    state: Arc<Mutex<NodeState>>,
    published_peers: Arc<Mutex<Vec<(NodeBoot, String)>>>,
    conns: Arc<Mutex<Conns>>,
    task: JoinHandle<String>,
    shard: JoinHandle<()>,
}

/// State of the shard, and the mail it got.
#[derive(Default)]
struct Conns {
    rows: Vec<(ConnKey, Route)>,
    collected: usize,
    settled: Vec<(Route, bool)>,
}

impl Peer {
    async fn start(routes: &Arc<MemoryRoutes>, name: &str, boot: u64) -> Self {
        Self::start_linked(routes, &MemoryLink::default(), name, boot).await
    }

    /// Starts a node whose peers are called over `link`.
    async fn start_linked(routes: &Arc<MemoryRoutes>, link: &MemoryLink, name: &str, boot: u64) -> Self {
        let plan = FaultPlan::none();
        let inner: Arc<dyn Routes> = Arc::clone(routes) as Arc<dyn Routes>;
        let routes = Arc::new(Faulty::new(inner, Arc::clone(&plan)));
        let cluster = cluster(run_of(name, boot), routes, link.clone());
        let me = cluster.me.clone();
        let end =
            PeerEnd::new(me.clone(), Arc::default(), Arc::default(), Arc::default(), metrics::install().0);
        link.add(me, Arc::new(end.with_answer_cache(Arc::default(), Arc::clone(&cluster))));
        let (state, published_peers) = (Arc::new(Mutex::new(NodeState::Ready)), Arc::default());
        let conns = Arc::default();
        let (handle, shard) = shard(Arc::clone(&conns));
        let parts = (Arc::clone(&cluster), Arc::clone(&state));
        let announcement = move || NodeInfo {
            peer_address: format!("{}:7802", parts.0.me.node),
            state: *parts.1.lock().unwrap(),
            capacity: 100,
            owns: parts.0.owned.list(),
            partition_lags: parts.0.owned.partition_lags(),
            ..NodeInfo::new(parts.0.me.clone())
        };
        let published: Arc<Mutex<Vec<(NodeBoot, String)>>> = Arc::clone(&published_peers);
        let publish_peers = move |peers| *published.lock().unwrap() = peers;
        let (counted, _) = metrics::install();
        let mut member = NodeLease::new(
            Arc::clone(&cluster),
            LEASES.node,
            vec![handle],
            announcement,
            publish_peers,
            counted,
        );
        member.announce().await.unwrap();
        let task = tokio::spawn(Box::pin(member.run()));
        Self { cluster, plan, state, published_peers, conns, task, shard }
    }

    /// Stops the node without a trace, as SIGKILL does.
    fn kill(&self) {
        self.task.abort();
        self.shard.abort();
    }

    /// Adds a connection of that user, with its route registered.
    async fn login(&self, name: &str) -> Token {
        let device = DeviceId::new("phone").unwrap();
        let at = self.cluster.me.clone();
        let wish = Registration {
            user: user(name),
            device: device.clone(),
            at,
            above: 0,
            only_if: None,
            policy: tidegate::routes::DevicePolicy::default(),
        };
        let token = self.cluster.ports.routes.register(wish).await.unwrap().token;
        let mut conns = self.conns.lock().unwrap();
        let key = ConnKey { shard: 0, slot: conns.rows.len() as u32, generation: 0 };
        conns.rows.push((key, Route { user: user(name), device, token: token.clone() }));
        token
    }

    /// Cuts the node off from the routes, or reconnects it.
    fn cut_off(&self, cut: bool) {
        self.plan.set_rates(Rates { fail: if cut { 1_000 } else { 0 }, ..Rates::default() });
    }

    fn others(&self) -> Vec<String> {
        self.cluster.peers.others().iter().map(|row| row.info.boot.to_string()).collect()
    }
}

/// Returns the lags of a log that keeps two hours.
fn lags() -> Lags {
    Lags::new(2, LagLimit::of(Duration::from_secs(2 * 3_600), 0))
}

fn cluster(me: NodeBoot, routes: Arc<dyn Routes>, link: MemoryLink) -> Arc<Cluster> {
    let log = LocalBusConfig {
        partitions: 1,
        topic: TopicId(1),
        max_records: 16,
        max_bytes: 1 << 16,
        node_max_records: 16,
        node_max_bytes: 1 << 16,
    };
    Arc::new(Cluster {
        peers: Arc::new(Peers::new(lags())),
        events: Arc::new(Events::new("/tidegate/t", 1, 1 << 20)),
        ..Cluster::new(
            me,
            Ports {
                bus: Arc::new(LocalBus::new(log)),
                store: Arc::new(MemoryStore::default()),
                routes,
                scratch: Arc::new(MemoryScratch::new(1 << 20, || 0)),
                link: Arc::new(link),
            },
        )
    })
}

/// Runs a shard; collects 500 routes at a time.
fn shard(conns: Arc<Mutex<Conns>>) -> (ShardHandle, JoinHandle<()>) {
    let (handle, mut mailbox) = mail::mailbox(std::task::Waker::noop().clone(), 1 << 20);
    let turns = async move {
        let mut turns = interval(Duration::from_millis(100));
        loop {
            turns.tick().await;
            while let Some(mail) = mailbox.take() {
                let mut conns = conns.lock().unwrap();
                match mail {
                    Mail::Reassert(Reassert::Collect(from, reply)) => {
                        conns.collected += 1;
                        let end = conns.rows.len().min(from as usize + 500);
                        let next = (end < conns.rows.len()).then_some(end as u32);
                        let rows = conns.rows[from as usize..end].to_vec();
                        reply.send(Slice { rows, next }).ok();
                    }
                    Mail::Reassert(Reassert::Settle(settled)) => {
                        conns.settled.extend(settled.into_iter().map(|(_, route, stands)| (route, stands)));
                    }
                    _ => panic!("unexpected mail"),
                }
            }
        }
    };
    (handle, tokio::spawn(turns))
}

async fn where_is(routes: &MemoryRoutes, name: &str) -> Option<Token> {
    let rows = routes.lookup(&[user(name)]).await.unwrap();
    rows[0].first().map(|(_, token)| token.clone())
}

#[tokio::test(start_paused = true)]
async fn nodes_see_peers_their_partitions_and_departures() {
    let routes = routes();
    let (a, b) = (Peer::start(&routes, "a", 1).await, Peer::start(&routes, "b", 1).await);
    seconds(4).await;
    assert_eq!(a.others(), ["b/1"]);
    assert_eq!(*a.published_peers.lock().unwrap(), [(run_of("b", 1), "b:7802".to_owned())]);
    assert!(!a.cluster.peers.may_be_incomplete());
    // A change is announced before the next renewal is due, and a requested refresh shows it at once.
    b.cluster.owned.set(3, true);
    *b.state.lock().unwrap() = NodeState::Cordoned;
    pass(Duration::from_millis(600)).await;
    a.cluster.peers.request_refresh();
    pass(Duration::from_millis(600)).await;
    assert_eq!(a.cluster.peers.owners_of(3), [run_of("b", 1)]);
    assert_eq!(a.cluster.peers.others()[0].info.state, NodeState::Cordoned);
    // An idle hour: no lease expires, no route is asserted before the slow round.
    let token = b.login("ann").await;
    seconds(600).await;
    assert_eq!((a.others().len(), b.conns.lock().unwrap().collected), (1, 0));
    seconds(3_000).await;
    assert!(!a.task.is_finished() && !b.task.is_finished());
    assert_eq!(b.conns.lock().unwrap().settled.last().map(|it| it.1), Some(true), "the slow round has run");
    assert_eq!(where_is(&routes, "ann").await, Some(token));
    b.task.abort();
    lease::leave(&b.cluster).await;
    assert_eq!(where_is(&routes, "ann").await, None, "its rows are removed with it");
    seconds(4).await;
    assert_eq!(a.others(), [""; 0]);
    assert_eq!(routes.nodes().await.unwrap().len(), 1, "no row of the node is left");
}

#[tokio::test(start_paused = true)]
async fn read_marks_right_before_a_departure_are_published() {
    let routes = routes();
    let a = Peer::start(&routes, "a", 1).await;
    seconds(1).await;
    let events = &a.cluster.events;
    let before = events.counts().0;
    events.read(&user("ann"), &ConversationId::direct(&user("ann"), &user("bob")), 5);
    assert_eq!(events.counts().0, before, "marks are batched for a moment");
    a.task.abort();
    lease::leave(&a.cluster).await;
    assert_eq!(events.counts().0, before + 2, "the marks, and that the node has left");
}

#[tokio::test(start_paused = true)]
async fn lagging_partition_is_refused_by_all_nodes() {
    let routes = routes();
    let (a, b) = (Peer::start(&routes, "a", 1).await, Peer::start(&routes, "b", 1).await);
    let refused = |peer: &Peer| peer.cluster.peers.lags().list();
    a.cluster.owned.set(0, true);
    a.cluster.owned.begin(0, OwnerProgress { position: 7, end: 7, record_bytes: 100, waits: None });
    b.cluster.owned.set(1, true);
    b.cluster.owned.begin(1, OwnerProgress { position: 3, end: 3, record_bytes: 100, waits: None });
    seconds(5_000).await;
    assert_eq!((refused(&a), refused(&b)), (vec![], vec![]), "nothing waits");
    a.cluster.owned.update(0, |it| (it.end, it.waits) = (9, Some((Instant::now(), Duration::ZERO))));
    seconds(3_590).await;
    assert_eq!((refused(&a), refused(&b)), (vec![], vec![]));
    seconds(20).await;
    assert_eq!((refused(&a), refused(&b)), (vec![0], vec![0]));
    let lag = routes.nodes().await.unwrap()[0].info.partition_lags[0];
    assert_eq!((lag.partition, lag.position, lag.behind()), (0, 7, 2));
    assert!(lag.behind_ms >= 3_600_000, "{lag:?}");
    a.cluster.owned.update(0, |it| (it.position, it.waits) = (9, None));
    seconds(8).await;
    assert_eq!((refused(&a), refused(&b)), (vec![], vec![]));
    // The partition has no owner; sends refused by then are not counted twice.
    a.cluster.owned.set(0, false);
    seconds(3_590).await;
    assert_eq!(refused(&b), [0_u32; 0]);
    seconds(30).await;
    assert_eq!((refused(&a), refused(&b)), (vec![0], vec![0]));
}

#[tokio::test(start_paused = true)]
async fn s3_dead_node_is_swept_except_reconnected_users() {
    let routes = routes();
    let (a, b, c) = (
        Peer::start(&routes, "a", 1).await,
        Peer::start(&routes, "b", 1).await,
        Peer::start(&routes, "c", 1).await,
    );
    seconds(4).await;
    for n in 0..1_200 {
        c.login(&format!("user-{n:04}")).await;
    }
    let stays = a.login("stays").await;
    c.kill();
    let moved = b.login("user-0007").await;
    seconds(6).await;
    assert_eq!(a.others(), ["b/1", "c/1"], "the lease of b is valid");
    assert!(where_is(&routes, "user-0001").await.is_some());
    seconds(9).await;
    assert_eq!((a.others(), b.others()), (vec!["b/1".to_owned()], vec!["a/1".to_owned()]));
    for n in (0..1_200).filter(|n| *n != 7) {
        assert_eq!(where_is(&routes, &format!("user-{n:04}")).await, None);
    }
    assert_eq!(where_is(&routes, "user-0007").await, Some(moved));
    assert_eq!(where_is(&routes, "stays").await, Some(stays));
    assert_eq!(routes.nodes().await.unwrap().len(), 2, "no row of the node is left");
}

#[tokio::test(start_paused = true)]
async fn s5_frozen_and_swept_node_ends_itself_when_it_wakes() {
    let routes = routes();
    let (_a, b) = (Peer::start(&routes, "a", 1).await, Peer::start(&routes, "b", 1).await);
    seconds(4).await;
    // Frozen: it neither sends nor receives, and does not know.
    b.cut_off(true);
    seconds(30).await;
    assert!(!b.task.is_finished(), "unavailable routes end no node");
    b.cut_off(false);
    let why = timeout(Duration::from_secs(2), b.task).await.expect("the node learns it soon").unwrap();
    assert!(why.contains("retired") && why.contains("b/1"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn slow_routes_have_lost_nothing() {
    let routes = routes();
    let (a, b) = (Peer::start(&routes, "a", 1).await, Peer::start(&routes, "b", 1).await);
    seconds(4).await;
    for method in ["renew", "nodes", "renew"] {
        let gate = Gate::new();
        a.plan.plan(method, Fault::HoldAnswer(gate.clone()));
        let mut in_doubt = false;
        for _ in 0..90 {
            pass(Duration::from_millis(100)).await;
            let seen = a.cluster.peers.snapshot();
            in_doubt |= seen.stale && seen.may_be_incomplete;
        }
        assert!(gate.reached() == 1 && in_doubt, "{method}: the outcome was unknown for a while");
        for peer in [&a, &b] {
            let seen = peer.cluster.peers.snapshot();
            assert!(!seen.stale && !seen.may_be_incomplete, "{method}: a late reply loses nothing");
            assert_eq!((seen.losses, peer.conns.lock().unwrap().collected), (0, 0), "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn routes_outage_ends_no_node_and_sweeps_none() {
    let routes = routes();
    let (a, b) = (Peer::start(&routes, "a", 1).await, Peer::start(&routes, "b", 1).await);
    seconds(4).await;
    let token = b.login("bob").await;
    a.cut_off(true);
    b.cut_off(true);
    seconds(60).await;
    assert_eq!(a.others(), ["b/1"], "known peers are kept");
    let seen = a.cluster.peers.snapshot();
    assert!(seen.stale && seen.may_be_incomplete);
    // One node reconnects two seconds before the other, whose lease has long expired.
    a.cut_off(false);
    seconds(2).await;
    assert_eq!(routes.nodes().await.unwrap()[1].lease, Lease::Lapsed);
    b.cut_off(false);
    seconds(20).await;
    assert!(!a.task.is_finished() && !b.task.is_finished());
    assert_eq!(a.others(), ["b/1"]);
    assert_eq!(where_is(&routes, "bob").await, Some(token));
    assert!(!a.cluster.peers.may_be_incomplete());
}

/// K3, S55.
#[tokio::test(start_paused = true)]
async fn k3_node_that_alone_is_cut_off_from_the_routes_ends() {
    let (routes, link) = (routes(), MemoryLink::default());
    let start = async |name| Peer::start_linked(&routes, &link, name, 1).await;
    let (a, b, c) = (start("a").await, start("b").await, start("c").await);
    seconds(4).await;
    // Nobody renews: all go on.
    [&a, &b, &c].into_iter().for_each(|it| it.cut_off(true));
    seconds(60).await;
    assert!([&a, &b, &c].into_iter().all(|it| !it.task.is_finished()));
    [&a, &b, &c].into_iter().for_each(|it| it.cut_off(false));
    seconds(20).await;
    // One is cut off from the routes and from its peers: it can't know, and goes on.
    b.cut_off(true);
    for peer in [&a, &c] {
        link.remove(&peer.cluster.me);
    }
    seconds(12).await;
    assert!(!b.task.is_finished(), "its peers have not taken it for dead yet");
    seconds(60).await;
    assert!(!b.task.is_finished(), "no peer answers");
    b.cut_off(false);
    seconds(4).await;
    assert!(b.task.is_finished(), "the peers retired its run meanwhile");
    let (b, cut) = (start("b2").await, start("d").await);
    seconds(4).await;
    cut.cut_off(true);
    seconds(12).await;
    assert!(!cut.task.is_finished());
    let why = timeout(Duration::from_secs(20), cut.task).await.expect("it asks its peers").unwrap();
    assert!(why.contains("d/1") && why.contains("cut off from Redis while 1 of its peers are not"), "{why}");
    assert!(!a.task.is_finished() && !b.task.is_finished() && !c.task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn emptied_routes_are_reasserted_except_newer_conns() {
    let routes = routes();
    let (a, b) = (Peer::start(&routes, "a", 1).await, Peer::start(&routes, "b", 1).await);
    seconds(4).await;
    for n in 0..1_200 {
        a.login(&format!("user-{n:04}")).await;
    }
    routes.lose_everything();
    // The user reconnected on another node before the old one noticed.
    let newer = b.login("user-0003").await;
    seconds(4).await;
    assert!(a.cluster.peers.may_be_incomplete() && !a.cluster.peers.snapshot().stale);
    assert_eq!(a.others(), ["b/1"]);
    let rows = a.conns.lock().unwrap().rows.clone();
    for (n, (_, route)) in rows.into_iter().enumerate() {
        let expected = if n == 3 { newer.clone() } else { route.token };
        assert_eq!(where_is(&routes, &format!("user-{n:04}")).await, Some(expected), "user {n}");
    }
    let replaced = |peer: &Peer| -> Vec<String> {
        let settled = &peer.conns.lock().unwrap().settled;
        settled.iter().filter(|(_, stands)| !stands).map(|(route, _)| route.user.to_string()).collect()
    };
    assert_eq!(replaced(&a), ["user-0003"], "its shard closes the old connection");
    // A login that had registered but was in no index yet is found by the second round.
    let token = Token { at: run_of("a", 1), epoch: newer.epoch - 1 };
    let late = Route { user: user("late"), device: DeviceId::new("phone").unwrap(), token };
    let key = ConnKey { shard: 0, slot: 1_200, generation: 0 };
    a.conns.lock().unwrap().rows.push((key, late));
    seconds(14).await;
    assert!(
        a.conns.lock().unwrap().settled.iter().any(|(route, stands)| route.user == user("late") && *stands)
    );
    assert!(!a.cluster.peers.may_be_incomplete());
    assert_eq!(replaced(&b), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn failed_page_is_collected_again() {
    let routes = routes();
    let a = Peer::start(&routes, "a", 1).await;
    seconds(4).await;
    for n in 0..600 {
        a.login(&format!("user-{n:04}")).await;
    }
    routes.lose_everything();
    a.plan.plan("reassert", Fault::Fail);
    a.plan.plan("reassert", Fault::LoseAnswer);
    seconds(6).await;
    assert!(where_is(&routes, "user-0599").await.is_some());
    let conns = a.conns.lock().unwrap();
    assert_eq!(conns.collected, 4, "the first page three times, the second once");
    assert_eq!(conns.settled.len(), 500 + 500 + 100, "first in doubt, then confirmed");
}
