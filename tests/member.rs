//! Nodes among each other: leases, peers, routes put back after a loss, and what is left of dead nodes. In one process,
//! over routes in memory, on a clock that runs ahead whenever everybody waits.
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
    lease::{self, Member},
    link::LocalLink,
    mail::{self, ConnKey, Mail, Reassert, ShardHandle, Slice},
    metrics,
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

/// Lets that much time pass for everybody.
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

/// One node, as far as it is a member: a shard with conns, and the lease.
struct Peer {
    cluster: Arc<Cluster>,
    plan: Arc<FaultPlan>,
    state: Arc<Mutex<NodeState>>,
    told: Arc<Mutex<Vec<(NodeBoot, String)>>>,
    conns: Arc<Mutex<Conns>>,
    task: JoinHandle<String>,
    shard: JoinHandle<()>,
}

/// What the shard has, and what it was told.
#[derive(Default)]
struct Conns {
    rows: Vec<(ConnKey, Route)>,
    collected: usize,
    settled: Vec<(Route, bool)>,
}

impl Peer {
    async fn start(routes: &Arc<MemoryRoutes>, name: &str, boot: u64) -> Self {
        let plan = FaultPlan::none();
        let inner: Arc<dyn Routes> = Arc::clone(routes) as Arc<dyn Routes>;
        let cluster = cluster(run_of(name, boot), Arc::new(Faulty::new(inner, Arc::clone(&plan))));
        let (state, told) = (Arc::new(Mutex::new(NodeState::Ready)), Arc::default());
        let conns = Arc::default();
        let (handle, shard) = shard(Arc::clone(&conns));
        let said = (Arc::clone(&cluster), Arc::clone(&state));
        let say = move || NodeInfo {
            peer_address: format!("{}:7802", said.0.me.node),
            state: *said.1.lock().unwrap(),
            capacity: 100,
            owns: said.0.owned.list(),
            partition_lags: said.0.owned.partition_lags(),
            ..NodeInfo::new(said.0.me.clone())
        };
        let heard: Arc<Mutex<Vec<(NodeBoot, String)>>> = Arc::clone(&told);
        let tell = move |peers| *heard.lock().unwrap() = peers;
        let (counted, _) = metrics::install();
        let mut member = Member::new(Arc::clone(&cluster), LEASES.node, vec![handle], say, tell, counted);
        member.announce().await.unwrap();
        let task = tokio::spawn(Box::pin(member.run()));
        Self { cluster, plan, state, told, conns, task, shard }
    }

    /// No word of it any more, as after SIGKILL.
    fn kill(&self) {
        self.task.abort();
        self.shard.abort();
    }

    /// A conn of that user, whose route stands.
    async fn login(&self, name: &str) -> Token {
        let device = DeviceId::new("phone").unwrap();
        let at = self.cluster.me.clone();
        let wish = Registration { user: user(name), device: device.clone(), at, above: 0, only_if: None };
        let token = self.cluster.ports.routes.register(wish).await.unwrap().token;
        let mut conns = self.conns.lock().unwrap();
        let key = ConnKey { shard: 0, slot: conns.rows.len() as u32, generation: 0 };
        conns.rows.push((key, Route { user: user(name), device, token: token.clone() }));
        token
    }

    /// The routes do not answer it from here on, or do again.
    fn cut_off(&self, cut: bool) {
        self.plan.set_rates(Rates { fail: if cut { 1_000 } else { 0 }, ..Rates::default() });
    }

    fn others(&self) -> Vec<String> {
        self.cluster.peers.others().iter().map(|row| row.info.boot.to_string()).collect()
    }
}

/// Of a log that keeps two hours.
fn lags() -> Lags {
    Lags::new(2, LagLimit::of(Duration::from_secs(2 * 3_600), 0))
}

fn cluster(me: NodeBoot, routes: Arc<dyn Routes>) -> Arc<Cluster> {
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
                scratch: Arc::new(MemoryScratch::new(1 << 20, || Time::ZERO)),
                link: Arc::new(LocalLink),
            },
        )
    })
}

/// Answers as a shard does; tells 500 routes at a time.
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
                    _ => panic!("nothing else is told to a shard here"),
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
async fn nodes_see_each_other_and_what_they_own_and_when_they_leave() {
    let routes = routes();
    let (a, b) = (Peer::start(&routes, "a", 1).await, Peer::start(&routes, "b", 1).await);
    seconds(4).await;
    assert_eq!(a.others(), ["b/1"]);
    assert_eq!(*a.told.lock().unwrap(), [(run_of("b", 1), "b:7802".to_owned())]);
    assert!(!a.cluster.peers.may_be_incomplete());
    // What changes is told before the next renewal is due, and who asks to look again sees it at once.
    b.cluster.owned.set(3, true);
    *b.state.lock().unwrap() = NodeState::Cordoned;
    pass(Duration::from_millis(600)).await;
    a.cluster.peers.request_refresh();
    pass(Duration::from_millis(600)).await;
    assert_eq!(a.cluster.peers.owners_of(3), [run_of("b", 1)]);
    assert_eq!(a.cluster.peers.others()[0].info.state, NodeState::Cordoned);
    // An hour in which nothing happens: no lease ends, no route is asserted before the slow round.
    let token = b.login("ann").await;
    seconds(600).await;
    assert_eq!((a.others().len(), b.conns.lock().unwrap().collected), (1, 0));
    seconds(3_000).await;
    assert!(!a.task.is_finished() && !b.task.is_finished());
    assert_eq!(b.conns.lock().unwrap().settled.last().map(|it| it.1), Some(true), "the slow round came");
    assert_eq!(where_is(&routes, "ann").await, Some(token));
    b.task.abort();
    lease::leave(&b.cluster).await;
    assert_eq!(where_is(&routes, "ann").await, None, "its rows went with it");
    seconds(4).await;
    assert_eq!(a.others(), [""; 0]);
    assert_eq!(routes.nodes().await.unwrap().len(), 1, "nothing is left of it");
}

