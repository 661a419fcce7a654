//! Tests of the topic of messages: order, gaps and size, with a topic that confirms, fails, or keeps what it did not confirm.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::Value;
use tidegate_protocol::{
    id::{MsgId, UserId},
    record::{MemberAction, MemberChange},
};

use super::{world::PARTITION, *};
use crate::{
    bus::{AppendError, EventRecord, EventSink},
    metrics,
    webhooks::topic::{TopicContents, TopicFigures, TopicReceiver, plan},
};

/// Topic that may fail by a seed, with and without having what it does not confirm.
struct FlakyTopic {
    records: Mutex<Vec<EventRecord>>,
    rng: Mutex<StdRng>,
    failures_percent: AtomicU64,
    bytes_max: AtomicU64,
    delay_ms: AtomicU64,
    /// Conversations with an event that is neither confirmed nor refused.
    open: Mutex<BTreeSet<String>>,
    has_overtaken: AtomicBool,
}

impl FlakyTopic {
    fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            records: Mutex::default(),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            failures_percent: AtomicU64::new(0),
            bytes_max: AtomicU64::new(u64::MAX),
            delay_ms: AtomicU64::new(0),
            open: Mutex::default(),
            has_overtaken: AtomicBool::new(false),
        })
    }

    fn draw(&self) -> u64 {
        self.rng.lock().random_range(0..100)
    }

    fn events(&self) -> Vec<Value> {
        self.records.lock().iter().map(|it| serde_json::from_slice(&it.json).unwrap()).collect()
    }

    fn ids(&self) -> Vec<String> {
        self.events().iter().map(|it| it["id"].as_str().unwrap().to_owned()).collect()
    }

    fn plan(self: &Arc<Self>) -> WebhookPlan {
        self.plan_of(TopicContents::messages())
    }

    fn plan_of(self: &Arc<Self>, contents: TopicContents) -> WebhookPlan {
        plan(self.receiver(), contents).unwrap()
    }

    fn receiver(self: &Arc<Self>) -> TopicReceiver {
        TopicReceiver {
            sink: Arc::clone(self) as Arc<dyn EventSink>,
            source: "/tidegate/log".to_owned(),
            partitions: Some(4),
            figures: TopicFigures::of_messages(&metrics::install().0),
        }
    }
}

#[async_trait]
impl EventSink for FlakyTopic {
    async fn publish(&self, events: Vec<EventRecord>) -> Result<(), AppendError> {
        let keys: Vec<String> = events.iter().map(|it| it.key.clone()).collect();
        if keys.iter().any(|key| !self.open.lock().insert(key.clone())) {
            self.has_overtaken.store(true, SeqCst);
        }
        world::pass_time(Duration::from_millis(self.draw() % 20 + self.delay_ms.load(SeqCst))).await;
        self.open.lock().retain(|key| !keys.contains(key));
        if events.iter().any(|it| it.json.len() as u64 > self.bytes_max.load(SeqCst)) {
            return Err(AppendError::Rejected("too large".to_owned()));
        }
        if self.draw() >= self.failures_percent.load(SeqCst) {
            self.records.lock().extend(events);
            return Ok(());
        }
        // Each may be there all the same, also the later ones without the earlier ones.
        let taken: Vec<EventRecord> = events.into_iter().filter(|_| self.draw() < 50).collect();
        self.records.lock().extend(taken);
        Err(AppendError::Unknown("not confirmed".to_owned()))
    }
}

/// Checks that the first events of each conversation come in order, without a hole.
fn check_order(topic: &FlakyTopic, seqs: &BTreeMap<&str, u64>) {
    let mut up_to = BTreeMap::<String, u64>::new();
    for event in topic.events() {
        let seq = event["data"]["seq"].as_u64().unwrap();
        let last = up_to.entry(event["subject"].as_str().unwrap().to_owned()).or_default();
        assert!(seq <= *last + 1, "{event} before {}", *last + 1);
        *last = seq.max(*last);
    }
    let expected: BTreeMap<String, u64> = seqs.iter().map(|(key, seq)| ((*key).to_owned(), *seq)).collect();
    assert_eq!(up_to, expected, "nothing is missing");
}

