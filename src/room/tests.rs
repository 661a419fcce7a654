//! Which nodes hear what is said in a room: those with members, as long as they say so, and all of them in doubt.

use std::{
    ops::RangeInclusive,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tidegate_protocol::{Time, id::NodeId};
use tokio::runtime::Handle;

use super::*;
use crate::{
    bus::{LocalBus, LocalBusConfig, TopicId},
    cluster::Seen,
    fault::{Fault, FaultPlan, Faulty},
    link::{Answer, Ask, Delivery, Landing, Link, LinkError, Session, Settled, Told, Word},
    metrics,
    routes::{Leases, MemoryRoutes, NodeInfo, NodeState, Routes},
    scratch::{MemoryScratch, ScratchError},
    store::MemoryStore,
};

/// Numbers that can't be made new so often, and count how often they were.
#[derive(Default)]
struct Stubborn {
    refuse: AtomicU64,
    made_new: AtomicU64,
}

#[async_trait::async_trait]
impl Numbers for Stubborn {
    async fn take(&self, _: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        Ok(1..=count.get())
    }

    async fn changed(&self) -> Result<(), ScratchError> {
        let refuses = self.refuse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if refuses.is_ok() {
            return Err(ScratchError::Unavailable("a fault".to_owned()));
        }
        self.made_new.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Writes down what other nodes are told.
#[derive(Default)]
struct Noting(Mutex<Vec<(NodeBoot, Stray)>>);

#[async_trait::async_trait]
impl Link for Noting {
    async fn strays(&self, to: &NodeBoot, strays: Vec<Stray>) -> Result<(), LinkError> {
        self.0.lock().unwrap().extend(strays.into_iter().map(|stray| (to.clone(), stray)));
        Ok(())
    }
    async fn answers(&self, _: &NodeBoot, _: Vec<Answer>) -> Result<(), LinkError> {
        Err(LinkError::NotHere)
    }
    async fn deliver(&self, _: &NodeBoot, _: Vec<Delivery>) -> Result<Vec<Vec<Landing>>, LinkError> {
        Err(LinkError::NotHere)
    }
    async fn stop_sessions(&self, _: &NodeBoot, _: Vec<Session>) -> Result<Vec<bool>, LinkError> {
        Err(LinkError::NotHere)
    }
    async fn settled(&self, _: &NodeBoot, _: Vec<Told>, _: Duration) -> Result<Settled, LinkError> {
        Err(LinkError::NotHere)
    }
    async fn answers_again(&self, _: &NodeBoot, _: &NodeBoot, _: Vec<Ask>) -> Result<Vec<Word>, LinkError> {
        Err(LinkError::NotHere)
    }
}

/// Nodes that share routes on one clock.
struct World {
    numbers: Arc<Stubborn>,
    now: Arc<AtomicU64>,
    routes: Arc<MemoryRoutes>,
    /// What fails of what the rooms ask of the routes.
    plan: Arc<FaultPlan>,
}

struct OneNode {
    rooms: Arc<Rooms>,
    directory: Arc<Directory>,
    ports: Arc<Ports>,
    link: Arc<Noting>,
    /// The rooms whose members were told that they may lack something.
    told: Arc<Mutex<Vec<ConversationId>>>,
}

fn boot(name: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 }
}

fn hall() -> ConversationId {
    ConversationId::parse("r:hall").unwrap()
}

impl World {
    fn new() -> Self {
        let now = Arc::new(AtomicU64::new(1));
        let clock = Arc::clone(&now);
        let time = move || Time::from_millis(clock.load(Ordering::SeqCst));
        let routes = Arc::new(MemoryRoutes::new(1, Leases::default(), time));
        Self { numbers: Arc::default(), now, routes, plan: FaultPlan::none() }
    }

    async fn node(&self, name: &str) -> OneNode {
        let log = LocalBusConfig {
            partitions: 1,
            topic: TopicId(1),
            max_records: 1,
            max_bytes: 1,
            node_max_records: 1,
            node_max_bytes: 1,
        };
        let link = Arc::<Noting>::default();
        let ports = Arc::new(Ports {
            me: boot(name),
            bus: Arc::new(LocalBus::new(log)),
            store: Arc::new(MemoryStore::default()),
            routes: Arc::new(Faulty::new(self.routes.clone() as Arc<dyn Routes>, Arc::clone(&self.plan))),
            scratch: Arc::new(MemoryScratch::new(1, || Time::from_millis(1))),
            link: Arc::clone(&link) as Arc<dyn Link>,
            owned: Arc::default(),
            peers: Arc::default(),
            trace: Arc::default(),
            events: Arc::default(),
        });
        let lanes = StrayLanes::new(Arc::clone(&ports.link), Handle::current(), metrics::install().0);
        let directory = Arc::new(Directory::default());
        let numbers = Arc::clone(&self.numbers) as Arc<dyn Numbers>;
        let told = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&told);
        let rooms =
            Rooms::among_others(numbers, Arc::clone(&ports), Arc::clone(&directory), lanes, move |rooms| {
                note.lock().unwrap().extend(rooms)
            });
        let node = OneNode { rooms: Arc::new(rooms), directory, ports, link, told };
        self.routes.renew(&node.info()).await.unwrap();
        node
    }

    /// So much later; the nodes have renewed their leases.
    async fn pass(&self, time: Duration, nodes: &[&OneNode]) {
        self.now.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
        for node in nodes {
            self.routes.renew(&node.info()).await.unwrap();
        }
    }
}

impl OneNode {
    fn info(&self) -> NodeInfo {
        NodeInfo {
            boot: self.ports.me.clone(),
            peer_address: "127.0.0.1:1".into(),
            client_addresses: Vec::new(),
            state: NodeState::Ready,
            conns: 0,
            capacity: 1,
            owns: Vec::new(),
            stands: Vec::new(),
            asserting: false,
            about: crate::routes::About::default(),
            rules: 1,
        }
    }

    async fn join(&self) {
        self.directory.hold_conversation(&hall(), 0);
        if !self.rooms.is_declared(&hall()) {
            self.rooms.declare(&hall()).await;
        }
    }

    fn leave(&self) {
        self.directory.release_conversation(&hall(), 0);
    }

    fn take_told(&self) -> Vec<ConversationId> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    fn take_strays(&self) -> Vec<(NodeBoot, Stray)> {
        std::mem::take(&mut self.link.0.lock().unwrap())
    }

    async fn hears(&self) -> Vec<NodeBoot> {
        self.rooms.turn(&hall(), NonZeroU64::MIN).await.unwrap().nodes
    }

    fn sees(&self, others: &[&Self], doubtful: bool) {
        let row = |node: &&Self| crate::routes::NodeRow {
            info: node.info(),
            beat: 1,
            lease: crate::routes::Lease::Live,
        };
        let others = others.iter().map(row).collect();
        self.ports.peers.set(Seen { others, doubtful, ..Seen::default() });
    }
}

#[tokio::test]
async fn those_hear_who_have_members_and_in_doubt_all() {
    let world = World::new();
    let (a, b, c) = (world.node("a").await, world.node("b").await, world.node("c").await);
    a.sees(&[&b, &c], false);
    assert_eq!(a.hears().await, [], "nobody is there: it goes nowhere");
    a.join().await;
    assert_eq!(a.hears().await, [], "never to itself");
    b.join().await;
    assert_eq!(a.hears().await, [boot("b")]);
    a.sees(&[&b, &c], true);
    assert_eq!(a.hears().await, [boot("b"), boot("c")]);
    // One that came just now, and has let somebody in, is known to the routes before it is to its peers.
    a.sees(&[&c], true);
    assert_eq!(a.hears().await, [boot("b"), boot("c")]);
    a.sees(&[&c], false);
    assert_eq!(a.hears().await, [boot("b")]);
}

/// Seen in an hour of chaos: it was passed by, and nobody told its members.
#[tokio::test(start_paused = true)]
async fn a_node_that_nobody_knew_while_the_routes_did_not_answer_hears_that_it_may_lack_something() {
    let world = World::new();
    let (a, b, c) = (world.node("a").await, world.node("b").await, world.node("c").await);
    a.sees(&[&b], false);
    let keeper = tokio::spawn(Arc::clone(&a.rooms).keep());
    time::sleep(RETRY_EVERY * 2).await;
    c.join().await;
    (0..2).for_each(|_| world.plan.plan("interested", Fault::Fail));
    assert_eq!((a.hears().await, a.hears().await), (vec![boot("b")], vec![boot("b")]));
    assert_eq!(a.take_strays(), []);
    a.sees(&[&b, &c], false);
    time::sleep(RETRY_EVERY * 2).await;
    let missed = |count| (boot("c"), Stray::Missed { room: hall(), count });
    assert_eq!(a.take_strays(), [missed(2)]);
    // Who comes long afterwards came in long afterwards.
    a.sees(&[&b], false);
    time::sleep(Duration::from_secs(20)).await;
    a.sees(&[&b, &c], false);
    time::sleep(RETRY_EVERY * 2).await;
    assert_eq!(a.take_strays(), []);
    keeper.abort();
}

#[tokio::test(start_paused = true)]
async fn a_room_is_kept_known_while_somebody_is_in_it_and_lapses_when_nobody_is() {
    let world = World::new();
    let (a, b) = (world.node("a").await, world.node("b").await);
    a.sees(&[&b], false);
    let keeper = tokio::spawn(Arc::clone(&b.rooms).keep());
    b.join().await;
    let lease = Leases::default().interest;
    for _ in 0..6 {
        world.pass(lease / 2, &[&a, &b]).await;
        time::sleep(lease / 2).await;
        assert_eq!(a.hears().await, [boot("b")]);
    }
    b.leave();
    time::sleep(RENEW_EVERY * 2).await;
    assert!(!b.rooms.is_declared(&hall()), "the next to come in says so first");
    world.pass(lease * 2, &[&a, &b]).await;
    assert_eq!(a.hears().await, []);
    b.join().await;
    assert_eq!(a.hears().await, [boot("b")]);
    keeper.abort();
}

#[tokio::test(start_paused = true)]
async fn what_the_routes_lost_is_told_again_soon() {
    let world = World::new();
    let (a, b) = (world.node("a").await, world.node("b").await);
    a.sees(&[&b], false);
    b.join().await;
    let keeper = tokio::spawn(Arc::clone(&b.rooms).keep());
    time::sleep(RETRY_EVERY).await;
    // As if they had been emptied.
    world.pass(Leases::default().interest * 2, &[&a, &b]).await;
    assert_eq!(a.hears().await, []);
    assert_eq!(b.take_told(), [], "all is well");
    b.ports.peers.set(Seen { losses: 1, ..Seen::default() });
    time::sleep(RETRY_EVERY * 2).await;
    assert_eq!(a.hears().await, [boot("b")]);
    assert_eq!(b.take_told(), [hall()], "what was said meanwhile was said without it, and nobody counted");
    time::sleep(RENEW_EVERY * 2).await;
    assert_eq!(b.take_told(), [], "once");
    keeper.abort();
}

#[tokio::test(start_paused = true)]
async fn who_came_in_while_nobody_could_be_told_hears_that_it_may_lack_something() {
    let world = World::new();
    let (a, b) = (world.node("a").await, world.node("b").await);
    a.sees(&[&b], false);
    let keeper = tokio::spawn(Arc::clone(&b.rooms).keep());
    (0..3).for_each(|_| world.plan.plan("declare", Fault::Fail));
    b.join().await;
    assert!(!b.rooms.is_declared(&hall()));
    time::sleep(RETRY_EVERY * 5 / 2).await;
    assert_eq!(b.take_told(), [], "the others can't know yet");
    time::sleep(RETRY_EVERY).await;
    assert_eq!((a.hears().await, b.take_told()), (vec![boot("b")], vec![hall()]));
    keeper.abort();
}

/// Flaw S9: until the floors were told, numbers of before could be given again.
#[tokio::test(start_paused = true)]
async fn numbers_are_made_new_after_each_loss_and_tried_again_until_they_are() {
    let world = World::new();
    let b = world.node("b").await;
    let keeper = tokio::spawn(Arc::clone(&b.rooms).keep());
    time::sleep(RETRY_EVERY * 3).await;
    let made_new = || world.numbers.made_new.load(Ordering::SeqCst);
    assert_eq!(made_new(), 0, "nothing was lost");
    for losses in 1..=2 {
        world.numbers.refuse.store(3, Ordering::SeqCst);
        b.ports.peers.set(Seen { losses, ..Seen::default() });
        time::sleep(RETRY_EVERY / 2).await;
        assert_eq!(world.numbers.refuse.load(Ordering::SeqCst), 2, "at once");
        time::sleep(RETRY_EVERY * 5).await;
        assert_eq!(made_new(), losses, "once, as soon as it can be");
    }
    keeper.abort();
}
