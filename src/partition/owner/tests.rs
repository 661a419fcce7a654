//! Tracking of group pushes on a single node: which pushes are tracked, and how often the store is asked for a size.

use std::{collections::BTreeMap, task::Waker};

use bytes::Bytes;
use tidegate_protocol::{
    Time,
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    record::{MemberAction, MemberChange, Message, Origin, SenderOrder, body_hash},
};

use super::*;

mod storms;

use crate::{
    budget::Pressure,
    bus::{LocalBus, LocalBusConfig, Ownership},
    delivery::{local::LocalDispatcher, pending::Pending},
    directory::Directory,
    fault::{FaultPlan, Faulty},
    link::LocalLink,
    mail::{Item, Mail, Mailbox, ShardHandles, mailbox},
    metrics,
    ports::Ports,
    routes::{Leases, MemoryRoutes, NodeBoot},
    scratch::MemoryScratch,
    store::{MemoryStore, Store},
};

const SMALL_MAX: usize = 3;

/// Memory for the rows that the owner caches.
const CACHE_BYTES: u64 = 4 << 20;

/// Owner of a log with one partition, and one shard whose mailbox only the test reads.
struct World {
    plan: Arc<FaultPlan>,
    memory: Arc<MemoryStore>,
    pending: Arc<Pending>,
    directory: Arc<Directory>,
    shards: ShardHandles,
    cluster: Arc<Cluster>,
    owner: Owner,
    out: Dispatcher,
    mailbox: Mailbox,
    _ownership: Box<dyn Ownership>,
}

fn group() -> ConversationId {
    ConversationId::parse("g:tea").unwrap()
}

fn user(n: usize) -> UserId {
    UserId::new(&format!("u{n}")).unwrap()
}

fn change(action: MemberAction, users: &[usize]) -> Body {
    Body::Member(MemberChange {
        conversation: group(),
        action,
        users: users.iter().copied().map(user).collect(),
        role: None,
        by: None,
        settings: BTreeMap::new(),
        request_id: MsgId::new(&rand::random::<u64>().to_string()).unwrap(),
    })
}

fn message() -> Body {
    let content = Bytes::from_static(b"hello");
    Body::Message(Message {
        conversation: group(),
        sender: user(0),
        device: DeviceId::new("phone").unwrap(),
        msg_id: MsgId::new(&rand::random::<u64>().to_string()).unwrap(),
        attempt: 0,
        body_hash: body_hash(&content),
        content,
        order: SenderOrder::default(),
        flags: 0,
        mode: Default::default(),
    })
}

fn record(received_at: u64, body: Body) -> Record {
    // Another run of the node appended it, so no connection waits for a reply.
    record_of_run(0, received_at, body)
}

/// Returns a record that the given run of the node appended.
fn record_of_run(boot: u64, received_at: u64, body: Body) -> Record {
    let origin = Origin { node: NodeId::new("n1").unwrap(), boot, conn: 1, request: 1 };
    Record { origin, received_at, body, trace: None }
}

/// Lets time pass on the test's own clock.
async fn let_pass(time: Duration) {
    tokio::time::sleep(time).await;
}

impl World {
    async fn start() -> Self {
        let log = LocalBusConfig {
            partitions: 1,
            topic: TopicId(1),
            max_records: 1 << 15,
            max_bytes: 8 << 20,
            node_max_records: 1,
            node_max_bytes: 1,
        };
        let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        let (plan, memory) = (FaultPlan::none(), Arc::new(MemoryStore::default()));
        let ports = Ports {
            bus: Arc::new(LocalBus::new(log)),
            store: Arc::new(Faulty::<dyn Store>::new(memory.clone(), Arc::clone(&plan))),
            routes: Arc::new(MemoryRoutes::new(1, Leases::default(), || Time::from_millis(1))),
            scratch: Arc::new(MemoryScratch::new(1, || 1)),
            link: Arc::new(LocalLink),
        };
        let cluster = Arc::new(Cluster::new(me.clone(), ports));
        let mut ownership = cluster.ports.bus.join(&me).await.unwrap();
        ownership.next().await.unwrap();
        let settings = Settings {
            small_group_max: SMALL_MAX,
            retention: retention::Settings {
                node: retention::Keep::parse("forever").unwrap(),
                every: Duration::from_secs(86_400),
                keys: Duration::from_secs(86_400),
                feed: retention::FeedRetention { keep: Duration::from_secs(86_400), bytes_max: 1 << 30 },
                wall_ms: || 1,
            },
            rules: rules::Settings::default(),
            answers_first: None,
            cache: Arc::new(CacheBudget::new(CACHE_BYTES, 0)),
            panic_on_msg_id: String::new(),
        };
        let owner = Owner::take_over(0, &cluster, None, settings, &metrics::install().0).await.unwrap();
        let (handle, mailbox) = mailbox(Waker::noop().clone(), 1 << 20);
        let (shards, directory) = (ShardHandles::default(), Arc::new(Directory::default()));
        let pending = Arc::default();
        assert!(shards.set(vec![handle]).is_ok());
        directory.hold_conversation(&group(), 0);
        let local =
            LocalDispatcher::new(me, Arc::clone(&directory), Arc::clone(&shards), Arc::clone(&pending));
        let out = Dispatcher::new(local);
        let _ownership = ownership;
        Self { plan, memory, pending, directory, shards, cluster, owner, out, mailbox, _ownership }
    }

