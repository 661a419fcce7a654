//! Bounds of the log on Kafka: of unread records, and of appends that a frozen broker does not confirm.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt as _;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tidegate::{
    bus::{AppendError, Appended, Bus, KafkaBus},
    config::KafkaConfig,
    metrics,
};

use crate::{
    at_once,
    bus::World,
    kafka::{REPLY_TIMEOUT, ensure, eventually, settings},
    node,
    own_kafka::OwnKafka,
};

/// Longer than the broker is frozen in tests without a timeout.
const LONG_TIMEOUT: Duration = Duration::from_secs(30);

/// Metrics of one bus only: all tests share the recorder of this process.
struct Page(PrometheusHandle);

impl Page {
    async fn connect(kafka: &KafkaConfig, answer: Duration) -> (KafkaBus, Self) {
        let recorder = PrometheusBuilder::new().build_recorder();
        let page = Self(recorder.handle());
        let (metrics, _) = ::metrics::with_local_recorder(&recorder, metrics::install);
        (KafkaBus::connect(kafka, answer, &metrics).await.unwrap(), page)
    }

    fn value(&self, name: &str) -> u64 {
        let page = self.0.render();
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name}")).parse::<f64>().unwrap() as u64
    }
}

#[tokio::test]
async fn long_lag_queues_a_bounded_number_of_bytes() {
    const ALL: u64 = 1_000;
    const AHEAD: usize = 64 * 1024;
    let properties = vec!["statistics.interval.ms=100".to_owned()];
    let kafka = KafkaConfig { read_ahead_bytes: AHEAD, record_bytes_max: AHEAD, properties, ..settings() };
    ensure(&kafka).await;
    let (bus, page) = Page::connect(&kafka, REPLY_TIMEOUT).await;
    let world = World { bus: Arc::new(bus), me: node("me", 1) };
    let _mine = world.own_all().await;
    let record = Bytes::from(vec![b'x'; 10_000]);
    for _ in 0..20 {
        world.bus.append(0, vec![record.clone(); 50]).await.unwrap();
    }
    let (mut next, mut reads, mut held_most) = (0, 0, 0);
    while next < ALL {
        let batch = world.bus.read(0, next, 1_000, 50_000).await.unwrap();
        assert!(batch.records.len() <= 5);
        assert_eq!(batch.records[0].offset, next);
        assert!(batch.bounds.next > next);
        next += batch.records.len() as u64;
        reads += 1;
        if reads % 20 > 1 {
            continue;
        }
        // The first statistic that includes this read; the reader has a record more than it returned.
        let left = ALL - next;
        let held = eventually(async || {
            let (behind, held) =
                (page.value("tidegate_kafka_lag_records"), page.value("tidegate_kafka_read_ahead_bytes"));
            (left.saturating_sub(1)..=left).contains(&behind).then_some(held)
        });
        held_most = held.await.max(held_most);
    }
    assert!(held_most > 0, "precondition: the reader queues records");
    // It asks for more while it has less than the bound, and gets at most the bound at once.
    assert!(held_most <= 2 * (AHEAD as u64 + 1_024), "{held_most} bytes of 10 million wait in the node");
    let large = vec![Bytes::from(vec![b'x'; 70_000])];
    assert!(matches!(world.bus.append(0, large).await, Err(AppendError::Rejected(_))));
}

#[tokio::test]
async fn append_over_the_bound_is_refused_at_once() {
    const BOUND: usize = 2 << 20;
    const RECORD: usize = 64 * 1024;
    const HALF: u64 = (BOUND / 2 / RECORD) as u64;
    let own = OwnKafka::start();
    let kafka = KafkaConfig {
        brokers: vec![own.address().to_string()],
        append_bytes_max: BOUND,
        delivery_ms: 2 * LONG_TIMEOUT.as_millis() as u64,
        session_ms: 2 * LONG_TIMEOUT.as_millis() as u64,
        properties: vec!["statistics.interval.ms=100".to_owned()],
        ..settings()
    };
    ensure(&kafka).await;
    let (bus, page) = Page::connect(&kafka, LONG_TIMEOUT).await;
    let world = World { bus: Arc::new(bus), me: node("me", 1) };
    let _mine = world.own_all().await;
    let bus = &world.bus;
    let half = |round: u8| vec![Bytes::from(vec![round; RECORD]); HALF as usize];
    let small = || vec![Bytes::from_static(b"x")];
    let queued = || page.value("tidegate_kafka_append_queue_bytes");
    // Several rounds: a leak by a refusal or a reply would show in the next one.
    for round in 0..3_u8 {
        own.freeze(true);
        let mut first = bus.append(0, half(round));
        assert!((&mut first).now_or_never().is_none(), "its broker is frozen");
        let (mut over, one) = (half(round), small());
        over.extend(small());
        assert!(
            matches!(at_once(bus.append(2, over)), Err(AppendError::Rejected(_))),
            "a record above the bound never fits"
        );
        let mut second = bus.append(1, half(round));
        assert!((&mut second).now_or_never().is_none(), "both together are the bound");
        for partition in [0, 1, 2, 2, 2, 0, 1] {
            match at_once(bus.append(partition, one.clone())) {
                Err(AppendError::Unavailable(why)) => assert!(why.contains("too many unconfirmed"), "{why}"),
                other => panic!("{partition}: {other:?}"),
            }
        }
        eventually(async || (queued() == BOUND as u64).then_some(())).await;
        own.freeze(false);
        let begins = u64::from(round) * HALF;
        let placed = Ok(Appended { first: begins, last: begins + HALF - 1 });
        assert_eq!((first.await, second.await), (placed.clone(), placed), "round {round}");
        let at = u64::from(round);
        assert_eq!(bus.append(2, one).await, Ok(Appended { first: at, last: at }), "the append fits again");
        eventually(async || (queued() == 0).then_some(())).await;
    }
    for (partition, count) in [(0, 3 * HALF), (1, 3 * HALF), (2, 3)] {
        assert_eq!(bus.bounds(partition).await.unwrap().next, count, "{partition}");
        let mut next = 0;
        while next < count {
            for record in bus.read(partition, next, 100, 4 << 20).await.unwrap().records {
                let (is, round) = (record.bytes[0], (next / HALF) as u8);
                assert_eq!((record.offset, is), (next, if partition == 2 { b'x' } else { round }));
                next += 1;
            }
        }
    }
}