#[tokio::test(start_paused = true)]
async fn events_reach_the_topic_in_order_through_failures_and_crashes() {
    for seed in 0..4 {
        let (mut world, topic) = (World::new().await, FlakyTopic::new(seed));
        topic.failures_percent.store(30, SeqCst);
        let mut seqs = BTreeMap::new();
        for _ in 0..10 {
            world.start_with(topic.plan());
            for _ in 0..5 {
                let keys = ["g:a", "g:a", "g:b", "g:a", "g:c"];
                keys.iter().for_each(|key| *seqs.entry(*key).or_default() += 1);
                world.messages(&keys).await;
                pass(topic.draw() % 4).await;
            }
            if topic.draw() < 50 {
                world.kill();
                world.take_over().await;
                world.believed = world.fence;
            } else {
                world.own(true);
                pass(3).await;
                world.kill();
                world.take_over().await;
                world.believed = world.fence;
            }
            // What an end cut off is no longer open.
            topic.open.lock().clear();
        }
        topic.failures_percent.store(0, SeqCst);
        world.start_with(topic.plan());
        pass(30).await;
        assert_eq!((world.shown().behind, world.shown().oldest_ms), (0, None), "seed {seed}");
        assert!(!topic.has_overtaken.load(SeqCst), "an event waits for the earlier one of its conversation");
        check_order(&topic, &seqs);
        let partition = |key: &str| {
            let records = topic.records.lock();
            records.iter().filter(|it| it.key == key).map(|it| it.partition).collect::<BTreeSet<_>>()
        };
        let of_a = crate::bus::partition_of(&ConversationId::parse("g:a").unwrap(), 4);
        assert_eq!(partition("g:a"), BTreeSet::from([Some(of_a)]), "that of the log");
    }
}

#[tokio::test(start_paused = true)]
async fn topic_that_is_away_sets_nothing_aside_and_is_tried_each_second() {
    let (mut world, topic) = (World::new().await, FlakyTopic::new(1));
    topic.failures_percent.store(100, SeqCst);
    world.start_with(topic.plan());
    world.messages(&["g:a", "g:b"]).await;
    pass(3_600).await;
    assert_eq!((world.shown().parked, world.shown().aside, world.shown().behind), (0, 0, 2));
    assert_eq!(world.shown().oldest_ms, Some(world::BEGIN_MS));
    topic.records.lock().clear();
    topic.failures_percent.store(0, SeqCst);
    pass(2).await;
    assert_eq!(topic.ids().len(), 2, "no growing delay");
    assert_eq!(world.shown().behind, 0);
}

#[tokio::test(start_paused = true)]
async fn gap_of_the_feed_is_an_event_before_what_follows_it() {
    let (mut world, topic) = (World::new().await, FlakyTopic::new(2));
    world.start_with(topic.plan());
    world.messages(&["g:a"]).await;
    pass(20).await;
    world.kill();
    for _ in 0..6 {
        world.messages(&["g:a"]).await;
    }
    world.trim_before(world::BEGIN_MS + 9_000).await;
    topic.failures_percent.store(100, SeqCst);
    world.start_with(topic.plan());
    pass(10).await;
    assert!(topic.ids()[1..].iter().all(|id| id.starts_with("gap/")), "{:?}", topic.ids());
    topic.records.lock().truncate(1);
    topic.failures_percent.store(0, SeqCst);
    topic.delay_ms.store(3_000, SeqCst);
    pass(6).await;
    assert!(topic.ids().len() > 1, "a slow confirmation is awaited");
    topic.delay_ms.store(0, SeqCst);
    pass(10).await;
    let ids = topic.ids();
    assert!(ids[1].starts_with("gap/0/2-"), "{ids:?}");
    let gap = topic.events()[1].clone();
    assert_eq!((gap["type"].as_str(), gap["data"]["first"].as_u64()), (Some("tidegate.feed.gap"), Some(2)));
    let next = gap["data"]["last"].as_u64().unwrap() + 1;
    assert_eq!(ids[2..], (next..=7).map(|seq| format!("g:a/{seq}")).collect::<Vec<_>>());
    assert_eq!(topic.records.lock()[1].partition, Some(PARTITION));
}

