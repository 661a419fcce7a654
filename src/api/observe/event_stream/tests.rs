//! Tests of streams over a store that fails, is stuck or falls behind, with a paused clock.

use std::sync::atomic::AtomicBool;

use prost::Message as _;
use tidegate_protocol::{
    content::Content,
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    machine::ledger::{Delta, Head, Row},
    record::{Body as RecordBody, Message, Position, SenderOrder},
};
use tokio::time::Instant;

use super::{batch::StreamFilter, *};
use crate::{
    bus::TopicId,
    events::NodeChange,
    fault::{Fault, FaultPlan, Faulty, Gate},
    metrics,
    routes::NodeBoot,
    store::{Fence, MemoryStore},
    webhooks::WebhookFilter,
};

const FENCE: Fence = Fence(1);

/// Returns the archive of `count` messages from seq `first` on, each with `bytes` of content.
fn messages(first: u64, count: u64, bytes: usize) -> Delta {
    let conversation = ConversationId::parse("g:a").unwrap();
    let message = |seq: u64| {
        let body = RecordBody::Message(Message {
            conversation: conversation.clone(),
            sender: UserId::new("ann").unwrap(),
            device: DeviceId::new("phone").unwrap(),
            msg_id: MsgId::new("m").unwrap(),
            attempt: 0,
            content: Content::text("x".repeat(bytes)).encode_to_vec().into(),
            order: SenderOrder { epoch: 1, n: 0, chained: false },
            flags: 0,
            body_hash: [0; 16],
            mode: Default::default(),
        });
        Row { seq, ordinal: seq, own: seq, time: 5, offset: seq, body }
    };
    let at = |offset: u64| if offset == 0 { Position::START } else { Position { offset, hash: [0; 16] } };
    let last = first + count - 1;
    Delta {
        heads: vec![(conversation.clone(), Head { last_seq: last, ..Head::default() })],
        rows: (first..=last).map(message).collect(),
        ..Delta::new(at(first - 1), at(last))
    }
}

/// Streams of a node over a store that fails by plan.
struct World {
    store: Arc<MemoryStore>,
    plan: Arc<FaultPlan>,
    streams: Arc<EventStreams>,
    is_draining: Arc<AtomicBool>,
}

impl World {
    async fn new() -> Self {
        let (store, plan) = (Arc::new(MemoryStore::default()), FaultPlan::none());
        store.take_over(0, FENCE, TopicId(7)).await.unwrap();
        let port = Arc::clone(&store) as Arc<dyn Store>;
        let faulty: Arc<dyn Store> = Arc::new(Faulty::new(port, Arc::clone(&plan)));
        let events = Arc::new(Events::new("/tidegate/t", 1, 0));
        let streams = Arc::new(EventStreams::new(&faulty, &events, metrics::install().0));
        let is_draining = Arc::new(AtomicBool::new(false));
        let (running, drains) = (Arc::clone(&streams), Arc::clone(&is_draining));
        tokio::spawn(async move { running.run(|| drains.load(Ordering::SeqCst)).await });
        Self { store, plan, streams, is_draining }
    }

    async fn archive(&self, delta: Delta) {
        self.store.archive(0, FENCE, &delta).await.unwrap();
    }

    /// Opens a stream that begins with the first entry, and reads its first `id:` line.
    async fn follow(&self) -> EventFollower {
        self.follow_with(Vec::new()).await
    }

    /// Opens such a stream that also wants these changes of the cluster.
    async fn follow_with(&self, node_types: Vec<&'static str>) -> EventFollower {
        let filter = WebhookFilter::new(&["tidegate.*".to_owned()], &[], &[]).unwrap();
        let filter = StreamFilter::new(filter, "/tidegate/t", true).with_nodes(node_types);
        let (place, news) = (self.streams.take_place(None).unwrap(), self.streams.news.subscribe());
        let (streams, ends) = (Arc::clone(&self.streams), news.borrow().ends);
        let mut follower = EventFollower::new(streams, place, news, ends, filter, FeedNumbers::new());
        self.streams.opened.notify_one();
        assert!(follower.next().await.unwrap().starts_with("retry: 1000\nid: "));
        follower
    }
}

