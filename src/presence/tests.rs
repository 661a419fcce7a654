//! Tests of the rounds over ports in memory: what reaches a shard, and when.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    task::Waker,
    time::Duration,
};

use prost::Message as _;
use tidegate_protocol::{
    id::{DeviceId, NodeId},
    machine::{
        ledger::{Delta, Head, Member},
        presence::ROUND_INTERVAL,
    },
    pb::{self, server_frame::Body as FrameBody},
    record::{Position, Role},
    settings::{UserSettings, Visibility},
};

use super::{round::READS_MAX, *};
use crate::{
    bus::TopicId,
    cluster::PeerSnapshot,
    fault::{Fault, FaultPlan, Faulty, Gate},
    link::LocalLink,
    mail::{Mail, Mailbox, mailbox},
    metrics,
    ports::Ports,
    routes::{DevicePolicy, Leases, MemoryRoutes, NodeBoot, NodeInfo, Registration, Routes},
    store::{Fence, Store},
};

/// Rounds within which a change of members, settings or blocks is seen.
const REFRESH_ROUNDS: usize = 9;

struct World {
    cluster: Arc<Cluster>,
    watches: PresenceWatches,
    shards: ShardHandles,
    mailbox: Mailbox,
    position: Position,
    former: Vec<UserId>,
    /// Clock of the routes, in ms.
    clock: Arc<AtomicU64>,
    /// Faults of the routes and the store.
    faults: Arc<FaultPlan>,
}

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn key(text: &str) -> ConversationId {
    ConversationId::parse(text).unwrap()
}

fn conn(slot: u32) -> ConnKey {
    ConnKey { shard: 0, slot, generation: 0 }
}

fn run_of(node: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(node).unwrap(), boot: 1 }
}

impl World {
    async fn new(mailbox_bytes: usize) -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let now = {
            let clock = Arc::clone(&clock);
            move || Time::from_millis(clock.load(Ordering::Relaxed))
        };
        let (faults, ports) = (FaultPlan::none(), Ports::in_memory(Arc::new(LocalLink)));
        let routes: Arc<dyn Routes> = Arc::new(MemoryRoutes::new(1, Leases::default(), now));
        let routes = Arc::new(Faulty::<dyn Routes>::new(routes, Arc::clone(&faults)));
        let store = Arc::new(Faulty::<dyn Store>::new(Arc::clone(&ports.store), Arc::clone(&faults)));
        let cluster = Arc::new(Cluster::new(run_of("n1"), Ports { routes, store, ..ports }));
        cluster.ports.store.take_over(0, Fence(1), TopicId(1)).await.unwrap();
        let watches = PresenceWatches::new(PresenceLimits::default(), metrics::install().0);
        let (handle, mailbox) = mailbox(Waker::noop().clone(), mailbox_bytes);
        let shards = ShardHandles::default();
        assert!(shards.set(vec![handle]).is_ok());
        let (position, former) = (Position::START, Vec::new());
        let world = Self { cluster, watches, shards, mailbox, position, former, clock, faults };
        for node in ["n1", "n2"] {
            world.renew(node, false).await;
        }
        world
    }

    async fn renew(&self, node: &str, asserting: bool) {
        let info = NodeInfo { asserting, ..NodeInfo::new(run_of(node)) };
        self.cluster.ports.routes.renew(&info).await.unwrap();
    }

    /// Connects a device of the user to a node.
    async fn connect(&self, name: &str, node: &str) {
        let (device, policy) = (DeviceId::new("phone").unwrap(), DevicePolicy::default());
        let registration =
            Registration { user: user(name), device, at: run_of(node), above: 0, only_if: None, policy };
        self.cluster.ports.routes.register(registration).await.unwrap();
    }

    /// Sets the members of `g:tea`; without any, the group is deleted and keeps its members.
    async fn members(&mut self, names: &[&str]) {
        let to = Position { offset: self.position.offset + 1, hash: [0; 16] };
        let users: Vec<UserId> = names.iter().map(|name| user(name)).collect();
        let deleted_seq = if users.is_empty() { to.offset } else { 0 };
        let row = |user: &UserId, left_seq| {
            let member = Member {
                role: Role::Member,
                joined_seq: 1,
                left_seq,
                sent: 0,
                joined_messages: 0,
                left_messages: 0,
                stays: 0,
                muted: false,
            };
            (key("g:tea"), user.clone(), member)
        };
        let left = self.former.iter().filter(|it| !users.is_empty() && !users.contains(*it));
        let members = users.iter().map(|it| row(it, 0)).chain(left.map(|it| row(it, to.offset)));
        let delta = Delta {
            heads: vec![(key("g:tea"), Head { last_seq: to.offset, deleted_seq, ..Head::default() })],
            members: members.collect(),
            ..Delta::new(self.position, to)
        };
        self.cluster.ports.store.archive(0, Fence(1), &delta).await.unwrap();
        self.position = to;
        self.former.extend(users);
    }

    fn watch(&self, slot: u32, name: &str, conversation: &str) {
        self.watches.watch(conn(slot), &user(name), key(conversation), 2).unwrap();
    }

    /// Carries out the next round, a second after the one before it.
    async fn run(&self) {
        time::advance(ROUND_INTERVAL).await;
        let parts = RoundParts { watches: &self.watches, cluster: &self.cluster, shards: &self.shards };
        parts.run().await;
    }

    /// Returns what the shard has got: the conversation, the slots of the watchers, and the users.
    fn posted(&mut self) -> Vec<String> {
        let mut posted = Vec::new();
        while let Some(mail) = self.mailbox.take() {
            let Mail::Presence(report) = mail else { panic!("no report") };
            let frame = pb::ServerFrame::decode(report.frame.proto()).unwrap();
            let Some(FrameBody::Presence(it)) = frame.body else { panic!("{frame:?}") };
            assert_eq!((it.conversation.as_str(), it.ended), (report.conversation.as_str(), report.is_last));
            let slots: Vec<u32> = report.watchers.iter().map(|it| it.slot).collect();
            let kind = if it.complete { "all" } else { "change" };
            let last = if report.is_last { " last" } else { "" };
            let (online, offline) = (it.online.join(","), it.offline.join(","));
            posted.push(format!("{} {slots:?} {kind} +{online} -{offline}{last}", it.conversation));
        }
        posted
    }

    async fn round(&mut self) -> Vec<String> {
        self.run().await;
        self.posted()
    }

    /// Returns the reports of the first of the next rounds that has any; they are those within which changes are seen.
    async fn refreshed(&mut self) -> Vec<String> {
        for _ in 0..REFRESH_ROUNDS {
            let posted = self.round().await;
            if !posted.is_empty() {
                return posted;
            }
        }
        Vec::new()
    }
}

