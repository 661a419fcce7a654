//! What only a real broker can do: be replaced under a reader, hold several nodes, lose records, be shaped wrongly.

mod apart;
mod bounds;
mod doors;
mod group;

use std::{
    future::{Future as _, poll_fn},
    net::TcpListener,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
    mocking::MockCluster,
    producer::{FutureProducer, FutureRecord},
};
use tidegate::{
    bus::{
        AppendError, Bus, EventSink, KafkaBus, KafkaEvents, NodeEvent, NodeFeed, Ownership, OwnershipEvent,
        ReadError, TopicState, compare_log, ensure_topics, topic_plans,
    },
    config::Kafka,
    metrics,
};

use super::{
    bus::{SMALL, World, records, texts},
    node,
    services::service_text,
    time::eventually_async,
    unique_name, user,
};

/// As long as a client waits for its answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// Settings for topics and a group of their own on the broker of the tests.
pub(super) fn settings() -> Kafka {
    let name = format!("t{}", unique_name());
    Kafka {
        brokers: vec![service_text("kafka", "address")],
        partitions: SMALL.partitions,
        replication: 1,
        topic: format!("{name}.log"),
        node_topic: format!("{name}.node"),
        group: format!("{name}.owners"),
        event_topic: String::new(),
        ..Kafka::default()
    }
}

pub(super) async fn ensure(kafka: &Kafka) -> Vec<TopicState> {
    let plans = topic_plans(kafka, &["me".to_owned()]);
    let states = ensure_topics(kafka, &plans).await.unwrap();
    states.into_iter().map(|(_, state)| state).collect()
}

pub(super) async fn open(kafka: &Kafka) -> KafkaBus {
    KafkaBus::connect(kafka, ANSWER, &metrics::install().0).await.unwrap()
}

/// A bus on fresh topics.
pub(super) async fn world() -> World {
    let kafka = settings();
    assert_eq!(ensure(&kafka).await, [TopicState::Made, TopicState::Made]);
    World { bus: Arc::new(open(&kafka).await), me: node("me", 1) }
}

pub(super) fn admin(kafka: &Kafka) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", kafka.brokers.join(",")).create().unwrap()
}

async fn delete(kafka: &Kafka, topic: &str) {
    let deleted = admin(kafka).delete_topics(&[topic], &AdminOptions::new()).await.unwrap();
    assert!(deleted[0].is_ok(), "{deleted:?}");
}

/// The next event, which comes.
async fn told(ownership: &mut Box<dyn Ownership>) -> Option<OwnershipEvent> {
    tokio::time::timeout(ANSWER * 4, ownership.next()).await.expect("the owner is told")
}

pub(super) async fn heard(feed: &mut Box<dyn NodeFeed>) -> Option<NodeEvent> {
    tokio::time::timeout(ANSWER * 4, feed.next()).await.expect("the node hears")
}

