//! The suite of `Bus`: flaws S26-S30. Over Kafka it runs on a real broker (`cargo xtask services up`).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate::{
    bus::{
        AppendError, Appended, Batch, Bus, LocalBus, LocalBusConfig, NodeEvent, NodeFeed, Ownership,
        OwnershipEvent, ReadError, TopicId,
    },
    embedded::EmbeddedBus,
    fault::{FaultPlan, Faulty},
    routes::NodeBoot,
};

use super::{at_once, node};

pub(super) struct World {
    pub(super) bus: Arc<dyn Bus>,
    pub(super) me: NodeBoot,
}

pub(super) const SMALL: LocalBusConfig = LocalBusConfig {
    partitions: 3,
    topic: TopicId(42),
    max_records: 1_000,
    max_bytes: 100_000,
    node_max_records: 1_000,
    node_max_bytes: 100_000,
};

fn local() -> World {
    World { bus: Arc::new(LocalBus::new(SMALL)), me: node("me", 1) }
}

fn faultless() -> World {
    let World { bus, me } = local();
    World { bus: Arc::new(Faulty::new(bus, FaultPlan::none())), me }
}

fn embedded() -> World {
    let engine = super::embedded::engine(SMALL.partitions);
    World { bus: Arc::new(EmbeddedBus::new(engine, SMALL)), me: node("me", 1) }
}

suite! {
    { local => super::local(); faultless => super::faultless(); embedded => super::embedded(); kafka => crate::kafka::world().await; }
    {
        appended_records_are_read_back_in_order_from_offset_zero
        partitions_are_independent
        s29_sequential_appends_keep_their_order
        batch_is_appended_whole_or_not_at_all
        read_waits_for_the_first_record
        read_is_bounded_but_returns_at_least_one_record
        s27_reading_commits_nothing
        offset_outside_the_log_is_an_error
        trim_keeps_unarchived_records_and_the_one_before_them
        each_partition_is_assigned_once_before_it_is_read
        released_partition_ends_its_waiting_read
        leave_revokes_all_partitions_and_ends_with_the_last
        dropped_ownership_loses_its_partitions
        s26_node_topic_starts_at_its_end
        s26_s28_new_run_of_a_node_gets_no_replays
        published_records_arrive_in_order
        second_feed_and_second_join_end_the_first
        s30_close_confirms_appends_and_ends_all_reads
    }
}

pub(super) fn records(texts: &[&str]) -> Vec<Bytes> {
    texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect()
}

pub(super) fn texts(batch: &Batch) -> Vec<(u64, String)> {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    batch.records.iter().map(|record| (record.offset, text(&record.bytes))).collect()
}

impl World {
    pub(super) async fn own_all(&self) -> Box<dyn Ownership> {
        let mut ownership = self.bus.join(&self.me).await.unwrap();
        for _ in 0..self.bus.partitions() {
            assert!(matches!(ownership.next().await, Some(OwnershipEvent::Assigned(_))));
        }
        ownership
    }

    async fn append(&self, partition: u32, list: &[&str]) -> Appended {
        self.bus.append(partition, records(list)).await.unwrap()
    }

    async fn read(&self, partition: u32, from: u64) -> Vec<(u64, String)> {
        texts(&self.bus.read(partition, from, 100, 1 << 20).await.unwrap())
    }

    async fn publish(&self, to: &NodeBoot, list: &[&str]) {
        self.bus.publish_node(to, records(list)).await.unwrap();
    }
}

/// Returns the next `count` records of a feed, as text.
async fn read_feed(feed: &mut Box<dyn NodeFeed>, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    while all.len() < count {
        let Some(NodeEvent::Records(records)) = feed.next().await else { panic!("a gap or the end") };
        assert!(!records.is_empty());
        all.extend(records.into_iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()));
    }
    all
}

async fn appended_records_are_read_back_in_order_from_offset_zero(world: &World) {
    let _mine = world.own_all().await;
    assert_eq!(world.append(0, &["a", "b"]).await, Appended { first: 0, last: 1 });
    assert_eq!(world.append(0, &["c"]).await, Appended { first: 2, last: 2 });
    let all = [(0, "a".to_owned()), (1, "b".to_owned()), (2, "c".to_owned())];
    assert_eq!(world.read(0, 0).await, all);
    assert_eq!(world.read(0, 2).await, all[2..]);
    let bounds = world.bus.bounds(0).await.unwrap();
    assert_eq!((bounds.first, bounds.next), (0, 3));
    assert_eq!(world.bus.read(0, 0, 9, 9).await.unwrap().bounds, bounds);
}