#[tokio::test(start_paused = true)]
async fn what_was_read_just_before_a_node_leaves_is_told() {
    let routes = routes();
    let a = Peer::start(&routes, "a", 1).await;
    seconds(1).await;
    let events = &a.cluster.events;
    let before = events.counts().0;
    events.read(&user("ann"), &ConversationId::direct(&user("ann"), &user("bob")), 5);
    assert_eq!(events.counts().0, before, "marks are gathered for a moment");
    a.task.abort();
    lease::leave(&a.cluster).await;
    assert_eq!(events.counts().0, before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_partition_whose_archive_is_too_far_behind_is_refused_by_all_nodes_until_it_caught_up() {
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
    let said = routes.nodes().await.unwrap()[0].info.partition_lags[0];
    assert_eq!((said.partition, said.position, said.behind()), (0, 7, 2));
    assert!(said.behind_ms >= 3_600_000, "{said:?}");
    a.cluster.owned.update(0, |it| (it.position, it.waits) = (9, None));
    seconds(8).await;
    assert_eq!((refused(&a), refused(&b)), (vec![], vec![]));
    // Nobody owns it any more; what was refused by then is not counted twice.
    a.cluster.owned.set(0, false);
    seconds(3_590).await;
    assert_eq!(refused(&b), [0_u32; 0]);
    seconds(30).await;
    assert_eq!((refused(&a), refused(&b)), (vec![0], vec![0]));
}

#[tokio::test(start_paused = true)]
async fn s3_a_dead_node_is_swept_by_those_who_live_and_who_came_back_elsewhere_stays() {
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
    assert_eq!(a.others(), ["b/1", "c/1"], "its lease lives");
    assert!(where_is(&routes, "user-0001").await.is_some());
    seconds(9).await;
    assert_eq!((a.others(), b.others()), (vec!["b/1".to_owned()], vec!["a/1".to_owned()]));
    for n in (0..1_200).filter(|n| *n != 7) {
        assert_eq!(where_is(&routes, &format!("user-{n:04}")).await, None);
    }
    assert_eq!(where_is(&routes, "user-0007").await, Some(moved));
    assert_eq!(where_is(&routes, "stays").await, Some(stays));
    assert_eq!(routes.nodes().await.unwrap().len(), 2, "nothing is left of it");
}

#[tokio::test(start_paused = true)]
async fn s5_a_node_that_was_frozen_and_swept_ends_itself_when_it_wakes() {
    let routes = routes();
    let (_a, b) = (Peer::start(&routes, "a", 1).await, Peer::start(&routes, "b", 1).await);
    seconds(4).await;
    // Frozen: it says nothing, hears nothing, and does not know.
    b.cut_off(true);
    seconds(30).await;
    assert!(!b.task.is_finished(), "while the routes do not answer nothing ends it");
    b.cut_off(false);
    let why = timeout(Duration::from_secs(2), b.task).await.expect("it hears soon").unwrap();
    assert!(why.contains("retired") && why.contains("b/1"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn routes_that_were_slow_have_lost_nothing() {
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
        assert!(gate.reached() == 1 && in_doubt, "{method}: nobody knew for a while");
        for peer in [&a, &b] {
            let seen = peer.cluster.peers.snapshot();
            assert!(
                !seen.stale && !seen.may_be_incomplete,
                "{method}: its answer came late, and that is all"
            );
            assert_eq!((seen.losses, peer.conns.lock().unwrap().collected), (0, 0), "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn routes_that_were_away_for_all_end_nobody_and_nobody_is_swept() {
    let routes = routes();
    let (a, b) = (Peer::start(&routes, "a", 1).await, Peer::start(&routes, "b", 1).await);
    seconds(4).await;
    let token = b.login("bob").await;
    a.cut_off(true);
    b.cut_off(true);
    seconds(60).await;
    assert_eq!(a.others(), ["b/1"], "whom it knew it still asks");
    let seen = a.cluster.peers.snapshot();
    assert!(seen.stale && seen.may_be_incomplete);
    // One comes back two seconds before the other, whose lease is long over.
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

#[tokio::test(start_paused = true)]
async fn emptied_routes_are_put_back_in_pages_and_newer_conns_elsewhere_stay() {
    let routes = routes();
    let (a, b) = (Peer::start(&routes, "a", 1).await, Peer::start(&routes, "b", 1).await);
    seconds(4).await;
    for n in 0..1_200 {
        a.login(&format!("user-{n:04}")).await;
    }
    routes.lose_everything();
    // He came back on another node before his old one noticed.
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
    assert_eq!(replaced(&a), ["user-0003"], "its shard closes that one");
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
async fn a_page_that_failed_is_collected_again() {
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
    assert_eq!(conns.settled.len(), 500 + 500 + 100, "in doubt, then for sure");
}