    /// Appends the records, runs the owner over them as one batch, and returns whether each push is tracked.
    async fn publish(&mut self, bodies: Vec<Body>) -> Vec<bool> {
        self.publish_at(1, bodies).await
    }

    async fn publish_at(&mut self, received_at: u64, bodies: Vec<Body>) -> Vec<bool> {
        self.publish_each(bodies.into_iter().map(|body| (received_at, body)).collect()).await
    }

    /// Publishes records as [`Self::publish`] does, each with its receive time.
    async fn publish_each(&mut self, bodies: Vec<(u64, Body)>) -> Vec<bool> {
        let records = bodies.into_iter().map(|(at, body)| record(at, body).encode()).collect();
        let from = self.cluster.ports.bus.append(0, records).await.unwrap().first;
        let batch = self.cluster.ports.bus.read(0, from, usize::MAX, usize::MAX).await.unwrap();
        let never = CancellationToken::new();
        self.owner.decide_all(batch, &mut None, &mut self.out, &never, &never).await.unwrap();
        let mut tracked = Vec::new();
        while let Some(mail) = self.mailbox.take() {
            let Mail::Deliver(items) = mail else { continue };
            tracked.extend(items.iter().filter_map(|item| match item {
                Item::Push(delivery) => Some(delivery.tracked),
                _ => None,
            }));
        }
        tracked
    }

    fn summaries(&self) -> u64 {
        self.plan.calls("summary")
    }
}

#[tokio::test]
async fn messages_of_a_small_group_read_its_size_once() {
    let mut world = World::start().await;
    assert_eq!(world.publish(vec![change(MemberAction::Create, &[0, 1])]).await, [true]);
    for _ in 0..10 {
        assert_eq!(world.publish((0..10).map(|_| message()).collect()).await, [true; 10]);
    }
    assert_eq!(world.summaries(), 1);
    // Neither a mute nor a removal can make it large, and a join below the limit does not.
    for action in [MemberAction::Mute, MemberAction::Kick, MemberAction::Join] {
        assert_eq!(world.publish(vec![change(action, &[1]), message()]).await, [true; 2], "{action:?}");
    }
    assert_eq!(world.summaries(), 1);
}

#[tokio::test]
async fn group_that_crosses_the_limit_changes_its_tracking_both_ways() {
    let mut world = World::start().await;
    let steps: [(MemberAction, &[usize], bool); 8] = [
        (MemberAction::Create, &[0, 1, 2], true),
        // One of the two is a member already.
        (MemberAction::Join, &[1, 2], true),
        (MemberAction::Join, &[3], false),
        (MemberAction::Mute, &[1], false),
        // Only one of the two is a member.
        (MemberAction::Kick, &[3, 9], true),
        (MemberAction::Join, &[3, 4], false),
        (MemberAction::Leave, &[4], false),
        (MemberAction::Leave, &[3], true),
    ];
    let mut summaries = 0;
    for (step, (action, users, tracked)) in steps.into_iter().enumerate() {
        assert_eq!(world.publish(vec![change(action, users)]).await, [tracked], "step {step}");
        assert_eq!(world.publish((0..5).map(|_| message()).collect()).await, [tracked; 5], "step {step}");
        let before = std::mem::replace(&mut summaries, world.summaries());
        assert!(summaries - before <= 1, "a change costs at most one read: step {step}");
    }
}

#[tokio::test]
async fn batch_with_changes_leaves_the_size_of_its_end() {
    let mut world = World::start().await;
    world.publish(vec![change(MemberAction::Create, &[0])]).await;
    let batch = vec![
        change(MemberAction::Join, &[1, 2, 3]),
        change(MemberAction::Kick, &[1]),
        change(MemberAction::Join, &[1, 4]),
        change(MemberAction::Kick, &[1, 4]),
        message(),
    ];
    let tracked = world.publish(batch).await;
    assert_eq!(tracked.last(), Some(&true), "three members are left: {tracked:?}");
    assert_eq!(world.publish(vec![message()]).await, [true]);
    assert_eq!(world.publish(vec![change(MemberAction::Join, &[5]), message()]).await, [false; 2]);
}