/// Deletes the topic and makes it again: the broker takes its time for the first.
async fn replace(kafka: &Kafka, topic: &str) {
    delete(kafka, topic).await;
    let plans = topic_plans(kafka, &["me".to_owned()]);
    let plan: Vec<_> = plans.into_iter().filter(|plan| plan.name == topic).collect();
    eventually(async || {
        let states = ensure_topics(kafka, &plan).await.ok()?;
        (states[0].1 == TopicState::Made).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_look_at_the_topic_of_the_log_holds_up_nobody_on_its_thread() {
    // Takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let kafka = Kafka { brokers: vec![silent.local_addr().unwrap().to_string()], ..settings() };
    let mut looking = pin!(compare_log(&kafka));
    let first = poll_fn(|context| Poll::Ready(looking.as_mut().poll(context))).await;
    assert!(first.is_pending(), "{first:?}");
}

/// Asks until there is an answer; each time the broker is asked.
pub(super) async fn eventually<T>(ask: impl AsyncFnMut() -> Option<T>) -> T {
    // Each time may take as long as an answer does.
    eventually_async(ANSWER * 12, "the broker's answer", ask).await
}

#[tokio::test]
async fn topics_are_made_once_and_a_wrong_count_is_refused_with_the_cure() {
    let kafka = settings();
    assert_eq!(ensure(&kafka).await, [TopicState::Made, TopicState::Made]);
    assert_eq!(ensure(&kafka).await, [TopicState::There, TopicState::There]);
    let more = Kafka { partitions: 4, ..kafka.clone() };
    let TopicState::Differs(how) = ensure(&more).await.remove(0) else { panic!("it differs") };
    assert!(how.contains("set kafka.partitions = 3"), "{how}");
    let longer = Kafka { retention_ms: kafka.retention_ms + 1_000, ..kafka.clone() };
    let TopicState::Differs(how) = ensure(&longer).await.remove(0) else { panic!("it differs") };
    assert!(how.contains("--add-config retention.ms=604801000"), "{how}");
    let shorter = Kafka { retention_ms: 10_000, ..kafka.clone() };
    assert_eq!(ensure(&shorter).await.remove(0), TopicState::There, "it keeps more");
    let refused = KafkaBus::connect(&more, ANSWER, &metrics::install().0).await.err().unwrap();
    assert!(refused.why.contains("set kafka.partitions = 3"), "{refused}");
    let absent = Kafka { topic: format!("{}.not", kafka.topic), ..kafka.clone() };
    let refused = KafkaBus::connect(&absent, ANSWER, &metrics::install().0).await.err().unwrap();
    assert!(refused.why.contains("tidegate topics ensure"), "{refused}");
    let silent = Kafka { brokers: vec!["127.0.0.1:1".to_owned()], ..kafka };
    let refused = KafkaBus::connect(&silent, ANSWER, &metrics::install().0).await.err().unwrap();
    assert!(refused.why.contains("kafka.brokers"), "{refused}");
}

#[tokio::test]
async fn topics_of_many_ids_are_made_and_looked_at_together_each_with_its_own_answer() {
    let kafka = settings();
    let ids: Vec<String> = (0..110).map(|nth| format!("pod-{nth}")).collect();
    let some = topic_plans(&Kafka { partitions: 2, ..kafka.clone() }, &ids[103..105]);
    ensure_topics(&kafka, &some).await.unwrap();
    // One is named twice, and the log is there with fewer partitions.
    let plans = topic_plans(&kafka, &[&ids[..], &ids[..1]].concat());
    let states = ensure_topics(&kafka, &plans).await.unwrap();
    assert_eq!(states.len(), 111);
    for ((name, state), plan) in states.into_iter().zip(&plans) {
        assert_eq!(name, plan.name);
        match state {
            TopicState::Differs(how) => {
                assert!(name == kafka.topic && how.contains("set kafka.partitions = 2"), "{how}")
            }
            TopicState::There => {
                assert!(["pod-103", "pod-104"].iter().any(|id| name.ends_with(id)), "{name}")
            }
            TopicState::Made => assert!(name != kafka.topic, "{name}"),
        }
    }
    let again = ensure_topics(&kafka, &plans).await.unwrap();
    assert_eq!(again.iter().filter(|(_, state)| *state == TopicState::There).count(), 110);
}

#[tokio::test]
async fn the_topic_of_events_is_made_with_the_others_and_who_lacks_it_is_told_how() {
    let kafka = settings();
    let counted = metrics::install().0;
    assert!(KafkaEvents::connect(&kafka, &counted).await.unwrap().is_none(), "it names none");
    let kafka = Kafka { event_topic: format!("{}.events", kafka.topic), event_partitions: 2, ..kafka };
    let refused = KafkaEvents::connect(&kafka, &counted).await.err().unwrap();
    assert!(
        refused.why.contains("tidegate topics ensure") && refused.why.contains("kafka.event_topic"),
        "{refused}"
    );
    assert_eq!(ensure(&kafka).await, vec![TopicState::Made; 3]);
    let more = Kafka { event_partitions: 3, ..kafka.clone() };
    let TopicState::Differs(how) = ensure(&more).await.remove(2) else { panic!("it differs") };
    assert!(how.contains("kafka.event_partitions says 3: set it to 2"), "{how}");
    let sink = KafkaEvents::connect(&kafka, &counted).await.unwrap().unwrap();
    let events = (0..200).map(|n| (user(["ann", "bob"][n % 2]), format!("{n}").into_bytes())).collect();
    sink.publish(events).await.unwrap();
    let huge = vec![(user("ann"), vec![b'x'; 4 << 20])];
    assert!(matches!(sink.publish(huge).await, Err(AppendError::Rejected(_))));
}

#[tokio::test]
async fn a_log_that_was_deleted_and_made_again_is_another_one() {
    let kafka = settings();
    ensure(&kafka).await;
    let world = World { bus: Arc::new(open(&kafka).await), me: node("me", 1) };
    let _mine = world.own_all().await;
    world.bus.append(0, records(&["a", "b", "c"])).await.unwrap();
    let before = world.bus.bounds(0).await.unwrap();
    assert_eq!(texts(&world.bus.read(0, 0, 9, 99).await.unwrap()).len(), 3);
    let again = open(&kafka).await.bounds(0).await.unwrap();
    assert_eq!(again, before, "whoever asks hears the same id");
    replace(&kafka, &kafka.topic).await;
    // A reader at the end of the old log: its place is not in the new one.
    let error = eventually(async || match world.bus.read(0, 3, 9, 99).await {
        Err(ReadError::OutOfRange(bounds)) => Some(bounds),
        _ => None,
    });
    let now = tokio::time::timeout(ANSWER * 2, error).await.expect("it is seen");
    assert_ne!(now.topic, before.topic);
    assert_eq!((now.first, now.next), (0, 0));
    // And where the place is in the new one, what is read names it.
    let other = open(&kafka).await;
    for text in ["x", "y", "z", "four"] {
        other.append(0, records(&[text])).await.unwrap();
    }
    let read = eventually(async || world.bus.read(0, 3, 9, 99).await.ok()).await;
    assert_eq!(read.bounds.topic, now.topic);
    assert_eq!(texts(&read), [(3, "four".to_owned())]);
}

#[tokio::test]
async fn two_nodes_share_the_partitions_and_take_them_over_by_plan() {
    let kafka = settings();
    ensure(&kafka).await;
    let (one, other) = (open(&kafka).await, open(&kafka).await);
    let mut first = one.join(&node("one", 1)).await.unwrap();
    let mut owned = Vec::new();
    for _ in 0..SMALL.partitions {
        let Some(OwnershipEvent::Assigned(partition)) = told(&mut first).await else {
            panic!("all are the first's")
        };
        owned.push(partition);
    }
    one.append(owned[0], records(&["a"])).await.unwrap();
    let mut second = other.join(&node("other", 1)).await.unwrap();
    let Some(OwnershipEvent::Revoked(asked)) = told(&mut first).await else { panic!("one is asked back") };
    let early = tokio::time::timeout(Duration::from_millis(300), second.next()).await;
    assert!(early.is_err(), "nobody gets it before it is released: {early:?}");
    first.release(asked).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(told(&mut second).await, Some(OwnershipEvent::Assigned(asked)));
    println!("taken over by plan after {:?}", begun.elapsed());
    assert!(matches!(one.read(asked, 0, 9, 9).await, Err(ReadError::NotOwner)));
    first.leave().await;
    while let Some(event) = told(&mut first).await {
        let OwnershipEvent::Revoked(partition) = event else { panic!("{event:?}") };
        first.release(partition).await;
    }
    let mut all = vec![asked];
    while all.len() < SMALL.partitions as usize {
        let Some(OwnershipEvent::Assigned(partition)) = told(&mut second).await else { panic!("the rest") };
        all.push(partition);
    }
    assert_eq!(texts(&other.read(owned[0], 0, 9, 99).await.unwrap()), [(0, "a".to_owned())]);
}

#[tokio::test]
async fn who_does_not_release_in_time_has_lost_it() {
    let kafka = Kafka { revoke_ms: 300, ..settings() };
    ensure(&kafka).await;
    let (one, other) = (open(&kafka).await, open(&kafka).await);
    let mut first = one.join(&node("one", 1)).await.unwrap();
    for _ in 0..SMALL.partitions {
        assert!(matches!(told(&mut first).await, Some(OwnershipEvent::Assigned(_))));
    }
    let mut second = other.join(&node("other", 1)).await.unwrap();
    let Some(OwnershipEvent::Revoked(asked)) = told(&mut first).await else { panic!("one is asked back") };
    assert_eq!(told(&mut first).await, Some(OwnershipEvent::Lost(asked)));
    assert!(matches!(one.read(asked, 0, 9, 9).await, Err(ReadError::NotOwner)));
    assert_eq!(told(&mut second).await, Some(OwnershipEvent::Assigned(asked)));
}

#[tokio::test]
async fn what_is_no_record_of_ours_is_handed_over_and_stops_nothing() {
    let kafka = settings();
    ensure(&kafka).await;
    let world = World { bus: Arc::new(open(&kafka).await), me: node("me", 1) };
    let _mine = world.own_all().await;
    world.bus.append(0, records(&["a"])).await.unwrap();
    let foreign: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", kafka.brokers.join(",")).create().unwrap();
    let empty = FutureRecord::<[u8], [u8]>::to(&kafka.topic).partition(0).key(b"k");
    foreign.send(empty, ANSWER).await.unwrap();
    let noise = FutureRecord::<[u8], [u8]>::to(&kafka.topic).partition(0).payload(&[0xff, 0, 0xfe]);
    foreign.send(noise, ANSWER).await.unwrap();
    world.bus.append(0, records(&["b"])).await.unwrap();
    let mut all = Vec::new();
    while all.len() < 4 {
        all.extend(world.bus.read(0, all.len() as u64, 9, 99).await.unwrap().records);
    }
    let bytes: Vec<&[u8]> = all.iter().map(|record| &record.bytes[..]).collect();
    assert_eq!(bytes, [&b"a"[..], b"", &[0xff, 0, 0xfe], b"b"]);
}

#[tokio::test]
async fn a_node_topic_that_lost_records_says_so() {
    let kafka = settings();
    ensure(&kafka).await;
    let bus = open(&kafka).await;
    let me = node("me", 1);
    let mut feed = bus.consume_node(&me).await.unwrap();
    bus.publish_node(&me, records(&["1"])).await.unwrap();
    assert_eq!(heard(&mut feed).await, Some(NodeEvent::Records(records(&["1"]))));
    replace(&kafka, &kafka.topic_of("me")).await;
    assert_eq!(heard(&mut feed).await, Some(NodeEvent::Gap), "another topic of the same name");
    let after = async {
        bus.publish_node(&me, records(&["2"])).await.unwrap();
        heard(&mut feed).await
    };
    assert_eq!(
        after.await,
        Some(NodeEvent::Records(records(&["2"]))),
        "it goes on at the end of the new one"
    );
}

#[tokio::test]
async fn what_retention_took_away_is_out_of_range() {
    let kafka = settings();
    ensure(&kafka).await;
    let world = World { bus: Arc::new(open(&kafka).await), me: node("me", 1) };
    let _mine = world.own_all().await;
    world.bus.append(0, records(&["a", "b", "c"])).await.unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&kafka.topic, 0, Offset::Offset(2)).unwrap();
    admin(&kafka).delete_records(&list, &AdminOptions::new()).await.unwrap();
    let bounds = world.bus.bounds(0).await.unwrap();
    assert_eq!((bounds.first, bounds.next), (2, 3));
    assert_eq!(world.bus.read(0, 1, 9, 99).await, Err(ReadError::OutOfRange(bounds)));
    assert_eq!(texts(&world.bus.read(0, 2, 9, 99).await.unwrap()), [(2, "c".to_owned())]);
}

/// On a broker of the client library's own, because it can be told to keep silent.
#[tokio::test]
async fn an_append_that_is_not_answered_is_unknown_then_refused_and_all_come_in_order() {
    let mock = MockCluster::new(1).unwrap();
    let kafka = Kafka { brokers: vec![mock.bootstrap_servers()], topic: "log".to_owned(), ..settings() };
    mock.create_topic(&kafka.topic, SMALL.partitions as i32, 1).unwrap();
    // Long enough for a producer's first append, which introduces it to the broker.
    let answer = Duration::from_secs(2);
    let bus = KafkaBus::connect(&kafka, answer, &metrics::install().0).await.unwrap();
    bus.append(0, records(&["a"])).await.unwrap();
    mock.broker_round_trip_time(1, answer * 2).unwrap();
    assert!(matches!(bus.append(0, records(&["b"])).await, Err(AppendError::Unknown(_))));
    assert!(matches!(bus.append(0, records(&["c"])).await, Err(AppendError::Unavailable(_))), "at once");
    mock.broker_round_trip_time(1, Duration::ZERO).unwrap();
    let placed = eventually(async || bus.append(0, records(&["d"])).await.ok()).await;
    assert_eq!(placed.first, 2, "what was unknown is there, what was refused is not");
}
