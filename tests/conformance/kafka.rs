//! Behaviour that needs a real broker: a topic replaced under its reader, several nodes, lost records, wrong topics.

mod auth;
mod bounds;
mod group;
mod node_brokers;

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
    consumer::{BaseConsumer, Consumer as _},
    mocking::MockCluster,
    producer::{FutureProducer, FutureRecord},
};
use tidegate::{
    bus::{
        AppendError, Bus, EventRecord, EventSink, KafkaBus, KafkaEvents, NodeEvent, NodeFeed, Ownership,
        OwnershipEvent, ReadError, TopicState, compare_log, ensure_topics, topic_plans,
    },
    config::KafkaConfig,
    metrics,
};

use super::{
    bus::{SMALL, World, records, texts},
    node,
    services::service_text,
    time::eventually_async,
    unique_name,
};

/// Time a client waits for its reply.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings for topics and a group of their own on the broker of the tests.
pub(super) fn settings() -> KafkaConfig {
    let name = format!("t{}", unique_name());
    KafkaConfig {
        brokers: vec![service_text("kafka", "address")],
        partitions: SMALL.partitions,
        replication: 1,
        topic: format!("{name}.log"),
        node_topic: format!("{name}.node"),
        group: format!("{name}.owners"),
        event_topic: String::new(),
        ..KafkaConfig::default()
    }
}

pub(super) async fn ensure(kafka: &KafkaConfig) -> Vec<TopicState> {
    let plans = topic_plans(kafka, &["me".to_owned()]);
    let states = ensure_topics(kafka, &plans).await.unwrap();
    states.into_iter().map(|(_, state)| state).collect()
}

pub(super) async fn open(kafka: &KafkaConfig) -> KafkaBus {
    KafkaBus::connect(kafka, REPLY_TIMEOUT, &metrics::install().0).await.unwrap()
}

/// A bus on fresh topics.
pub(super) async fn world() -> World {
    let kafka = settings();
    assert_eq!(ensure(&kafka).await, [TopicState::Made, TopicState::Made]);
    World { bus: Arc::new(open(&kafka).await), me: node("me", 1) }
}

pub(super) fn admin(kafka: &KafkaConfig) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", kafka.brokers.join(",")).create().unwrap()
}

async fn delete(kafka: &KafkaConfig, topic: &str) {
    let deleted = admin(kafka).delete_topics(&[topic], &AdminOptions::new()).await.unwrap();
    assert!(deleted[0].is_ok(), "{deleted:?}");
}

/// Waits for the next ownership event.
async fn next_ownership_event(ownership: &mut Box<dyn Ownership>) -> Option<OwnershipEvent> {
    tokio::time::timeout(REPLY_TIMEOUT * 4, ownership.next()).await.expect("an ownership event")
}

pub(super) async fn next_node_event(feed: &mut Box<dyn NodeFeed>) -> Option<NodeEvent> {
    tokio::time::timeout(REPLY_TIMEOUT * 4, feed.next()).await.expect("a node event")
}