/// Returns messages that begin a conversation each.
fn to_strangers(from: usize, count: usize) -> Vec<Body> {
    let to_stranger = |nth| match message() {
        Body::Message(it) => {
            let conversation = ConversationId::direct(&user(0), &user(nth));
            Body::Message(Message { conversation, ..it })
        }
        other => other,
    };
    (from + 1..=from + count).map(to_stranger).collect()
}

#[tokio::test]
async fn x1_cache_keeps_to_its_bytes_while_records_come_in() {
    let mut world = World::start().await;
    let budget = Arc::clone(&world.owner.settings.cache);
    for round in 0..6 {
        world.publish(to_strangers(round * 1_000, 1_000)).await;
        assert!(budget.used() as u64 <= CACHE_BYTES, "{}", budget.used());
    }
    assert!(budget.used() as u64 > CACHE_BYTES / 2, "{}", budget.used());
}

#[tokio::test(start_paused = true)]
async fn x1_quiet_owner_gives_memory_back_on_its_timer() {
    let mut world = World::start().await;
    let budget = Arc::clone(&world.owner.settings.cache);
    for round in 0..3 {
        world.publish(to_strangers(round * 1_000, 1_000)).await;
    }
    let before = budget.used();
    assert!(before > 2 << 20, "{before}");
    let World { owner, mut out, cluster: _cluster, mailbox: _mailbox, _ownership, .. } = world;
    let (stopping, lost) = (CancellationToken::new(), CancellationToken::new());
    let pressure = async {
        for _ in 0..40 {
            budget.note_pressure(Pressure::Full);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert!(budget.used() <= 1 << 20, "nothing came in, and {} of {before} bytes stayed", budget.used());
        stopping.cancel();
    };
    let mut logins = None;
    let (exit, ()) = tokio::join!(owner.run(&mut logins, &mut out, &stopping, &lost), pressure);
    assert!(matches!(exit, OwnerExit::Revoked), "{exit:?}");
    assert_eq!(budget.used(), 0, "an owner that ends returns its share");
}

/// Runs an owner without peers, and returns the version of its rules after a few seconds and after the settle time.
async fn versions_of_a_single_node(records: Vec<Record>) -> [u32; 2] {
    let world = World::start().await;
    if !records.is_empty() {
        let records = records.iter().map(Record::encode).collect();
        world.cluster.ports.bus.append(0, records).await.unwrap();
    }
    let World { owner, mut out, cluster, mailbox: _mailbox, _ownership, .. } = world;
    let rules = rules::Settings { has_peers: false, ..owner.settings.rules };
    let settings = Settings { rules, ..owner.settings.clone() };
    drop(owner);
    let owner = Owner::take_over(0, &cluster, None, settings, &metrics::install().0).await.unwrap();
    let rules = owner.rules.subscribe();
    let (stopping, lost) = (CancellationToken::new(), CancellationToken::new());
    let versions = async {
        let mut versions = [0; 2];
        for (version, wait) in versions.iter_mut().zip([5, 60]) {
            let_pass(Duration::from_secs(wait)).await;
            *version = rules.borrow().ledger_version;
        }
        stopping.cancel();
        versions
    };
    let mut logins = None;
    let (_, versions) = tokio::join!(owner.run(&mut logins, &mut out, &stopping, &lost), versions);
    versions
}

#[tokio::test(start_paused = true)]
async fn single_node_switches_a_new_log_at_once_and_an_existing_one_after_a_minute() {
    let newest = tidegate_protocol::machine::ledger::LEDGER_NEWEST;
    assert_eq!(Box::pin(versions_of_a_single_node(Vec::new())).await, [newest; 2]);
    let former_run = record(1, change(MemberAction::Create, &[0]));
    let this_run = record_of_run(1, 1, change(MemberAction::Create, &[1]));
    let existing = Box::pin(versions_of_a_single_node(vec![former_run, this_run.clone()])).await;
    assert_eq!(
        existing,
        [Rules::default().ledger_version, newest],
        "the former version can be started again"
    );
    let begun_early = Box::pin(versions_of_a_single_node(vec![this_run])).await;
    assert_eq!(begun_early, [newest; 2], "a request that comes before the take-over delays nothing");
}