#[tokio::test(start_paused = true)]
async fn opt_out_and_membership_are_seen_within_ten_seconds() {
    let mut world = World::new(1 << 20).await;
    world.members(&["ann", "bob", "cid"]).await;
    for (name, node) in [("ann", "n1"), ("bob", "n2")] {
        world.connect(name, node).await;
    }
    world.watch(1, "ann", "g:tea");
    world.watch(2, "cid", "g:tea");
    assert_eq!(world.round().await, ["g:tea [1, 2] all +ann,bob -"]);
    world.connect("cid", "n2").await;
    assert_eq!(world.round().await, ["g:tea [1, 2] change +cid -"]);
    assert!(world.round().await.is_empty());
    let hidden = UserSettings { presence: Some(Visibility::Off), ..UserSettings::default() };
    world.cluster.ports.store.merge_settings(&user("bob"), hidden).await.unwrap();
    assert_eq!(world.refreshed().await, ["g:tea [1, 2] change + -bob"]);
    world.members(&["ann", "bob"]).await;
    let reports = world.refreshed().await;
    assert_eq!(reports, ["g:tea [2] all + - last", "g:tea [1] change + -cid"]);
    world.members(&[]).await;
    assert_eq!(world.refreshed().await, ["g:tea [1] all + - last"], "the group is deleted");
    assert!(world.refreshed().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn group_that_grows_too_large_is_watched_no_more() {
    let mut world = World::new(1 << 20).await;
    world.members(&["ann", "bob"]).await;
    world.connect("ann", "n1").await;
    world.watch(1, "ann", "g:tea");
    assert_eq!(world.round().await, ["g:tea [1] all +ann -"]);
    let many: Vec<String> = (0..500).map(|n| format!("u{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).chain(["ann", "bob"]).collect();
    world.members(&many).await;
    assert_eq!(world.refreshed().await, ["g:tea [1] all + - last"]);
}

#[tokio::test(start_paused = true)]
async fn user_who_blocks_the_watcher_is_not_seen_directly() {
    let mut world = World::new(1 << 20).await;
    for name in ["ann", "bob"] {
        world.connect(name, "n1").await;
    }
    world.watch(1, "ann", "d:ann:bob");
    world.watch(2, "bob", "d:ann:bob");
    assert_eq!(world.round().await, ["d:ann:bob [1] all +ann,bob -", "d:ann:bob [2] all +ann,bob -"]);
    world.cluster.ports.store.block(&user("bob"), &user("ann"), 1, 10).await.unwrap();
    world.cluster.publish_block(&user("bob"), &user("ann"), true).await;
    assert_eq!(world.refreshed().await, ["d:ann:bob [1] change + -bob"]);
    assert!(world.refreshed().await.is_empty(), "the blocking one sees the other");
}

#[tokio::test(start_paused = true)]
async fn users_of_a_node_are_offline_once_its_lease_lapses() {
    let mut world = without_the_other_node().await;
    // This node re-asserts its routes after a loss.
    world.renew("n1", true).await;
    assert!(world.round().await.is_empty(), "the routes may lack some");
    world.renew("n1", false).await;
    assert_eq!(world.round().await, ["g:tea [1] change + -bob"]);
}

#[tokio::test(start_paused = true)]
async fn report_that_fits_no_mailbox_is_made_up_for() {
    // The first report takes all of the mailbox.
    let mut world = World::new(64).await;
    world.members(&["ann", "bob", "cid"]).await;
    world.connect("ann", "n1").await;
    world.watch(1, "ann", "g:tea");
    world.run().await;
    world.connect("bob", "n1").await;
    world.run().await;
    assert_eq!(world.posted(), ["g:tea [1] all +ann -"], "the change was dropped");
    assert_eq!(world.round().await, ["g:tea [1] all +ann,bob -"]);
    assert!(world.round().await.is_empty());
    world.watches.forget(conn(1));
    world.connect("cid", "n1").await;
    assert!(world.refreshed().await.is_empty(), "the connection is closed");
}

#[tokio::test(start_paused = true)]
async fn watchers_without_a_report_are_first_in_the_next_round() {
    // One report takes all of the mailbox.
    let mut world = World::new(64).await;
    for slot in 1..=3 {
        world.watch(slot, "ann", &format!("d:ann:u{slot}"));
    }
    assert_eq!(world.round().await, ["d:ann:u1 [1] all + -"]);
    world.connect("ann", "n1").await;
    assert_eq!(world.round().await, ["d:ann:u2 [2] all +ann -"]);
    assert_eq!(world.round().await, ["d:ann:u3 [3] all +ann -"]);
    assert_eq!(world.round().await, ["d:ann:u1 [1] all +ann -"]);
    assert!(world.round().await.is_empty());
}

/// Returns a world in which Ann, connected to this node, has seen that Bob is connected to the other one, whose lease has
/// lapsed since.
async fn without_the_other_node() -> World {
    let mut world = World::new(1 << 20).await;
    world.members(&["ann", "bob"]).await;
    for (name, node) in [("ann", "n1"), ("bob", "n2")] {
        world.connect(name, node).await;
    }
    world.watch(1, "ann", "g:tea");
    assert_eq!(world.round().await, ["g:tea [1] all +ann,bob -"]);
    world.clock.store(60_000, Ordering::Relaxed);
    world
}

#[tokio::test(start_paused = true)]
async fn no_user_goes_offline_while_this_node_has_no_lease() {
    let mut world = without_the_other_node().await;
    assert!(world.round().await.is_empty(), "the routes are back after an outage, and list no node");
    world.renew("n2", false).await;
    assert!(world.round().await.is_empty(), "the other node was first");
    world.renew("n1", false).await;
    assert!(world.round().await.is_empty(), "both are there, as before");
    world.connect("cid", "n1").await;
    world.members(&["ann", "bob", "cid"]).await;
    assert_eq!(world.refreshed().await, ["g:tea [1] change +cid -"]);
}

#[tokio::test(start_paused = true)]
async fn no_user_goes_offline_while_routes_may_be_missing() {
    let mut world = without_the_other_node().await;
    world.renew("n1", false).await;
    let doubtful = PeerSnapshot { may_be_incomplete: true, ..PeerSnapshot::default() };
    world.cluster.peers.set(doubtful);
    assert!(world.round().await.is_empty(), "the other node has not had time to renew its lease");
    world.cluster.peers.set(PeerSnapshot::default());
    assert_eq!(world.round().await, ["g:tea [1] change + -bob"]);
}

#[tokio::test(start_paused = true)]
async fn lookup_counts_for_nothing_if_a_loss_is_noticed_meanwhile() {
    let mut world = without_the_other_node().await;
    world.renew("n1", false).await;
    let gate = Gate::new();
    world.faults.plan("nodes", Fault::HoldAnswer(gate.clone()));
    let lose = async {
        while gate.reached() == 0 {
            tokio::task::yield_now().await;
        }
        world.cluster.peers.set(PeerSnapshot { losses: 1, ..PeerSnapshot::default() });
        gate.open();
    };
    tokio::join!(world.run(), lose);
    assert!(world.posted().is_empty(), "its rows are those of before the loss");
    assert_eq!(world.round().await, ["g:tea [1] change + -bob"]);
}

#[tokio::test(start_paused = true)]
async fn store_that_is_silent_delays_no_lookup_for_long() {
    let mut world = World::new(1 << 20).await;
    world.members(&["ann", "bob"]).await;
    world.connect("ann", "n1").await;
    world.watch(1, "ann", "g:tea");
    assert_eq!(world.round().await, ["g:tea [1] all +ann -"]);
    world.connect("bob", "n1").await;
    // The members are read again now, and not answered.
    time::advance(10 * ROUND_INTERVAL).await;
    world.faults.plan("group_members", Fault::Hold(Gate::new()));
    let began = Instant::now();
    assert_eq!(world.round().await, ["g:tea [1] change +bob -"]);
    let took = began.elapsed();
    assert!(took >= READS_MAX && took < 2 * ROUND_INTERVAL + READS_MAX, "{took:?}");
    // What was not read is read in the next round.
    world.members(&["bob"]).await;
    assert_eq!(world.round().await, ["g:tea [1] all + - last"]);
}

impl World {
    /// Runs the task of other watches, which report to the same shard.
    fn task(&self) -> (Arc<PresenceWatches>, tokio::task::JoinHandle<()>) {
        let watches = Arc::new(PresenceWatches::new(PresenceLimits::default(), metrics::install().0));
        let run = Arc::clone(&watches).run(Arc::clone(&self.cluster), Arc::clone(&self.shards));
        (watches, tokio::spawn(run))
    }
}

/// Lets time pass for a task.
async fn pass(by: Duration) {
    assert!(time::timeout(by, std::future::pending::<()>()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn task_reports_soon_after_a_watch_begins() {
    let mut world = World::new(1 << 20).await;
    world.members(&["ann", "bob"]).await;
    world.connect("ann", "n1").await;
    let (watches, task) = world.task();
    pass(Duration::from_secs(5)).await;
    watches.watch(conn(1), &user("ann"), key("g:tea"), 2).unwrap();
    pass(Duration::from_millis(10)).await;
    assert_eq!(world.posted(), ["g:tea [1] all +ann -"]);
    world.connect("bob", "n1").await;
    pass(ROUND_INTERVAL).await;
    assert_eq!(world.posted(), ["g:tea [1] change +bob -"]);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn dropped_last_report_comes_again_without_other_watches() {
    let mut world = World::new(1 << 20).await;
    world.members(&["ann"]).await;
    let (watches, task) = world.task();
    pass(Duration::from_secs(5)).await;
    watches.watch(conn(1), &user("ann"), key("g:tea"), 1).unwrap();
    pass(ROUND_INTERVAL).await;
    world.members(&[]).await;
    pass(10 * ROUND_INTERVAL).await;
    assert_eq!(world.posted(), ["g:tea [1] all + -", "g:tea [1] all + - last"]);
    watches.note_dropped(conn(1), &key("g:tea"), true);
    pass(2 * ROUND_INTERVAL).await;
    assert_eq!(world.posted(), ["g:tea [1] all + - last"]);
    pass(10 * ROUND_INTERVAL).await;
    assert!(world.posted().is_empty());
    task.abort();
}
