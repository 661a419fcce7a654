//! Node topics on brokers of their own, and a node topic that lost unread records.

use std::{net::SocketAddr, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::AdminOptions,
    consumer::{BaseConsumer, Consumer as _},
};
use tidegate::{
    bus::{Bus, KafkaBus, NodeEvent, TopicState},
    config::KafkaConfig,
    metrics,
    routes::TopicLag,
};

use crate::{
    bus::{World, records, texts},
    kafka::{REPLY_TIMEOUT, admin, ensure, eventually, next_node_event, open, settings},
    node,
    own_kafka::OwnKafka,
};

/// Longer than any broker freezes here: a call that waits for a frozen broker gets its reply afterwards.
const LONG_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the topics of a broker, except its internal ones.
fn topics_on(broker: SocketAddr) -> Vec<String> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker.to_string()).set("group.id", "none");
    let client: BaseConsumer = config.create().unwrap();
    let metadata = client.fetch_metadata(None, LONG_TIMEOUT).unwrap();
    let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
    names.filter(|name| !name.starts_with("__")).collect()
}

#[tokio::test]
async fn one_frozen_kafka_does_not_affect_the_other() {
    let starting = [(); 2].map(|()| thread::spawn(OwnKafka::start));
    let [log, nodes] = starting.map(|starting| starting.join().unwrap());
    let kafka = KafkaConfig {
        brokers: vec![log.address().to_string()],
        node_brokers: vec![nodes.address().to_string()],
        session_ms: 2 * LONG_TIMEOUT.as_millis() as u64,
        delivery_ms: 2 * LONG_TIMEOUT.as_millis() as u64,
        ..settings()
    };
    assert_eq!(ensure(&kafka).await, [TopicState::Made, TopicState::Made]);
    assert_eq!(topics_on(log.address()), [kafka.topic.as_str()]);
    assert_eq!(topics_on(nodes.address()), [kafka.topic_of("me")]);
    let bus = Arc::new(KafkaBus::connect(&kafka, LONG_TIMEOUT, &metrics::install().0).await.unwrap());
    let world = World { bus, me: node("me", 1) };
    let _mine = world.own_all().await;
    let World { bus, me } = &world;
    bus.append(0, records(&["a"])).await.unwrap();

    log.freeze(true);
    let mut feed = bus.consume_node(me).await.unwrap();
    let appending = tokio::spawn({
        let bus = Arc::clone(bus);
        async move { bus.append(0, records(&["b"])).await }
    });
    bus.publish_node(me, records(&["1"])).await.unwrap();
    assert_eq!(next_node_event(&mut feed).await, Some(NodeEvent::Records(records(&["1"]))));
    assert!(!appending.is_finished(), "its broker is frozen");
    log.freeze(false);
    assert_eq!(appending.await.unwrap().unwrap().first, 1);

    nodes.freeze(true);
    let publishing = tokio::spawn({
        let (bus, me) = (Arc::clone(bus), me.clone());
        async move { bus.publish_node(&me, records(&["2"])).await }
    });
    assert_eq!(bus.append(0, records(&["c"])).await.unwrap().first, 2);
    let mut read = Vec::new();
    while read.len() < 3 {
        read.extend(texts(&bus.read(0, read.len() as u64, 9, 99).await.unwrap()));
    }
    assert_eq!(read, [(0, "a".to_owned()), (1, "b".to_owned()), (2, "c".to_owned())]);
    assert_eq!(bus.bounds(0).await.unwrap().next, 3);
    assert!(!publishing.is_finished(), "its broker is frozen");
    // The end of its topic is unknown.
    eventually(async || bus.node_lag().is_none().then_some(())).await;
    nodes.freeze(false);
    publishing.await.unwrap().unwrap();
    assert_eq!(next_node_event(&mut feed).await, Some(NodeEvent::Records(records(&["2"]))));
    eventually(async || bus.node_lag()).await;

    bus.append(0, records(&["d"])).await.unwrap();
    bus.publish_node(me, records(&["3"])).await.unwrap();
    assert_eq!(next_node_event(&mut feed).await, Some(NodeEvent::Records(records(&["3"]))));
    assert_eq!(texts(&bus.read(0, 3, 9, 99).await.unwrap()), [(3, "d".to_owned())]);
    no_topic_is_created_implicitly(&world, &kafka, [&log, &nodes]).await;
}