#[tokio::test(start_paused = true)]
async fn event_too_large_for_the_topic_goes_without_its_content() {
    let (mut world, topic) = (World::new().await, FlakyTopic::new(3));
    topic.bytes_max.store(600, SeqCst);
    let long = tidegate_protocol::content::Content::text("x".repeat(1_000));
    let rows = vec![world.message("g:a"), world.message_of("g:b", "ann", long), world.message("g:b")];
    world.archive(rows, |_| {}).await;
    world.start_with(topic.plan());
    pass(5).await;
    let events = topic.events();
    let data = |id: &str| events.iter().find(|it| it["id"] == id).unwrap()["data"].clone();
    assert_eq!(data("g:a/1")["content"]["text"], "hi");
    assert_eq!((data("g:b/1")["gone"].as_str(), data("g:b/1").get("content")), (Some("oversized"), None));
    assert_eq!(data("g:b/2")["content"]["text"], "hi");
    assert_eq!(world.shown().behind, 0);
}

#[tokio::test(start_paused = true)]
async fn event_that_fits_in_no_form_holds_no_later_one() {
    for (bytes_max, wanted) in [(430, vec!["g:a/1", "g:a/2", "g:a/3"]), (10, Vec::new())] {
        let (mut world, topic) = (World::new().await, FlakyTopic::new(5));
        let long = tidegate_protocol::content::Content::text("x".repeat(1_000));
        let message = world.message_of("g:a", "ann", long);
        let users = (0..100).map(|nth| UserId::new(&format!("user-{nth}")).unwrap()).collect();
        let joined = world.row("g:a", |conversation| {
            Body::Member(MemberChange {
                conversation,
                action: MemberAction::Join,
                users,
                role: None,
                by: None,
                settings: Default::default(),
                request_id: MsgId::new("r").unwrap(),
            })
        });
        let rows = vec![message, joined, world.message("g:a")];
        world.archive(rows, |_| {}).await;
        topic.bytes_max.store(bytes_max, SeqCst);
        world.start_with(topic.plan());
        pass(5).await;
        assert_eq!((topic.ids(), world.shown().behind), (wanted.into_iter().map(str::to_owned).collect(), 0));
        let changed = topic.events().into_iter().find(|it| it["id"] == "g:a/2");
        if let Some(changed) = changed {
            let data = serde_json::json!({"conversation": "g:a", "seq": 2, "gone": "oversized"});
            assert_eq!((&changed["data"], changed["type"].as_str()), (&data, Some("tidegate.member.joined")));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn topic_of_changes_has_no_messages_and_begins_now() {
    let (mut world, topic) = (World::new().await, FlakyTopic::new(4));
    let change = |world: &mut World, action, user: &str| {
        let user = UserId::new(user).unwrap();
        world.row("g:a", |conversation| {
            Body::Member(MemberChange {
                conversation,
                action,
                users: vec![user],
                role: None,
                by: None,
                settings: Default::default(),
                request_id: MsgId::new("r").unwrap(),
            })
        })
    };
    let created = change(&mut world, MemberAction::Create, "ann");
    world.archive(vec![created], |_| {}).await;
    world.start_with(topic.plan_of(TopicContents::changes().unwrap()));
    pass(1).await;
    let joined = change(&mut world, MemberAction::Join, "bob");
    let said = world.message("g:a");
    let left = change(&mut world, MemberAction::Leave, "bob");
    world.archive(vec![joined, said, left], |_| {}).await;
    pass(1).await;
    let kinds: Vec<String> =
        topic.events().iter().map(|it| it["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["tidegate.member.joined", "tidegate.member.left"]);
    assert_eq!(topic.events()[0]["data"]["users"], serde_json::json!(["bob"]));
    pass(20).await;
    assert_eq!(world.shown().behind, 0, "messages are passed");
}