/// Appends to one partition in order, and their results.
#[derive(Default)]
struct Appends(Vec<(String, Result<Appended, AppendError>)>);

impl Appends {
    async fn append(&mut self, bus: &dyn Bus, partition: u32) -> &Result<Appended, AppendError> {
        let text = self.0.len().to_string();
        let answer = bus.append(partition, vec![Bytes::from(text.clone())]).await;
        self.0.push((text, answer));
        &self.0.last().unwrap().1
    }

    /// Appends until the result satisfies the condition.
    async fn until(
        &mut self,
        bus: &dyn Bus,
        partition: u32,
        wanted: fn(&Result<Appended, AppendError>) -> bool,
    ) {
        eventually(async || wanted(self.append(bus, partition).await).then_some(())).await;
    }

    /// Asserts that a confirmed append is at its offset, an unknown one is in the log at most once, a refused one is
    /// not, and the log is in the order of the appends.
    async fn holds(&self, bus: &dyn Bus, partition: u32) {
        let end = bus.bounds(partition).await.unwrap().next;
        let mut log = Vec::new();
        while (log.len() as u64) < end {
            let batch = bus.read(partition, log.len() as u64, 1_000, 1 << 20).await.unwrap();
            log.extend(
                batch.records.into_iter().map(|record| String::from_utf8(record.bytes.to_vec()).unwrap()),
            );
        }
        let order: Vec<usize> = log.iter().map(|text| text.parse().unwrap()).collect();
        assert!(order.is_sorted_by(|one, next| one < next), "once each, in order: {order:?}");
        for (text, answer) in &self.0 {
            let place = log.iter().position(|it| it == text).map(|at| at as u64);
            match answer {
                Ok(placed) => assert_eq!((Some(placed.first), placed.last), (place, placed.first), "{text}"),
                Err(AppendError::Unknown(_)) => {}
                Err(AppendError::Unavailable(_)) => assert_eq!(place, None, "{text} was refused"),
                Err(error) => panic!("{text}: {error}"),
            }
        }
    }
}

/// The library gives up some time after the client got `UNKNOWN`. What it had sent may still arrive.
#[tokio::test]
async fn abandoned_append_blocks_no_other_and_arrives_at_most_once() {
    let own = OwnKafka::start();
    let answer = Duration::from_secs(1);
    let brokers = vec![own.address().to_string()];
    // Approximately the minimum that the settings accept.
    let delivery_ms = answer.as_millis() as u64 + 500;
    let kafka =
        KafkaConfig { brokers, delivery_ms, session_ms: 2 * LONG_TIMEOUT.as_millis() as u64, ..settings() };
    ensure(&kafka).await;
    let (bus, page) = Page::connect(&kafka, answer).await;
    let world = World { bus: Arc::new(bus), me: node("me", 1) };
    let _mine = world.own_all().await;
    let bus = &*world.bus;
    let mut appends = [Appends::default(), Appends::default()];
    let unknown = |answer: &Result<Appended, AppendError>| matches!(answer, Err(AppendError::Unknown(_)));
    for round in 0..2 {
        for (partition, appends) in (0..).zip(&mut appends) {
            // The first append introduces the producer to the broker, which may take its time.
            appends.until(bus, partition, Result::is_ok).await;
        }
        own.freeze(true);
        let unknowns = page.value("tidegate_kafka_appends_unknown_total");
        assert!(unknown(appends[0].append(bus, 0).await), "round {round}");
        assert!(matches!(appends[0].append(bus, 0).await, Err(AppendError::Unavailable(_))), "at once");
        // Refused while the first one waits in the library; then the next is tried, and waits as long.
        for _ in 0..2 {
            appends[0].until(bus, 0, unknown).await;
        }
        assert!(unknown(appends[1].append(bus, 1).await), "round {round}");
        assert_eq!(page.value("tidegate_kafka_appends_unknown_total") - unknowns, 4);
        own.freeze(false);
        for (partition, appends) in (0..).zip(&mut appends) {
            appends.until(bus, partition, Result::is_ok).await;
            let Ok(Appended { last, .. }) = appends.0.last().unwrap().1 else { unreachable!("it is ok") };
            for more in 1..=3 {
                let next = last + more;
                assert_eq!(*appends.append(bus, partition).await, Ok(Appended { first: next, last: next }));
            }
        }
    }
    for (partition, appends) in (0..).zip(&appends) {
        appends.holds(bus, partition).await;
    }
    world.bus.close(LONG_TIMEOUT).await.unwrap();
}