async fn partitions_are_independent(world: &World) {
    let _mine = world.own_all().await;
    world.append(0, &["zero"]).await;
    world.append(2, &["two"]).await;
    assert_eq!(world.read(2, 0).await, [(0, "two".to_owned())]);
    assert_eq!(world.bus.bounds(1).await.unwrap().next, 0);
    assert_eq!(world.bus.bounds(0).await.unwrap().topic, world.bus.bounds(1).await.unwrap().topic);
}

async fn s29_sequential_appends_keep_their_order(world: &World) {
    let _mine = world.own_all().await;
    let appends = (0..100).map(|n| world.bus.append(0, vec![Bytes::from(n.to_string())]));
    for appended in futures_util::future::join_all(appends).await {
        appended.unwrap();
    }
    let read: Vec<_> = world.read(0, 0).await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(read, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
}

async fn batch_is_appended_whole_or_not_at_all(world: &World) {
    let _mine = world.own_all().await;
    assert!(matches!(world.bus.append(0, Vec::new()).await, Err(AppendError::Rejected(_))));
    let beyond = world.bus.partitions();
    assert!(matches!(world.bus.append(beyond, records(&["a"])).await, Err(AppendError::Rejected(_))));
    let large = Bytes::from(vec![b'x'; 64 << 20]);
    let batch = vec![Bytes::from_static(b"small"), large];
    assert!(matches!(world.bus.append(0, batch).await, Err(AppendError::Rejected(_))));
    assert_eq!(world.bus.bounds(0).await.unwrap().next, 0);
}

async fn read_waits_for_the_first_record(world: &World) {
    let _mine = world.own_all().await;
    world.append(0, &["a"]).await;
    let bus = Arc::clone(&world.bus);
    let waiting = tokio::spawn(async move { bus.read(0, 1, 9, 1 << 20).await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    world.append(1, &["elsewhere"]).await;
    world.append(0, &["b"]).await;
    assert_eq!(texts(&waiting.await.unwrap().unwrap()), [(1, "b".to_owned())]);
}

async fn read_is_bounded_but_returns_at_least_one_record(world: &World) {
    let _mine = world.own_all().await;
    world.append(0, &["aaaa", "bbbb", "cccc", "dddd"]).await;
    let sizes = [(2, 1 << 20, 2), (9, 8, 2), (9, 1, 1), (0, 0, 1), (9, 1 << 20, 4)];
    for (max_records, max_bytes, count) in sizes {
        let batch = world.bus.read(0, 0, max_records, max_bytes).await.unwrap();
        assert_eq!(batch.records.len(), count, "{max_records} records, {max_bytes} bytes");
    }
}

async fn s27_reading_commits_nothing(world: &World) {
    let mine = world.own_all().await;
    world.append(0, &["a", "b"]).await;
    let first = world.read(0, 0).await;
    drop(mine);
    let _mine = world.own_all().await;
    assert_eq!(
        world.read(0, 0).await,
        first,
        "the next owner starts where the store says, not where a read was"
    );
}

async fn offset_outside_the_log_is_an_error(world: &World) {
    let _mine = world.own_all().await;
    world.append(0, &["a", "b", "c"]).await;
    let beyond = world.bus.read(0, 4, 9, 9).await;
    assert_eq!(
        beyond,
        Err(ReadError::OutOfRange(world.bus.bounds(0).await.unwrap())),
        "a log that is shorter"
    );
    world.bus.trim(0, 3).await.unwrap();
    let bounds = world.bus.bounds(0).await.unwrap();
    if bounds.first > 0 {
        assert_eq!(
            world.bus.read(0, 0, 9, 9).await,
            Err(ReadError::OutOfRange(bounds)),
            "records that are gone"
        );
    }
}

async fn trim_keeps_unarchived_records_and_the_one_before_them(world: &World) {
    let _mine = world.own_all().await;
    world.append(0, &["a", "b", "c", "d"]).await;
    for archived in [0, 3, 1] {
        world.bus.trim(0, archived).await.unwrap();
        assert_eq!(world.read(0, 2).await, [(2, "c".to_owned()), (3, "d".to_owned())], "trim at {archived}");
    }
    world.bus.trim(0, 99).await.unwrap();
    assert_eq!(
        world.read(0, 3).await,
        [(3, "d".to_owned())],
        "the last record stays, whatever offset is trimmed"
    );
    assert_eq!(world.append(0, &["e"]).await.first, 4, "offsets go on");
}

async fn each_partition_is_assigned_once_before_it_is_read(world: &World) {
    world.append(0, &["a"]).await;
    assert_eq!(world.bus.read(0, 0, 9, 9).await, Err(ReadError::NotOwner));
    let mut ownership = world.bus.join(&world.me).await.unwrap();
    let mut assigned = Vec::new();
    for _ in 0..world.bus.partitions() {
        let Some(OwnershipEvent::Assigned(partition)) = ownership.next().await else {
            panic!("not assigned")
        };
        assigned.push(partition);
    }
    assigned.sort_unstable();
    assert_eq!(assigned, (0..world.bus.partitions()).collect::<Vec<_>>());
    assert_eq!(world.read(0, 0).await.len(), 1);
}

async fn released_partition_ends_its_waiting_read(world: &World) {
    let mut mine = world.own_all().await;
    let bus = Arc::clone(&world.bus);
    let waiting = tokio::spawn(async move { bus.read(1, 0, 9, 9).await });
    tokio::task::yield_now().await;
    mine.release(1).await;
    assert_eq!(waiting.await.unwrap(), Err(ReadError::NotOwner));
    world.append(1, &["a"]).await;
    assert_eq!(world.bus.read(1, 0, 9, 9).await, Err(ReadError::NotOwner));
    world.append(0, &["a"]).await;
    assert_eq!(world.read(0, 0).await.len(), 1, "the other partitions are still owned");
}

async fn leave_revokes_all_partitions_and_ends_with_the_last(world: &World) {
    let mut mine = world.own_all().await;
    world.append(0, &["a"]).await;
    mine.leave().await;
    for _ in 0..world.bus.partitions() {
        let Some(OwnershipEvent::Revoked(partition)) = mine.next().await else { panic!("not revoked") };
        if partition == 0 {
            assert_eq!(
                world.read(0, 0).await.len(),
                1,
                "a revoked partition is readable until it is released"
            );
        }
        mine.release(partition).await;
    }
    assert_eq!(mine.next().await, None);
    assert_eq!(world.bus.read(0, 0, 9, 9).await, Err(ReadError::NotOwner));
}

async fn dropped_ownership_loses_its_partitions(world: &World) {
    let mine = world.own_all().await;
    world.append(0, &["a"]).await;
    drop(mine);
    assert_eq!(world.bus.read(0, 0, 9, 9).await, Err(ReadError::NotOwner));
}

async fn s26_node_topic_starts_at_its_end(world: &World) {
    world.publish(&world.me, &["before"]).await;
    let mut feed = world.bus.consume_node(&world.me).await.unwrap();
    world.publish(&world.me, &["after"]).await;
    assert_eq!(read_feed(&mut feed, 1).await, ["after"]);
}

async fn s26_s28_new_run_of_a_node_gets_no_replays(world: &World) {
    let next_run = node("me", 2);
    let mut old = world.bus.consume_node(&world.me).await.unwrap();
    world.publish(&world.me, &["taken", "left behind"]).await;
    read_feed(&mut old, 1).await;
    drop(old);
    let mut new = world.bus.consume_node(&next_run).await.unwrap();
    world.publish(&world.me, &["late, for the old run"]).await;
    world.publish(&node("other", 1), &["for another node"]).await;
    world.publish(&next_run, &["for the new run"]).await;
    assert_eq!(read_feed(&mut new, 1).await, ["for the new run"]);
}

async fn published_records_arrive_in_order(world: &World) {
    let mut feed = world.bus.consume_node(&world.me).await.unwrap();
    world.publish(&world.me, &["1", "2"]).await;
    world.publish(&world.me, &["3"]).await;
    assert_eq!(read_feed(&mut feed, 3).await, ["1", "2", "3"]);
    let waiting = tokio::spawn(async move { read_feed(&mut feed, 1).await });
    tokio::task::yield_now().await;
    world.publish(&world.me, &["4"]).await;
    assert_eq!(waiting.await.unwrap(), ["4"]);
}

async fn second_feed_and_second_join_end_the_first(world: &World) {
    let mut first = world.bus.consume_node(&world.me).await.unwrap();
    let mut second = world.bus.consume_node(&world.me).await.unwrap();
    assert_eq!(first.next().await, None);
    drop(first);
    world.publish(&world.me, &["1"]).await;
    assert_eq!(read_feed(&mut second, 1).await, ["1"], "the end of the first is not the end of the second");
    let mut former = world.own_all().await;
    let _mine = world.own_all().await;
    assert_eq!(former.next().await, None);
    former.release(0).await;
    drop(former);
    world.append(0, &["a"]).await;
    assert_eq!(world.read(0, 0).await.len(), 1, "the former owner's end affects no new owner");
}

async fn s30_close_confirms_appends_and_ends_all_reads(world: &World) {
    let mut mine = world.own_all().await;
    let mut feed = world.bus.consume_node(&world.me).await.unwrap();
    let bus = Arc::clone(&world.bus);
    let waiting = tokio::spawn(async move { bus.read(0, 0, 9, 9).await });
    tokio::task::yield_now().await;
    world.bus.close(Duration::from_secs(1)).await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(ReadError::Unavailable(_))));
    assert_eq!((mine.next().await, feed.next().await), (None, None));
    assert!(matches!(world.bus.append(0, records(&["a"])).await, Err(AppendError::Rejected(_))));
    assert!(matches!(
        world.bus.publish_node(&world.me, records(&["a"])).await,
        Err(AppendError::Rejected(_))
    ));
    assert!(world.bus.join(&world.me).await.is_err());
}

#[test]
fn local_bus_is_ready_at_the_first_poll_and_not_durable() {
    let World { bus, me } = local();
    assert!(!bus.state().durable);
    let mut mine = at_once(bus.join(&me)).unwrap();
    assert_eq!(at_once(mine.next()), Some(OwnershipEvent::Assigned(0)));
    at_once(bus.append(0, records(&["a"]))).unwrap();
    at_once(bus.read(0, 0, 1, 1)).unwrap();
    at_once(bus.bounds(0)).unwrap();
    at_once(bus.trim(0, 1)).unwrap();
    let mut feed = at_once(bus.consume_node(&me)).unwrap();
    at_once(bus.publish_node(&me, records(&["a"]))).unwrap();
    assert_eq!(at_once(feed.next()), Some(NodeEvent::Records(records(&["a"]))));
    at_once(mine.release(0));
    at_once(mine.leave());
    at_once(bus.close(Duration::ZERO)).unwrap();
}

#[test]
fn full_local_log_refuses_appends() {
    let bus = LocalBus::new(LocalBusConfig { max_records: 4, max_bytes: 40, ..SMALL });
    let full = |answer| matches!(answer, Err(AppendError::Unavailable(_)));
    for text in ["a", "b", "c", "d"] {
        at_once(bus.append(0, records(&[text]))).unwrap();
    }
    assert!(full(at_once(bus.append(0, records(&["e"])))), "four records");
    assert_eq!(at_once(bus.bounds(0)).unwrap().first, 0, "no record was dropped");
    at_once(bus.trim(0, 2)).unwrap();
    assert_eq!(at_once(bus.append(0, records(&["e"]))).unwrap(), Appended { first: 4, last: 4 });
    at_once(bus.append(1, records(&["0123456789", "0123456789"]))).unwrap();
    at_once(bus.append(1, records(&["0123456789", "0123456789"]))).unwrap();
    assert!(full(at_once(bus.append(1, records(&["e"])))), "forty bytes");
}

/// A send that the log itself refuses would end the connection if it is chained.
#[test]
fn filling_log_reports_it_before_appends_in_flight_fail() {
    let small = LocalBusConfig { max_records: 4, max_bytes: 40, ..SMALL };
    let embedded = EmbeddedBus::new(super::embedded::engine(SMALL.partitions), small);
    let local = LocalBus::new(small);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for bus in [&local as &dyn Bus, &embedded] {
        for (partition, texts) in [(0, ["a", "b", "c"]), (1, ["12345678", "12345678", "12345678"])] {
            for (at, text) in texts.iter().enumerate() {
                assert!(!bus.state().refuses_all, "a half-full log accepts appends");
                let appended = runtime.block_on(bus.append(partition, records(&[text]))).unwrap();
                assert_eq!(appended.last, at as u64);
            }
            assert!(bus.state().refuses_all);
            runtime.block_on(bus.append(partition, records(&["d"]))).expect("capacity for appends in flight");
            runtime.block_on(bus.trim(partition, 4)).unwrap();
            assert!(!bus.state().refuses_all);
        }
    }
}

#[test]
fn slow_local_feed_gets_the_gap_before_later_records() {
    let bus = LocalBus::new(LocalBusConfig { node_max_records: 2, ..SMALL });
    let me = node("me", 1);
    let mut feed = at_once(bus.consume_node(&me)).unwrap();
    at_once(bus.publish_node(&me, records(&["1", "2", "3"]))).unwrap();
    assert_eq!(at_once(feed.next()), Some(NodeEvent::Gap));
    assert_eq!(at_once(feed.next()), Some(NodeEvent::Records(records(&["2", "3"]))));
}