/// Deletes the topic and creates it again: the broker takes its time for the deletion.
async fn replace(kafka: &KafkaConfig, topic: &str) {
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
async fn log_topic_check_does_not_block_its_thread() {
    // Accepts connections, and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let kafka = KafkaConfig { brokers: vec![silent.local_addr().unwrap().to_string()], ..settings() };
    let mut looking = pin!(compare_log(&kafka));
    let first = poll_fn(|context| Poll::Ready(looking.as_mut().poll(context))).await;
    assert!(first.is_pending(), "{first:?}");
}

/// Polls until there is a result; each poll asks the broker.
pub(super) async fn eventually<T>(ask: impl AsyncFnMut() -> Option<T>) -> T {
    // Each attempt may take as long as a reply.
    eventually_async(REPLY_TIMEOUT * 12, "the broker's answer", ask).await
}

#[tokio::test]
async fn topics_are_created_once_and_a_wrong_count_is_refused() {
    let kafka = settings();
    assert_eq!(ensure(&kafka).await, [TopicState::Made, TopicState::Made]);
    assert_eq!(ensure(&kafka).await, [TopicState::There, TopicState::There]);
    let more = KafkaConfig { partitions: 4, ..kafka.clone() };
    let TopicState::Differs(how) = ensure(&more).await.remove(0) else { panic!("it differs") };
    assert!(how.contains("set kafka.partitions = 3"), "{how}");
    let longer = KafkaConfig { retention_ms: kafka.retention_ms + 1_000, ..kafka.clone() };
    let TopicState::Differs(how) = ensure(&longer).await.remove(0) else { panic!("it differs") };
    assert!(how.contains("--add-config retention.ms=604801000"), "{how}");
    let shorter = KafkaConfig { retention_ms: 10_000, ..kafka.clone() };
    assert_eq!(ensure(&shorter).await.remove(0), TopicState::There, "a longer retention is accepted");
    let refused = KafkaBus::connect(&more, REPLY_TIMEOUT, &metrics::install().0).await.err().unwrap();
    assert!(refused.why.contains("set kafka.partitions = 3"), "{refused}");
    let absent = KafkaConfig { topic: format!("{}.not", kafka.topic), ..kafka.clone() };
    let refused = KafkaBus::connect(&absent, REPLY_TIMEOUT, &metrics::install().0).await.err().unwrap();
    assert!(refused.why.contains("tidegate topics ensure"), "{refused}");
    let silent = KafkaConfig { brokers: vec!["127.0.0.1:1".to_owned()], ..kafka };
    let refused = KafkaBus::connect(&silent, REPLY_TIMEOUT, &metrics::install().0).await.err().unwrap();
    assert!(refused.why.contains("kafka.brokers"), "{refused}");
}

#[tokio::test]
async fn topics_of_many_ids_are_ensured_in_one_request() {
    let kafka = settings();
    let ids: Vec<String> = (0..110).map(|nth| format!("pod-{nth}")).collect();
    let some = topic_plans(&KafkaConfig { partitions: 2, ..kafka.clone() }, &ids[103..105]);
    ensure_topics(&kafka, &some).await.unwrap();
    // One id is named twice, and the log exists with fewer partitions.
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
async fn missing_event_topic_is_refused_with_its_cure() {
    let kafka = settings();
    let counted = metrics::install().0;
    assert!(KafkaEvents::connect(&kafka, &counted).await.unwrap().is_none(), "no topic is configured");
    let kafka = KafkaConfig { event_topic: format!("{}.events", kafka.topic), event_partitions: 2, ..kafka };
    let refused = KafkaEvents::connect(&kafka, &counted).await.err().unwrap();
    assert!(
        refused.why.contains("tidegate topics ensure") && refused.why.contains("kafka.event_topic"),
        "{refused}"
    );
    assert_eq!(ensure(&kafka).await, vec![TopicState::Made; 3]);
    let more = KafkaConfig { event_partitions: 3, ..kafka.clone() };
    let TopicState::Differs(how) = ensure(&more).await.remove(2) else { panic!("it differs") };
    assert!(how.contains("kafka.event_partitions says 3: set it to 2"), "{how}");
    let sink = KafkaEvents::connect(&kafka, &counted).await.unwrap().unwrap();
    let event = |key: &str, json: Vec<u8>| EventRecord { key: key.to_owned(), partition: None, json };
    let events = (0..200).map(|n| event(["ann", "bob"][n % 2], format!("{n}").into_bytes())).collect();
    sink.publish(events).await.unwrap();
    let huge = vec![event("ann", vec![b'x'; 4 << 20])];
    assert!(matches!(sink.publish(huge).await, Err(AppendError::Rejected(_))));
}

#[tokio::test]
async fn topic_of_messages_has_as_many_partitions_as_the_log_or_is_refused() {
    let counted = metrics::install().0;
    let kafka = settings();
    assert!(KafkaEvents::connect_messages(&kafka, &counted).await.unwrap().is_none(), "none is configured");
    let kafka = KafkaConfig { message_topic: format!("{}.messages", kafka.topic), ..kafka };
    let refused = KafkaEvents::connect_messages(&kafka, &counted).await.err().unwrap();
    assert!(refused.is_unavailable && refused.why.contains("kafka.message_topic"), "{refused}");
    assert_eq!(ensure(&kafka).await, vec![TopicState::Made; 3]);
    let more = KafkaConfig { partitions: SMALL.partitions + 1, ..kafka.clone() };
    let refused = KafkaEvents::connect_messages(&more, &counted).await.err().unwrap();
    assert!(!refused.is_unavailable && refused.why.contains("--alter"), "{refused}");
    let TopicState::Differs(how) = ensure(&more).await.remove(2) else { panic!("it differs") };
    assert!(how.contains("fewer than the 4 of the log"), "{how}");
    let shorter = KafkaConfig { message_retention_ms: 60_000, ..kafka.clone() };
    let TopicState::Differs(how) = ensure(&shorter).await.remove(2) else { panic!("it keeps more") };
    assert!(how.contains("--add-config retention.ms=60000,segment.ms=60000"), "{how}");
    let sink = KafkaEvents::connect_messages(&kafka, &counted).await.unwrap().unwrap();
    // Content of control characters, as JSON: the largest that a record of the log can have.
    let json = vec![b'x'; 6 * kafka.record_bytes_max];
    for (partition, json) in [(0, json), (1, b"1".to_vec())] {
        let event = EventRecord { key: "g:a".to_owned(), partition: Some(partition), json };
        sink.publish(vec![event]).await.unwrap();
    }
    for partition in 0..2 {
        let topic = kafka.message_topic.clone();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", kafka.brokers.join(","));
        let consumer: BaseConsumer = config.create().unwrap();
        let (low, high) = tokio::task::spawn_blocking(move || {
            consumer.fetch_watermarks(&topic, partition, REPLY_TIMEOUT).unwrap()
        })
        .await
        .unwrap();
        assert_eq!((low, high), (0, 1), "partition {partition}");
    }
    let small = KafkaConfig { append_bytes_max: 2 << 20, record_bytes_max: 128 << 10, ..kafka };
    let sink = KafkaEvents::connect_messages(&small, &counted).await.unwrap().unwrap();
    let event = |_| EventRecord { key: "g:a".to_owned(), partition: Some(2), json: vec![b'x'; 512 << 10] };
    // More than the producer holds: what does not fit follows what is confirmed.
    sink.publish((0..24).map(event).collect()).await.unwrap();
}

#[tokio::test]
async fn recreated_log_is_another_log() {
    let kafka = settings();
    ensure(&kafka).await;
    let world = World { bus: Arc::new(open(&kafka).await), me: node("me", 1) };
    let _mine = world.own_all().await;
    world.bus.append(0, records(&["a", "b", "c"])).await.unwrap();
    let before = world.bus.bounds(0).await.unwrap();
    assert_eq!(texts(&world.bus.read(0, 0, 9, 99).await.unwrap()).len(), 3);
    let again = open(&kafka).await.bounds(0).await.unwrap();
    assert_eq!(again, before, "every client gets the same id");
    replace(&kafka, &kafka.topic).await;
    // A reader at the end of the old log: its position is not in the new one.
    let error = eventually(async || match world.bus.read(0, 3, 9, 99).await {
        Err(ReadError::OutOfRange(bounds)) => Some(bounds),
        _ => None,
    });
    let now = tokio::time::timeout(REPLY_TIMEOUT * 2, error).await.expect("the read fails in time");
    assert_ne!(now.topic, before.topic);
    assert_eq!((now.first, now.next), (0, 0));
    // If the new log has that position, the records read name it.
    let other = open(&kafka).await;
    for text in ["x", "y", "z", "four"] {
        other.append(0, records(&[text])).await.unwrap();
    }
    let read = eventually(async || world.bus.read(0, 3, 9, 99).await.ok()).await;
    assert_eq!(read.bounds.topic, now.topic);
    assert_eq!(texts(&read), [(3, "four".to_owned())]);
}

#[tokio::test]
async fn two_nodes_share_partitions_and_hand_them_over() {
    let kafka = settings();
    ensure(&kafka).await;
    let (one, other) = (open(&kafka).await, open(&kafka).await);
    let mut first = one.join(&node("one", 1)).await.unwrap();
    let mut owned = Vec::new();
    for _ in 0..SMALL.partitions {
        let Some(OwnershipEvent::Assigned(partition)) = next_ownership_event(&mut first).await else {
            panic!("the first node owns all partitions")
        };
        owned.push(partition);
    }
    one.append(owned[0], records(&["a"])).await.unwrap();
    let mut second = other.join(&node("other", 1)).await.unwrap();
    let Some(OwnershipEvent::Revoked(asked)) = next_ownership_event(&mut first).await else {
        panic!("one partition is revoked")
    };
    let early = tokio::time::timeout(Duration::from_millis(300), second.next()).await;
    assert!(early.is_err(), "no other node gets it before its release: {early:?}");
    first.release(asked).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(next_ownership_event(&mut second).await, Some(OwnershipEvent::Assigned(asked)));
    println!("taken over by plan after {:?}", begun.elapsed());
    assert!(matches!(one.read(asked, 0, 9, 9).await, Err(ReadError::NotOwner)));
    first.leave().await;
    while let Some(event) = next_ownership_event(&mut first).await {
        let OwnershipEvent::Revoked(partition) = event else { panic!("{event:?}") };
        first.release(partition).await;
    }
    let mut all = vec![asked];
    while all.len() < SMALL.partitions as usize {
        let Some(OwnershipEvent::Assigned(partition)) = next_ownership_event(&mut second).await else {
            panic!("the rest")
        };
        all.push(partition);
    }
    assert_eq!(texts(&other.read(owned[0], 0, 9, 99).await.unwrap()), [(0, "a".to_owned())]);
}

#[tokio::test]
async fn partition_not_released_in_time_is_lost() {
    let kafka = KafkaConfig { revoke_ms: 300, ..settings() };
    ensure(&kafka).await;
    let (one, other) = (open(&kafka).await, open(&kafka).await);
    let mut first = one.join(&node("one", 1)).await.unwrap();
    for _ in 0..SMALL.partitions {
        assert!(matches!(next_ownership_event(&mut first).await, Some(OwnershipEvent::Assigned(_))));
    }
    let mut second = other.join(&node("other", 1)).await.unwrap();
    let Some(OwnershipEvent::Revoked(asked)) = next_ownership_event(&mut first).await else {
        panic!("one partition is revoked")
    };
    assert_eq!(next_ownership_event(&mut first).await, Some(OwnershipEvent::Lost(asked)));
    assert!(matches!(one.read(asked, 0, 9, 9).await, Err(ReadError::NotOwner)));
    assert_eq!(next_ownership_event(&mut second).await, Some(OwnershipEvent::Assigned(asked)));
}

#[tokio::test]
async fn foreign_record_is_returned_and_stops_no_read() {
    let kafka = settings();
    ensure(&kafka).await;
    let world = World { bus: Arc::new(open(&kafka).await), me: node("me", 1) };
    let _mine = world.own_all().await;
    world.bus.append(0, records(&["a"])).await.unwrap();
    let foreign: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", kafka.brokers.join(",")).create().unwrap();
    let empty = FutureRecord::<[u8], [u8]>::to(&kafka.topic).partition(0).key(b"k");
    foreign.send(empty, REPLY_TIMEOUT).await.unwrap();
    let noise = FutureRecord::<[u8], [u8]>::to(&kafka.topic).partition(0).payload(&[0xff, 0, 0xfe]);
    foreign.send(noise, REPLY_TIMEOUT).await.unwrap();
    world.bus.append(0, records(&["b"])).await.unwrap();
    let mut all = Vec::new();
    while all.len() < 4 {
        all.extend(world.bus.read(0, all.len() as u64, 9, 99).await.unwrap().records);
    }
    let bytes: Vec<&[u8]> = all.iter().map(|record| &record.bytes[..]).collect();
    assert_eq!(bytes, [&b"a"[..], b"", &[0xff, 0, 0xfe], b"b"]);
}

#[tokio::test]
async fn node_topic_that_lost_records_reports_a_gap() {
    let kafka = settings();
    ensure(&kafka).await;
    let bus = open(&kafka).await;
    let me = node("me", 1);
    let mut feed = bus.consume_node(&me).await.unwrap();
    bus.publish_node(&me, records(&["1"])).await.unwrap();
    assert_eq!(next_node_event(&mut feed).await, Some(NodeEvent::Records(records(&["1"]))));
    replace(&kafka, &kafka.topic_of("me")).await;
    assert_eq!(next_node_event(&mut feed).await, Some(NodeEvent::Gap), "another topic of the same name");
    // A reader that saw the topic both without and with its successor reports a gap for each, and begins at the end.
    let mut gaps = 1;
    let after = loop {
        bus.publish_node(&me, records(&["2"])).await.unwrap();
        match next_node_event(&mut feed).await {
            Some(NodeEvent::Gap) => gaps += 1,
            other => break other,
        }
        assert!(gaps <= 2, "{gaps} gaps");
    };
    assert_eq!(
        after,
        Some(NodeEvent::Records(records(&["2"]))),
        "the feed continues at the end of the new topic"
    );
}

#[tokio::test]
async fn offset_removed_by_retention_is_out_of_range() {
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

/// On a broker of the client library, because it can be silenced.
#[tokio::test]
async fn unconfirmed_append_is_unknown_then_refused_in_order() {
    let mock = MockCluster::new(1).unwrap();
    let kafka =
        KafkaConfig { brokers: vec![mock.bootstrap_servers()], topic: "log".to_owned(), ..settings() };
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
    assert_eq!(placed.first, 2, "the unknown record is in the log, the refused one is not");
}