/// These brokers create any requested topic, but none is requested.
async fn no_topic_is_created_implicitly(world: &World, kafka: &KafkaConfig, [log, nodes]: [&OwnKafka; 2]) {
    let World { bus, me } = world;
    let nobody = node("nobody", 1);
    bus.publish_node(&nobody, records(&["x"])).await.unwrap();
    let refused = bus.consume_node(&nobody).await.err().expect("a missing topic is refused").to_string();
    assert!(refused.contains("tidegate topics ensure --node"), "{refused}");
    let elsewhere = KafkaConfig { topic: format!("{}-2", kafka.topic), ..kafka.clone() };
    assert!(KafkaBus::connect(&elsewhere, LONG_TIMEOUT, &metrics::install().0).await.is_err());
    assert_eq!(topics_on(log.address()), [kafka.topic.as_str()]);
    assert_eq!(topics_on(nodes.address()), [kafka.topic_of("me")]);
    let there = KafkaConfig { brokers: kafka.node_brokers.clone(), ..kafka.clone() };
    let gone = admin(&there).delete_topics(&[&kafka.topic_of("me")], &AdminOptions::new()).await.unwrap();
    assert!(gone[0].is_ok(), "{gone:?}");
    eventually(async || topics_on(nodes.address()).is_empty().then_some(())).await;
    // The producer may have its metadata from before, and finds it deleted.
    bus.publish_node(me, records(&["4"])).await.ok();
    assert_eq!(topics_on(nodes.address()), [""; 0]);
}

/// Waits until the node lags by that many records.
async fn is_behind(bus: &KafkaBus, records: u64) -> TopicLag {
    eventually(async || bus.node_lag().filter(|lag| lag.behind() == records)).await
}

#[tokio::test]
async fn node_lag_counts_only_its_own_unfinished_records() {
    let kafka = settings();
    ensure(&kafka).await;
    let (bus, me) = (open(&kafka).await, node("me", 1));
    assert_eq!(bus.node_lag(), None, "the node reads no topic yet");
    // Records from before its start do not count.
    bus.publish_node(&me, records(&["early"])).await.unwrap();
    let mut feed = bus.consume_node(&me).await.unwrap();
    assert_eq!(bus.node_lag(), Some(TopicLag { position: 1, end: 1, behind_ms: 0 }));
    bus.publish_node(&me, records(&["a", "b"])).await.unwrap();
    assert_eq!(is_behind(&bus, 2).await.position, 1);
    let waiting = eventually(async || bus.node_lag().filter(|lag| lag.behind_ms > 0)).await;
    assert_eq!((waiting.position, waiting.end), (1, 3));
    let mut taken = 0;
    while taken < 2 {
        let given = match next_node_event(&mut feed).await {
            Some(NodeEvent::Records(records)) => records.len() as u64,
            other => panic!("{other:?}"),
        };
        // The node has received the last batch, and has not finished it.
        assert!(bus.node_lag().is_some_and(|lag| lag.position == 1 + taken), "{:?}", bus.node_lag());
        taken += given;
    }
    assert!(tokio::time::timeout(Duration::ZERO, feed.next()).await.is_err(), "the next batch is requested");
    assert_eq!(is_behind(&bus, 0).await.position, 3);
    // Records for a later run of the node.
    bus.publish_node(&node("me", 2), records(&["x", "y", "z"])).await.unwrap();
    let past = eventually(async || bus.node_lag().filter(|lag| lag.position == 6)).await;
    assert_eq!(past, TopicLag { position: 6, end: 6, behind_ms: 0 });
    drop(feed);
}

#[tokio::test]
async fn lagging_node_gets_one_gap_and_the_records_after_it() {
    /// More records than the node and the library queue together.
    const MANY: usize = 6_000;
    const LEFT: usize = 10;
    let kafka = KafkaConfig { read_ahead_bytes: 64 * 1024, record_bytes_max: 64 * 1024, ..settings() };
    ensure(&kafka).await;
    let (bus, me) = (open(&kafka).await, node("me", 1));
    let mut feed = bus.consume_node(&me).await.unwrap();
    let numbered: Vec<Bytes> = (0..MANY).map(|nth| format!("{nth:01000}").into()).collect();
    for some in numbered.chunks(500) {
        bus.publish_node(&me, some.to_vec()).await.unwrap();
    }
    is_behind(&bus, MANY as u64).await;
    let mut gone = TopicPartitionList::new();
    let first_left = Offset::Offset((MANY - LEFT) as i64);
    gone.add_partition_offset(&kafka.topic_of("me"), 0, first_left).unwrap();
    let deleted = admin(&kafka).delete_records(&gone, &AdminOptions::new()).await.unwrap();
    deleted.elements().iter().for_each(|it| it.error().unwrap());
    let mut read = Vec::new();
    loop {
        match tokio::time::timeout(REPLY_TIMEOUT * 4, feed.next()).await.expect("a node event") {
            Some(NodeEvent::Records(records)) => read.extend(records),
            Some(NodeEvent::Gap) => break,
            None => panic!("the feed continues"),
        }
    }
    assert!(read.len() < MANY - LEFT, "the node lagged: {}", read.len());
    assert_eq!(read, numbered[..read.len()], "in order, up to the gap");
    for text in ["after", "and on"] {
        bus.publish_node(&me, records(&[text])).await.unwrap();
        assert_eq!(next_node_event(&mut feed).await, Some(NodeEvent::Records(records(&[text]))));
    }
}