/// Returns the seqs of the next events, up to `last`, which come once and in order.
async fn seqs_to(follower: &mut EventFollower, last: u64) -> Vec<u64> {
    let mut seqs = Vec::new();
    while seqs.last() != Some(&last) {
        let text = follower.next().await.expect("the stream goes on");
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        seqs.extend(data.filter_map(|data| {
            serde_json::from_str::<serde_json::Value>(data).unwrap()["data"]["seq"].as_u64()
        }));
    }
    seqs
}

#[tokio::test(start_paused = true)]
async fn failed_reads_are_repeated_and_nothing_is_lost() {
    let world = World::new().await;
    for method in ["feed_positions", "read_feed", "rows_at"] {
        world.plan.plan(method, Fault::Fail);
    }
    world.archive(messages(1, 3, 1)).await;
    let mut follower = world.follow().await;
    let began = Instant::now();
    assert_eq!(seqs_to(&mut follower, 3).await, [1, 2, 3]);
    // A poll and two reads were repeated after a second each.
    assert!((3..5).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert!(follower.next().await.unwrap().starts_with("id: "));
}

#[tokio::test(start_paused = true)]
async fn stuck_store_keeps_back_neither_comments_nor_the_end() {
    let world = World::new().await;
    world.archive(messages(1, 1, 1)).await;
    world.plan.plan("read_feed", Fault::Hold(Gate::new()));
    let mut follower = world.follow().await;
    let began = Instant::now();
    assert_eq!(follower.next().await.as_deref(), Some(": open\n\n"));
    assert_eq!(began.elapsed().as_secs(), 15);
    // The read was given up meanwhile, and the next one succeeds.
    assert_eq!(seqs_to(&mut follower, 1).await, [1]);
    assert!(follower.next().await.unwrap().starts_with("id: "));
    world.plan.plan("read_feed", Fault::Hold(Gate::new()));
    world.archive(messages(2, 1, 1)).await;
    let (ended, began) = (follower.next(), Instant::now());
    let drain = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.is_draining.store(true, Ordering::SeqCst);
    };
    assert_eq!(tokio::join!(ended, drain).0, None);
    assert!(began.elapsed() < Duration::from_millis(2_200), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn streams_read_in_turns_and_one_that_has_left_takes_none() {
    let world = World::new().await;
    world.archive(messages(1, 2, 1)).await;
    let gates = [Gate::new(), Gate::new()];
    gates.iter().for_each(|gate| world.plan.plan("read_feed", Fault::Hold(gate.clone())));
    let mut followers = Vec::new();
    for _ in 0..4 {
        followers.push(world.follow().await);
    }
    let [first, second, third, fourth] = &mut followers[..] else { panic!("four streams") };
    let waits =
        async |follower: &mut EventFollower| timeout(Duration::from_secs(2), follower.next()).await.is_err();
    for follower in [&mut *first, second, third, fourth] {
        assert!(waits(follower).await);
    }
    assert_eq!(world.plan.calls("read_feed"), 2, "two have their turn");
    assert_eq!(world.streams.lag(), 2);
    drop(followers.remove(2));
    let [first, second, fourth] = &mut followers[..] else { panic!("three streams") };
    gates[0].open();
    assert_eq!(seqs_to(first, 2).await, [1, 2]);
    assert_eq!(seqs_to(fourth, 2).await, [1, 2]);
    assert_eq!(world.plan.calls("read_feed"), 3, "the one that has left reads nothing");
    gates[1].open();
    assert_eq!(seqs_to(second, 2).await, [1, 2]);
    assert_eq!(world.streams.lag(), 0);
}

#[tokio::test(start_paused = true)]
async fn batch_of_large_events_is_cut_and_goes_on() {
    let world = World::new().await;
    world.archive(messages(1, 40, 30_000)).await;
    let mut follower = world.follow().await;
    let (mut seen, mut longest) = (0, 0);
    while seen < 40 {
        let text = follower.next().await.unwrap();
        longest = longest.max(text.len());
        for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
            let event: serde_json::Value = serde_json::from_str(data).unwrap();
            seen += 1;
            assert_eq!(event["data"]["seq"], seen);
        }
    }
    // The last event may exceed the limit.
    assert!(longest < 64 * 1024 + 2 * 30_000, "{longest}");
}

#[tokio::test]
async fn key_has_a_share_of_the_places_and_leaves_others_to_others() {
    let World { streams, .. } = World::new().await;
    let take = |key| (0..100).map_while(|_| streams.take_place(key)).collect::<Vec<_>>();
    let ours = take(Some("ours"));
    let theirs = take(Some("theirs"));
    assert_eq!((ours.len(), theirs.len(), take(Some("last")).len()), (16, 16, 0));
    drop(ours);
    assert!(streams.of_keys.lock().get("ours").is_none(), "a key without streams is forgotten");
    let again = take(Some("ours"));
    assert_eq!((again.len(), take(None).len()), (16, 0), "all places are taken");
}

#[tokio::test(start_paused = true)]
async fn what_is_archived_while_a_read_is_answered_comes_without_more_news() {
    let world = World::new().await;
    world.archive(messages(1, 2, 1)).await;
    let gate = Gate::new();
    world.plan.plan("read_feed", Fault::HoldAnswer(gate.clone()));
    let mut follower = world.follow().await;
    let later = async {
        tokio::time::sleep(POLL_INTERVAL * 3).await;
        world.archive(messages(3, 2, 1)).await;
        tokio::time::sleep(POLL_INTERVAL * 3).await;
        gate.open();
    };
    let all = timeout(Duration::from_secs(60), seqs_to(&mut follower, 4));
    assert_eq!(tokio::join!(all, later).0.expect("the stream goes on"), [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn changes_of_the_cluster_come_to_those_that_ask_and_move_no_cursor() {
    let world = World::new().await;
    let run = |name: &str| NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 };
    let (me, events) = (run("n1"), &world.streams.events);
    events.node(&me, NodeChange::Joined(run("n2")));
    let mut none = world.follow().await;
    let mut follower = world.follow_with(vec!["tidegate.node.left", "tidegate.partition.moved"]).await;
    events.node(&me, NodeChange::Draining(run("n2")));
    let moved = NodeChange::Moved { partition: 3, from: run("n2"), to: me.clone() };
    events.node(&me, moved);
    events.node(&me, NodeChange::Left(run("n2")));
    let mut text = String::new();
    while !text.contains("tidegate.node.left\"") {
        text += &follower.next().await.unwrap();
    }
    let kinds: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(kinds, ["tidegate.partition.moved", "tidegate.node.left"], "neither older nor unwanted ones");
    assert!(!text.contains("id: "), "{text}");
    // The feed goes on between them.
    world.archive(messages(1, 2, 1)).await;
    assert_eq!(seqs_to(&mut follower, 2).await, [1, 2]);
    assert_eq!(seqs_to(&mut none, 2).await, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn comment_stands_for_changes_of_the_cluster_that_were_lost() {
    let world = World::new().await;
    let run = |name: &str| NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 };
    let (me, events) = (run("n1"), &world.streams.events);
    let mut follower = world.follow_with(vec!["tidegate.node.lapsed", "tidegate.partition.moved"]).await;
    let moved = |partition| NodeChange::Moved { partition, from: run("n2"), to: me.clone() };
    (0..1_000).for_each(|partition| events.node(&me, moved(partition)));
    events.node(&me, NodeChange::Lapsed(run("n2")));
    let mut text = String::new();
    while !text.contains("event: tidegate.node.lapsed\n") {
        text += &follower.next().await.unwrap();
    }
    let (before, after) = text.split_once(": changes of the cluster were lost\n\n").unwrap();
    assert!(!before.contains("event: ") && after.matches("event: tidegate.partition.moved\n").count() > 99);
}
